"""``FrameEncoder``: from items to slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.codec_handle import CodecHandle, handle_of
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.slot_store import Slot, pack_slot, unpack_slot
from sb3_compressed.codecs import Codec, TrainableCodec

__all__ = ["FrameEncoder"]


class FrameEncoder:
    """Encodes items of one shape and dtype.

    A slot shows how many frames it has, and which trained codec wrote each, so slots stay readable when the layout is
    found or the codec is trained after they were written.

    :param item_shape: shape of one item
    :param dtype: dtype that items are stored in
    :param codec: encodes frames and whole items
    :param layout: how items are divided into frames; ``None`` if they are not
    :ivar handle: the handle of the codec in slots, ``None`` if it is not trainable
    """

    codec: Codec
    handle: CodecHandle | None

    def __init__(
        self, item_shape: tuple[int, ...], dtype: np.dtype[Any], codec: Codec, layout: FrameLayout | None
    ) -> None:
        self.item_shape = item_shape
        self.dtype = dtype
        self.layout = layout
        self.set_codec(codec)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickles of version 0.2 lack the handle.
        FrameEncoder.__init__(self, state["item_shape"], state["dtype"], state["codec"], state["layout"])

    def set_codec(self, codec: Codec) -> None:
        """Use another codec of the same class from now on."""
        handle = handle_of(codec) if isinstance(codec, TrainableCodec) else None
        # Both at once: payloads of a codec must never get the handle of another one, whatever Ctrl-C interrupts.
        vars(self).update(codec=codec, handle=handle)

    @property
    def n_frames(self) -> int:
        """The number of frames of an item."""
        return 1 if self.layout is None else self.layout.n_frames

    def split(self, items: NDArray[Any]) -> NDArray[Any]:
        """Return items ``(n, *item_shape)`` as a C-contiguous copy of their frames ``(n, n_frames, *frame_shape)``."""
        frames = items[:, np.newaxis] if self.layout is None else self.layout.split(items)
        return np.array(frames, order="C", copy=True)

    def encode_frames(self, frames: NDArray[Any]) -> list[bytes]:
        """Return the payloads of frames ``(n, *frame_shape)``.

        :raises TypeError: if the codec breaks its contract, instead of storing payloads that cannot be decoded
        """
        payloads = self.codec.encode(frames) if len(frames) else []
        if len(payloads) != len(frames) or [*map(type, payloads)].count(bytes) < len(payloads):
            kinds = sorted({type(payload).__name__ for payload in payloads})
            raise TypeError(
                f"{self.codec!r} must encode {len(frames)} frames to as many bytes objects, "
                f"got {len(payloads)} of {' and '.join(kinds)}"
            )
        return payloads

    def join(self, new: Sequence[bytes], previous: Slot = None) -> Slot:
        """Return the slot of an item of which some frames were just encoded.

        :param new: payloads of its newest frames, in the order of the stack
        :param previous: the slot of the previous item, whose newest frames are the oldest of this one; ignored if all
            frames are new
        """
        n_frames, n_new = self.n_frames, len(new)
        handle = self.handle
        is_reversed = self.layout is not None and self.layout.newest_first
        if handle is None:
            if self.layout is None:
                return new[0]
            if n_new == n_frames:
                return tuple(new)
            return (*new, *previous[: n_frames - n_new]) if is_reversed else (*previous[n_new:], *new)  # type: ignore[index]
        if n_new == n_frames:
            return (handle, *new)
        handles, payloads = unpack_slot(previous)
        if is_reversed:
            n_old = n_frames - n_new
            return pack_slot([*[handle] * n_new, *handles[:n_old]], [*new, *payloads[:n_old]])
        return pack_slot([*handles[n_new:], *[handle] * n_new], [*payloads[n_new:], *new])

    def encode(self, items: NDArray[Any]) -> list[Slot]:
        """Encode items ``(n, *item_shape)`` independently of each other.

        :class:`~sb3_compressed.arrays.frame_dedup.FrameDeduplicator` encodes items that share frames.
        """
        frames = self.split(items)
        n_items, n_frames, *frame_shape = frames.shape
        payloads = self.encode_frames(frames.reshape(n_items * n_frames, *frame_shape))
        return [self.join(payloads[start : start + n_frames]) for start in range(0, len(payloads), n_frames)]

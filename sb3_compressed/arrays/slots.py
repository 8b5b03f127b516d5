"""From items to slots and back: cut into frames, encode, decode, put together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.frames import FrameLayout
from sb3_compressed.codecs import Codec
from sb3_compressed.errors import CorruptPayload

__all__ = ["Slot", "SlotCoder"]

Slot = bytes | tuple[bytes, ...] | None
"""What an array keeps of one item: one payload, one payload a frame (the oldest first), or nothing yet."""


class SlotCoder:
    """Translates items of one shape and dtype to slots and back.

    A slot says itself how it is to be read: :class:`bytes` is the payload of a whole item, a tuple holds one
    payload a frame, ``None`` stands for zeros. So slots stay readable when the layout is found only later.

    :param item_shape: shape of one item
    :param dtype: dtype that items are stored in
    :param codec: what encodes frames and whole items
    :param layout: how items are cut into frames; ``None`` for not at all
    """

    def __init__(
        self, item_shape: tuple[int, ...], dtype: np.dtype[Any], codec: Codec, layout: FrameLayout | None
    ) -> None:
        self.item_shape = item_shape
        self.dtype = dtype
        self.codec = codec
        self.layout = layout

    def split(self, items: NDArray[Any]) -> NDArray[Any]:
        """Return items ``(n, *item_shape)`` as frames ``(n, n_frames, *frame_shape)``, C-contiguous and our own."""
        frames = items[:, np.newaxis] if self.layout is None else self.layout.split(items)
        return np.array(frames, order="C", copy=True)

    def join(self, payloads: Sequence[bytes]) -> Slot:
        """Return the slot that holds the payloads of one item."""
        return payloads[0] if self.layout is None else tuple(payloads)

    def encode(self, items: NDArray[Any]) -> list[Slot]:
        """Encode items ``(n, *item_shape)``, each for itself.

        Items that share frames with their predecessors are the matter of
        :class:`~sb3_compressed.arrays.sharing.FrameSharing`.
        """
        frames = self.split(items)
        n_items, n_frames, *frame_shape = frames.shape
        payloads = self.codec.encode(frames.reshape(n_items * n_frames, *frame_shape))
        return [self.join(payloads[start : start + n_frames]) for start in range(0, len(payloads), n_frames)]

    def decode_into(self, slots: Sequence[Slot], out: NDArray[Any]) -> None:
        """Decode slots into memory that the caller owns.

        :param slots: ``n`` slots
        :param out: C-contiguous array ``(n, *item_shape)`` of any dtype; values are cast to it
        :raises CorruptPayload: with the position of the slot as its ``index``
        """
        if out.dtype != self.dtype:
            stored = np.empty(out.shape, dtype=self.dtype)
            self.decode_into(slots, stored)
            out[...] = stored
            return
        kinds = set(map(type, slots))
        if len(kinds) == 1:
            self._decode_kind(kinds.pop(), slots, out)
            return
        # Unwritten slots among written ones, or whole items from before the layout was found: kind by kind.
        for kind in kinds:
            positions = [position for position, slot in enumerate(slots) if type(slot) is kind]
            part = np.empty((len(positions), *out.shape[1:]), dtype=out.dtype)
            try:
                self._decode_kind(kind, [slots[position] for position in positions], part)
            except CorruptPayload as error:
                raise CorruptPayload(error.reason, positions[error.index]) from error
            out[positions] = part

    def _decode_kind(self, kind: type, slots: Sequence[Any], out: NDArray[Any]) -> None:
        if kind is tuple:
            self._decode_stacks(slots, out)
        elif kind is bytes:
            self.codec.decode_into(slots, out)
        else:
            out[...] = 0  # as in SB3, what was never written reads as zeros

    def _decode_stacks(self, slots: Sequence[tuple[bytes, ...]], out: NDArray[Any]) -> None:
        assert self.layout is not None
        stacks = self.layout.split(out)  # a view: (n, n_frames, *frame_shape)
        in_place = stacks.flags.c_contiguous
        frames = stacks if in_place else np.empty(stacks.shape, dtype=stacks.dtype)
        payloads = list(chain.from_iterable(slots))
        try:
            self.codec.decode_into(payloads, frames.reshape(len(payloads), *self.layout.frame_shape))
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, error.index // self.layout.n_frames) from error
        if not in_place:
            stacks[...] = frames

"""From items to slots and back: cut into frames, encode, decode, put together."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.frames import FrameLayout
from sb3_compressed.codecs import Codec, LearningCodec
from sb3_compressed.errors import CorruptPayload

__all__ = ["Slot", "SlotCoder"]

Slot = bytes | tuple[Any, ...] | None
"""What an array keeps of one item.

- ``bytes``: the payload of a whole item;
- a tuple: the payloads of its frames, the oldest first. If the codec learns, each codec that wrote some of them stands
  before those it wrote: ``(codec, p0, p1, p2, p3)``, or ``(older, p0, p1, newer, p2, p3)`` just after it learned.
  A codec and one payload are a whole item;
- ``None``: nothing yet.
"""


class SlotCoder:
    """Translates items of one shape and dtype to slots and back.

    A slot says itself how it is to be read, so slots stay readable when the layout is found, or the codec has learned,
    only after they were written.

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

    @property
    def n_frames(self) -> int:
        """How many frames an item is cut into."""
        return 1 if self.layout is None else self.layout.n_frames

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame."""
        return self.item_shape if self.layout is None else self.layout.frame_shape

    def split(self, items: NDArray[Any]) -> NDArray[Any]:
        """Return items ``(n, *item_shape)`` as frames ``(n, n_frames, *frame_shape)``, C-contiguous and our own."""
        frames = items[:, np.newaxis] if self.layout is None else self.layout.split(items)
        return np.array(frames, order="C", copy=True)

    def encode_frames(self, frames: NDArray[Any]) -> list[bytes]:
        """Return the payloads of frames ``(n, *frame_shape)``.

        :raises TypeError: if the codec does not keep its contract; better than a payload that reads as something else
        """
        payloads = self.codec.encode(frames) if len(frames) else []
        if len(payloads) != len(frames) or not set(map(type, payloads)) <= {bytes}:
            kinds = sorted({type(payload).__name__ for payload in payloads})
            raise TypeError(
                f"{self.codec!r} must encode {len(frames)} frames to as many bytes objects, "
                f"got {len(payloads)} of {' and '.join(kinds)}"
            )
        return payloads

    def join(self, fresh: Sequence[bytes], continued: Slot = None) -> Slot:
        """Return the slot of an item of which some frames were just encoded.

        :param fresh: payloads of its newest frames
        :param continued: the slot of the item before it, whose newest frames are its oldest
        """
        n_frames = self.n_frames
        n_gone = len(fresh)
        if not isinstance(self.codec, LearningCodec):
            if self.layout is None:
                return fresh[0]
            return (*continued[n_gone:], *fresh) if n_gone < n_frames else tuple(fresh)  # type: ignore[index]
        if n_gone == n_frames:
            return (self.codec, *fresh)
        if continued[0] is self.codec and len(continued) == 1 + n_frames:  # type: ignore[index, arg-type]
            return (self.codec, *continued[1 + n_gone :], *fresh)  # type: ignore[index]
        codecs, payloads = _unpack(continued)
        return _pack([*codecs[n_gone:], *[self.codec] * n_gone], [*payloads[n_gone:], *fresh])

    def encode(self, items: NDArray[Any]) -> list[Slot]:
        """Encode items ``(n, *item_shape)``, each for itself.

        Items that share frames with their predecessors are the matter of
        :class:`~sb3_compressed.arrays.sharing.FrameSharing`.
        """
        frames = self.split(items)
        n_items, n_frames, *frame_shape = frames.shape
        payloads = self.encode_frames(frames.reshape(n_items * n_frames, *frame_shape))
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
        if not slots:
            return
        if _are_alike(slots):
            self._decode_kind(_kind(slots[0]), slots, out)
            return
        kinds = [_kind(slot) for slot in slots]
        # Unwritten slots among written ones, or whole items from before the layout was found: kind by kind.
        for kind in set(kinds):
            positions = [position for position, other in enumerate(kinds) if other is kind]
            part = np.empty((len(positions), *out.shape[1:]), dtype=out.dtype)
            try:
                self._decode_kind(kind, [slots[position] for position in positions], part)
            except CorruptPayload as error:
                raise CorruptPayload(error.reason, positions[error.index]) from error
            out[positions] = part

    def _decode_kind(self, kind: Kind, slots: Sequence[Any], out: NDArray[Any]) -> None:
        if kind is Kind.UNWRITTEN:
            out[...] = 0  # as in SB3, what was never written reads as zeros
        elif kind is Kind.WHOLE:
            self._decode_payloads(slots, out)
        else:
            self._decode_stacks(slots, out)

    def _decode_stacks(self, slots: Sequence[tuple[Any, ...]], out: NDArray[Any]) -> None:
        assert self.layout is not None
        stacks = self.layout.split(out)  # a view: (n, n_frames, *frame_shape)
        in_place = stacks.flags.c_contiguous
        frames = stacks if in_place else np.empty(stacks.shape, dtype=stacks.dtype)
        try:
            self._decode_payloads(slots, frames.reshape(len(slots) * self.layout.n_frames, *self.layout.frame_shape))
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, error.index // self.layout.n_frames) from error
        if not in_place:
            stacks[...] = frames

    def _decode_payloads(self, slots: Sequence[Any], frames: NDArray[Any]) -> None:
        """Decode all payloads of slots into as many frames."""
        if not isinstance(self.codec, LearningCodec):
            self.codec.decode_into(slots if type(slots[0]) is bytes else list(chain.from_iterable(slots)), frames)
            return
        codecs: list[LearningCodec] = []
        payloads: list[bytes] = []
        n_parts = 1 + len(frames) // max(len(slots), 1)
        if type(slots[0]) is tuple and len(slots[0]) == n_parts and _are_alike(slots):
            # Each is a codec and what it wrote, as all are but those written just after the codec learned.
            payloads += chain.from_iterable(slots)
            codecs += payloads[::n_parts]  # type: ignore[arg-type]
            del payloads[::n_parts]
        else:
            for slot in slots:
                slot_codecs, slot_payloads = _unpack(slot) if type(slot) is tuple else ([self.codec], [slot])
                codecs += slot_codecs
                payloads += slot_payloads
        type(self.codec).decode_batch(codecs, payloads, frames)


class Kind(Enum):
    """How a slot is to be read."""

    UNWRITTEN = auto()
    WHOLE = auto()
    FRAMES = auto()


def _are_alike(slots: Sequence[Any]) -> bool:
    """Tell, without a loop in Python, whether slots are of one type and length, and so of one kind."""
    types = set(map(type, slots))
    return len(types) == 1 and (types != {tuple} or len(set(map(len, slots))) == 1)


def _kind(slot: Slot) -> Kind:
    if slot is None:
        return Kind.UNWRITTEN
    if type(slot) is bytes or (len(slot) == 2 and type(slot[0]) is not bytes):
        return Kind.WHOLE
    return Kind.FRAMES


def _unpack(slot: Any) -> tuple[Sequence[LearningCodec], Sequence[bytes]]:
    """Return the payloads of a slot of a codec that learns, and the codec of each."""
    codec: LearningCodec = slot[0]
    codecs: list[LearningCodec] = []
    payloads: list[bytes] = []
    for part in slot:
        if type(part) is bytes:
            payloads.append(part)
            codecs.append(codec)
        else:
            codec = part
    return codecs, payloads


def _pack(codecs: Sequence[LearningCodec], payloads: Sequence[bytes]) -> tuple[Any, ...]:
    """Return the slot of which :func:`_unpack` gives these."""
    parts: list[Any] = []
    previous = None
    for codec, payload in zip(codecs, payloads, strict=True):
        parts += [payload] if codec is previous else [codec, payload]
        previous = codec
    return tuple(parts)

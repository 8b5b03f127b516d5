"""From items to slots and back: cut into frames, encode, decode, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.handover import recall, remember
from sb3_compressed.arrays.payload_batch import PayloadBatch, gather, gather_in_python, unpack_slot
from sb3_compressed.arrays.slot_store import SlotStore
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.errors import CorruptPayload
from sb3_compressed.threads import in_chunks

__all__ = ["Slot", "SlotCoder", "pack_slot", "slot_n_frames"]

Slot = bytes | tuple[Any, ...] | None
"""What an array keeps of one item.

- ``bytes``: the payload of a whole item;
- a tuple: the payloads of its frames, the oldest first. If the codec learns, each codec that wrote some of them stands
  before those it wrote: ``(codec, p0, p1, p2, p3)``, or ``(older, p0, p1, newer, p2, p3)`` just after it learned.
  A codec and one payload are a whole item;
- ``None``: nothing yet.
"""


Decoder = Callable[[int, int, NDArray[Any]], None]
"""Decodes the payloads from one index to another to where they belong among all frames."""

#: A thread has to find so much to write that it is worth waking it, about 0.1 ms of work.
MIN_CHUNK_NBYTES = 1 << 20


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
        #: Where slots are that are no objects in memory.
        self.store: SlotStore | None = None
        self._learns = isinstance(codec, TrainableCodec)  # and so do those that learned from it

    @property
    def n_frames(self) -> int:
        """How many frames an item is cut into."""
        return 1 if self.layout is None else self.layout.n_frames

    def split(self, items: NDArray[Any]) -> NDArray[Any]:
        """Return items ``(n, *item_shape)`` as frames ``(n, n_frames, *frame_shape)``, C-contiguous and our own."""
        frames = items[:, np.newaxis] if self.layout is None else self.layout.split(items)
        return np.array(frames, order="C", copy=True)

    def encode_frames(self, frames: NDArray[Any]) -> list[bytes]:
        """Return the payloads of frames ``(n, *frame_shape)``.

        :raises TypeError: if the codec does not keep its contract; better than a payload that reads as something else
        """
        payloads = self.codec.encode(frames) if len(frames) else []
        if len(payloads) != len(frames) or [*map(type, payloads)].count(bytes) < len(payloads):
            kinds = sorted({type(payload).__name__ for payload in payloads})
            raise TypeError(
                f"{self.codec!r} must encode {len(frames)} frames to as many bytes objects, "
                f"got {len(payloads)} of {' and '.join(kinds)}"
            )
        return payloads

    def join(self, fresh: Sequence[bytes], continued: Slot = None) -> Slot:
        """Return the slot of an item of which some frames were just encoded.

        :param fresh: payloads of its newest frames
        :param continued: the slot of the item before it, whose newest frames are its oldest; of no concern where all
            frames are new
        """
        codec, n_frames = self.codec, self.n_frames
        n_gone = len(fresh)
        if not self._learns:
            if self.layout is None:
                return fresh[0]
            return (*continued[n_gone:], *fresh) if n_gone < n_frames else tuple(fresh)  # type: ignore[index]
        if n_gone == n_frames:
            return (codec, *fresh)
        if continued[0] is codec and len(continued) == 1 + n_frames:  # type: ignore[index, arg-type]
            return (codec, *continued[1 + n_gone :], *fresh)  # type: ignore[index]
        codecs, payloads = unpack_slot(continued)
        return pack_slot([*codecs[n_gone:], *[codec] * n_gone], [*payloads[n_gone:], *fresh])  # type: ignore[list-item]

    def continue_each(self, slots: Sequence[Slot], fresh: Sequence[bytes]) -> list[Slot]:
        """Return the slots of items that follow those of ``slots`` with one new frame each, as :meth:`join` does."""
        pairs = zip(slots, fresh, strict=True)
        if not self._learns:
            return [self.join((payload,), slot) for slot, payload in pairs]
        codec, size = self.codec, 1 + self.n_frames
        return [
            (codec, *slot[2:], payload) if slot[0] is codec and len(slot) == size else self.join((payload,), slot)  # type: ignore[index, arg-type]
            for slot, payload in pairs
        ]

    def encode(self, items: NDArray[Any]) -> list[Slot]:
        """Encode items ``(n, *item_shape)``, each for itself.

        Items that share frames with their predecessors are the matter of
        :class:`~sb3_compressed.arrays.frame_dedup.FrameDeduplicator`.
        """
        frames = self.split(items)
        n_items, n_frames, *frame_shape = frames.shape
        payloads = self.encode_frames(frames.reshape(n_items * n_frames, *frame_shape))
        return [self.join(payloads[start : start + n_frames]) for start in range(0, len(payloads), n_frames)]

    def decode_into(self, slots: Sequence[Slot] | NDArray[Any], out: NDArray[Any], num_threads: int = 1) -> None:
        """Decode slots into memory that the caller owns.

        :param slots: ``n`` slots, fastest from an object array; or an array of their addresses in the store
        :param out: C-contiguous array ``(n, *item_shape)`` of any dtype; values are cast to it
        :param num_threads: how many threads may work on it
        :raises CorruptPayload: if a payload is damaged, or a slot has not the payloads of an item; ``index`` is the
            position of the slot
        """
        if not out.flags.c_contiguous:
            raise ValueError("out must be C-contiguous, so that payloads can be decoded in place")
        if out.dtype != self.dtype:
            stored = np.empty(out.shape, dtype=self.dtype)
            self.decode_into(slots, stored, num_threads)
            out[...] = stored
            return
        if not len(slots):
            return
        if not isinstance(slots, np.ndarray):
            slots = np.fromiter(slots, dtype=object, count=len(slots))
        layout = self.layout  # once: another thread may find it meanwhile
        n_frames = 1 if layout is None else layout.n_frames
        if self.store is not None and slots.dtype != object:
            if isinstance(self.codec, TrainableCodec) and (gathered := self.store.gather(slots, n_frames)):
                self._decode_gathered(gathered, layout, out, num_threads)
                return
            slots = self.store.load(slots)
        if isinstance(self.codec, TrainableCodec) and (gathered := gather(slots, n_frames)):
            self._decode_gathered(gathered, layout, out, num_threads)
            return
        # Codecs that do not learn, and what is rare: unwritten slots among written ones, items from before the layout
        # was found.
        listed = slots.tolist()
        kind = self._kind_of_all(listed, n_frames)
        if kind is not None:
            self._decode_kind(kind, slots, layout, out, num_threads)
            return
        kinds = [self._kind(slot, n_frames, position) for position, slot in enumerate(listed)]
        for kind in set(kinds):
            positions = [position for position, other in enumerate(kinds) if other is kind]
            is_all = len(positions) == len(slots)
            part = out if is_all else np.empty((len(positions), *out.shape[1:]), dtype=out.dtype)
            try:
                self._decode_kind(kind, slots if is_all else slots[positions], layout, part, num_threads)
            except CorruptPayload as error:
                raise CorruptPayload(error.reason, positions[error.index]) from error
            if not is_all:
                out[positions] = part

    def _kind_of_all(self, slots: list[Slot], n_frames: int) -> Kind | None:
        """Return the kind of slots that a codec wrote which does not learn, ``None`` if they are not all of one."""
        if self._learns:
            return None
        types = {*map(type, slots)}
        if types == {bytes}:
            return Kind.WHOLE
        if types != {tuple} or {*map(len, slots)} != {n_frames}:  # type: ignore[arg-type]
            return None
        are_payloads = {*map(type, chain.from_iterable(slots))} == {bytes}  # type: ignore[arg-type]
        return Kind.FRAMES if are_payloads else None

    def _kind(self, slot: Slot, n_frames: int, position: int) -> Kind:
        """Return how a slot is to be read.

        Kernels read as many payloads as the layout has frames, so this is where slots with more or fewer are found.

        :raises CorruptPayload: if it has not the payloads that an item has, or other codecs wrote them
        """
        if slot is None:
            return Kind.UNWRITTEN
        if type(slot) is bytes:
            return Kind.WHOLE
        if type(slot) is not tuple:
            raise CorruptPayload(f"a slot cannot be {type(slot).__name__}", position)
        writers = [part for part in slot if type(part) is not bytes]
        if not self._learns:
            if writers:
                raise CorruptPayload(f"it holds {writers[0]!r}, and the codec of its array is {self.codec!r}", position)
        elif not writers or type(slot[0]) is bytes:
            raise CorruptPayload("it does not say which codec wrote its payloads", position)
        elif len(slot) == 2 and len(writers) == 1:
            return Kind.WHOLE
        n_payloads = len(slot) - len(writers)
        if n_payloads != n_frames:
            raise CorruptPayload(f"it has {n_payloads} payloads, and items have {n_frames} frames", position)
        return Kind.FRAMES

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "store": None}  # copies and pickles are in memory

    def _decode_kind(
        self, kind: Kind, slots: NDArray[Any], layout: FrameLayout | None, out: NDArray[Any], num_threads: int
    ) -> None:
        if kind is Kind.UNWRITTEN:
            out[...] = 0  # as in SB3, what was never written reads as zeros
            return
        if kind is Kind.WHOLE:
            layout = None
        codec = self.codec
        if isinstance(codec, TrainableCodec):
            gathered = gather_in_python(slots, codec, 1 if layout is None else layout.n_frames)
            self._decode_gathered(gathered, layout, out, num_threads)
            return
        payloads = slots.tolist() if type(slots[0]) is bytes else list(chain.from_iterable(slots))

        def decode(start: int, end: int, frames: NDArray[Any]) -> None:
            codec.decode_into(payloads[start:end], frames[start:end])

        self._decode_frames(decode, layout, out, num_threads)

    def _decode_gathered(
        self, gathered: PayloadBatch, layout: FrameLayout | None, out: NDArray[Any], num_threads: int
    ) -> None:
        for number, codec in enumerate(gathered.codecs):
            if type(codec) is not type(self.codec):
                position = int((gathered.payloads.writers == number).argmax()) // gathered.n_frames
                raise CorruptPayload(f"{codec!r} wrote it, and the codec of its array is {self.codec!r}", position)
        before: PayloadBatch | None = recall(self)

        def decode(start: int, end: int, frames: NDArray[Any]) -> None:
            gathered.decode(start, end, frames, before)

        gathered.frames = self._decode_frames(decode, layout, out, num_threads)
        remember(self, gathered)

    def _decode_frames(
        self, decode: Decoder, layout: FrameLayout | None, out: NDArray[Any], num_threads: int
    ) -> NDArray[Any]:
        """Decode the frames of slots of one kind, in parallel, and put them together to items; return the frames."""
        n_frames = 1 if layout is None else layout.n_frames
        frames, in_place = out, True
        if layout is not None:
            # Frames of the first axis lie one after the other in an item already.
            in_place = layout.axis == 0
            shape = (len(out) * n_frames, *layout.frame_shape)
            frames = out.reshape(shape) if in_place else np.empty(shape, out.dtype)

        def decode_part(start: int, end: int) -> None:
            try:
                decode(start, end, frames)
            except CorruptPayload as error:
                raise CorruptPayload(error.reason, (start + error.index) // n_frames) from error

        n_chunks = min(num_threads, out.nbytes // MIN_CHUNK_NBYTES) if self.codec.is_parallel else 1
        in_chunks(decode_part, len(frames), n_chunks)
        if layout is not None and not in_place:
            stacks = layout.split(out)  # a view: (n, n_frames, *frame_shape)
            stacks[...] = frames.reshape(stacks.shape)
        return frames


class Kind(Enum):
    """How a slot is to be read."""

    UNWRITTEN = auto()
    WHOLE = auto()
    FRAMES = auto()


def slot_n_frames(slot: Slot) -> int:
    """Return how many payloads a slot has."""
    if type(slot) is not tuple:
        return 0 if slot is None else 1
    return [*map(type, slot)].count(bytes)


def pack_slot(codecs: Sequence[TrainableCodec], payloads: Sequence[bytes]) -> tuple[Any, ...]:
    """Return the slot of which :func:`~sb3_compressed.arrays.payload_batch.unpack_slot` gives these."""
    parts: list[Any] = []
    previous = None
    for codec, payload in zip(codecs, payloads, strict=True):
        parts += [payload] if codec is previous else [codec, payload]
        previous = codec
    return tuple(parts)

"""``SlotStore``: the interface between encoding and decoding, and the format of slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from sb3_compressed.arrays.codec_handle import CodecHandle, codec_of, handle_of
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_estimate import MemoryEstimate
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import Codec, TrainableCodec

__all__ = [
    "AcceptedCodec",
    "Slot",
    "SlotStore",
    "accepted_codec",
    "are_equal_slots",
    "pack_slot",
    "slot_n_frames",
    "slots_with_handles",
    "unpack_slot",
    "with_handles",
]

Slot = bytes | tuple[Any, ...] | None
"""One encoded item.

- ``bytes``: the payload of a whole item;
- a tuple: the payloads of its frames, in the order of the stack. With a trainable codec, the handle of each codec
  precedes the payloads that it wrote: ``(handle, p0, p1, p2, p3)``, or ``(older, p0, p1, newer, p2, p3)`` just after
  the codec was trained. A handle and one payload encode a whole item;
- ``None``: not written yet.
"""

AcceptedCodec = Codec | type[TrainableCodec]
"""The codec that wrote the payloads of a store; if it is trainable, its class."""


def accepted_codec(codec: Codec) -> AcceptedCodec:
    """Return what a store keeps: of a trainable codec its class, so that the codec is freed with its last payload."""
    return type(codec) if isinstance(codec, TrainableCodec) else codec


class SlotStore(Protocol):
    """Stores slots. Tables ``(rows, n_envs)`` have one reference to a slot for each item.

    What a reference is depends on the store: a Python object, an address in a file. Code outside of a store only copies
    and compares references; equal ones refer to equal slots.

    :ivar unwritten: the reference to a slot that was never written, an array without axes
    """

    unwritten: NDArray[Any]

    @property
    def codec(self) -> AcceptedCodec | None:
        """The codec, or class of codecs, whose payloads are accepted; ``None`` for every trainable codec."""
        ...

    def new_table(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a table of unwritten slots."""
        ...

    def write(self, slots: Sequence[Slot]) -> NDArray[Any]:
        """Store slots and return references to them, ``(n,)``; none is stored if this raises."""
        ...

    def read(
        self, references: NDArray[Any], layout: FrameLayout | None, out: NDArray[Any], num_threads: int = 1
    ) -> None:
        """Decode slots.

        :param references: ``(n,)``
        :param layout: how items are divided into frames; ``None`` if they are not
        :param out: C-contiguous array ``(n, *item_shape)`` of the dtype that frames were encoded in
        :param num_threads: the number of threads that may decode
        :raises CorruptPayload: as :meth:`gather`
        """
        ...

    def gather(self, references: NDArray[Any], n_frames: int) -> PayloadBatch:
        """Return the payloads of slots.

        :param references: ``(n,)``, which must not change during the call
        :param n_frames: the number of frames of an item; whole items and unwritten ones are allowed among them
        :raises CorruptPayload: if one is damaged, has another number of payloads, or another codec wrote it; ``index``
            is its position
        """
        ...

    def load(self, references: NDArray[Any]) -> NDArray[Any]:
        """Return slots as an object array ``(n,)``; payloads that they share are the same objects.

        :raises CorruptPayload: if one is damaged; ``index`` is its position
        """
        ...

    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory that tables and the slots they refer to take, in bytes; shared objects count once."""
        ...

    def codecs(self, *tables: NDArray[Any]) -> Iterable[TrainableCodec]:
        """Return the different trained codecs that tables keep in memory."""
        ...

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Estimate the memory of tables from some of their rows, see :func:`~.memory_estimate.estimate_memory`."""
        ...


def slot_n_frames(slot: Slot) -> int:
    """Return the number of payloads of a slot."""
    if type(slot) is not tuple:
        return 0 if slot is None else 1
    return [*map(type, slot)].count(bytes)


def pack_slot(codecs: Sequence[CodecHandle], payloads: Sequence[bytes]) -> tuple[Any, ...]:
    """Return the slot from which :func:`unpack_slot` returns these."""
    parts: list[Any] = []
    previous = None
    for codec, payload in zip(codecs, payloads, strict=True):
        parts += [payload] if codec is previous else [codec, payload]
        previous = codec
    return tuple(parts)


def unpack_slot(slot: Any) -> tuple[Sequence[CodecHandle], Sequence[bytes]]:
    """Return the handle of the codec of each payload of a slot, and the payloads."""
    codec: CodecHandle = slot[0]
    codecs: list[CodecHandle] = []
    payloads: list[bytes] = []
    for part in slot:
        if type(part) is bytes:
            payloads.append(part)
            codecs.append(codec)
        else:
            codec = part
    return codecs, payloads


def are_equal_slots(slot: Slot, other: Slot) -> bool:
    """Return whether slots have the same payloads by equal codecs, so that their items are equal.

    Different payloads may decode to equal items, too; this is not found.
    """
    if type(slot) is not tuple or type(other) is not tuple:
        return slot is other or (type(slot) is type(other) is bytes and slot == other)
    return len(slot) == len(other) and all(mine is yours or mine == yours for mine, yours in zip(slot, other))


def with_handles(slot: Slot) -> Slot:
    """Return a slot of a copy or a pickle with the handles that :func:`handle_of` returns.

    A deep copy contains copies of handles, and a pickle of version 0.2 contains codecs.
    """
    if type(slot) is not tuple:
        return slot
    codecs = [part if isinstance(part, TrainableCodec) else codec_of(part) for part in slot]
    return tuple(
        handle_of(codec) if isinstance(codec, TrainableCodec) else part
        for part, codec in zip(slot, codecs, strict=True)
    )


def slots_with_handles(slots: Sequence[Slot]) -> Sequence[Slot]:
    """Return the slots of a pickle, converted by :func:`with_handles` if it is of version 0.2."""
    first: Any = next((slot for slot in slots if type(slot) is tuple), (None,))
    if not isinstance(first[0], TrainableCodec):
        return slots
    converted = {id(slot): with_handles(slot) for slot in {id(slot): slot for slot in slots}.values()}
    return [converted[id(slot)] for slot in slots]

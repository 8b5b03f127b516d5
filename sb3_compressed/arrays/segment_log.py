"""``SegmentLog``: segments of slots and payloads, and the tables that refer to them, which keep segments."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol
from weakref import WeakSet, ref

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.slot_format import CLAIM, DAMAGED_PAYLOAD, INVALID_SLOT, SEGMENT, SLOT_HEADER
from sb3_compressed.codecs import Codec, TrainableCodec

__all__ = ["REFERENCE", "UNWRITTEN", "Claim", "KeptSlots", "SegmentLog", "SlotSegment", "segment_table"]

#: The dtype of addresses.
REFERENCE = np.dtype(np.int64)
#: The reference to a slot that was never written, an array without axes.
UNWRITTEN = np.array(0, REFERENCE)
#: Dead weak references that may be listed before the list is pruned.
MAX_DEAD_TABLES = 64


class SlotSegment(Protocol):
    """A part of a log, which is only appended to."""

    @property
    def number(self) -> int:
        """Its number in the log."""
        ...

    @property
    def id(self) -> int:
        """A random number, with which the seeds of checksums are XORed."""
        ...

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """Its memory, which may be replaced by a larger copy."""
        ...

    @property
    def next_offset(self) -> int:
        """Where the next bytes will be appended."""
        ...


def segment_table(segments: Iterable[tuple[SlotSegment, NDArray[np.uint8]]], checksum_nbytes: int) -> NDArray[Any]:
    """Return segments as kernels read them, sorted by their numbers.

    :param segments: each with its bytes, which must live as long as kernels read them
    :param checksum_nbytes: that of their log
    :return: records :data:`~.slot_format.SEGMENT`, ``(n,)``
    """
    rows = [(data.ctypes.data, data.size, segment.id, segment.number, checksum_nbytes) for segment, data in segments]
    return np.array(sorted(rows, key=lambda row: row[3]), SEGMENT)


class KeptSlots:
    """A block in which a log neither frees nor moves slots, not even in a handler of a signal that interrupts it.

    References are valid in it that no table has. An object that is not used as a block keeps slots as long as it lives.

    :param keepers: those of the log
    """

    def __init__(self, keepers: WeakSet[Any]) -> None:
        self._keepers = keepers
        keepers.add(self)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._keepers.discard(self)


class Claim(NamedTuple):
    """Memory for the next slots and payloads of a log, which nothing else is written to.

    :param segment: the segment that they are appended to
    :param offset: where they begin in it
    :param room: the memory, ``(nbytes,)``
    """

    segment: SlotSegment
    offset: int
    room: NDArray[np.uint8]

    def record(self, checksum_nbytes: int) -> NDArray[Any]:
        """Return it as kernels write to it, ``(1,)`` of :data:`~.slot_format.CLAIM`.

        :param checksum_nbytes: that of the log
        """
        segment = segment_table([(self.segment, self.segment.bytes)], checksum_nbytes)[0]
        return np.array([(segment, self.offset, self.room.ctypes.data, self.room.size)], CLAIM)


class SegmentLog(ABC):
    """Segments that slots and payloads are appended to, and the tables that refer to them.

    Tables ``(rows, n_envs)`` have one reference to a slot for each item: its address in the log. Equal references refer
    to equal slots.

    :cvar checksum_nbytes: the bytes of the checksum with which each part begins, which is verified; 0 for none
    :cvar is_in_memory: whether the slots are in memory, where copies and pickles share or contain them
    :cvar is_on_device: whether they are on a device, which decodes batches to tensors
    :ivar segments: the open segments, by number
    :ivar last: the last segment
    :ivar n_overwritten: references of tables that were overwritten since :meth:`free_unused` was called last
    :ivar n_until_free: how many may be, until it is worth calling it again
    """

    checksum_nbytes: ClassVar[int]
    is_in_memory: ClassVar[bool]
    is_on_device: ClassVar[bool] = False
    segments: Mapping[int, SlotSegment]
    last: SlotSegment
    n_overwritten: int = 0
    n_until_free: float = math.inf

    def __init__(self) -> None:
        self._keepers: WeakSet[Any] = WeakSet()
        #: The tables by their ids.
        self._tables: dict[int, ref[NDArray[np.int64]]] = {}
        self._n_live = 0

    @property
    def mapped_segments(self) -> Mapping[int, SlotSegment]:
        """The segments whose bytes are in the memory of the process, by number."""
        return self.segments

    @abstractmethod
    def segment(self, number: int) -> SlotSegment:
        """Return a segment, which is opened if necessary; raise ``CorruptStorage`` if it is missing or damaged."""

    @abstractmethod
    def name(self, number: int) -> str:
        """Return the name of a segment, for messages."""

    @abstractmethod
    def segment_to_write(self) -> SlotSegment:
        """Return the segment to append to, which is begun if necessary."""

    @abstractmethod
    def claim(self, nbytes: int) -> Claim:
        """Return memory for the next slots and payloads of the segment to append to, which is begun if necessary.

        A handler of a signal may append others before :meth:`append_claimed` is called. After an error, the memory
        stays unused.

        :param nbytes: how much is needed at most
        """

    @abstractmethod
    def append_claimed(self, claim: Claim, nbytes: int, copy_nbytes: int = 0) -> None:
        """Append slots and payloads that were written to claimed memory.

        :param nbytes: how much of it was used, 0 to return it
        :param copy_nbytes: if they are copies of a row that is continued, the bytes of all copies so far: the segment
            is not full before it has several times as many
        """

    @abstractmethod
    def append_codec(self, codec: Codec) -> int:
        """Store a codec in the last segment, and return its offset there, or its number in the log; never 0."""

    @abstractmethod
    def codec_at(self, number: int, offset: int) -> Codec:
        """Return the codec of a segment by what :meth:`append_codec` returned; raise ``CorruptStorage`` without one."""

    def count_overwritten(self, n_references: int) -> None:
        """Count references of tables that are overwritten next; if much may be unused by now, free it."""
        if self.n_overwritten >= self.n_until_free:
            self.free_unused()
        self.n_overwritten += n_references

    def free_unused(self) -> None:
        """Free the memory of slots that no table refers to, so that other references become invalid.

        If most of the memory is unused, since rows were overwritten in another order than they were written, slots are
        moved together, and the references of tables change. While slots are kept, this does nothing, as on disk, where
        files that are not used are deleted at snapshots.
        """
        return

    @property
    def memory_nbytes(self) -> int:
        """The memory of all slots and codecs, in bytes; of a folder, they are on disk."""
        return 0

    def trained_codecs(self) -> list[TrainableCodec]:
        """Return the different trained codecs that it keeps in memory."""
        return []

    @property
    def device_nbytes(self) -> int:
        """The memory that it takes on a device, in bytes."""
        return 0

    def describe_damage(self, problem: int, number: int, offset: int, n_frames: int = 0) -> str:
        """Return a description of a problem that a kernel found.

        :param problem: :data:`~.slot_format.INVALID_SLOT`, :data:`~.slot_format.DAMAGED_SLOT` or
            :data:`~.slot_format.DAMAGED_PAYLOAD`
        :param number: the number of the segment
        :param offset: where the slot or payload begins
        :param n_frames: the number of payloads that a slot must have, unless it has one; 0 for any number
        """
        segment = self.segment(number)
        part = f"{self.name(number)}, the {'payload' if problem == DAMAGED_PAYLOAD else 'slot'} at byte {offset}"
        if problem != INVALID_SLOT:
            return f"{part}, is {'damaged' if offset < len(segment.bytes) else 'beyond the end of the file'}"
        begin = offset + self.checksum_nbytes
        n_payloads = int.from_bytes(segment.bytes[begin : begin + SLOT_HEADER].tobytes(), "little")
        if n_frames and n_payloads not in (0, 1, n_frames):
            return f"it has {n_payloads} payloads, and items have {n_frames} frames"
        return f"{part}, is invalid"

    # -- tables ------------------------------------------------------------------------------------------------

    def new_table(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return a table of unwritten slots, which keeps the slots that it refers to as long as it lives."""
        table = np.zeros(shape, REFERENCE)
        self.watch(table)
        return table

    def watch(self, table: NDArray[np.int64]) -> None:
        """Keep the segments of the slots that a table refers to as long as the table lives."""
        owner = table if table.base is None else table.base
        self._tables[id(owner)] = ref(owner)
        if len(self._tables) >= 2 * self._n_live + MAX_DEAD_TABLES:
            self._n_live = len(self.live_tables())

    def live_tables(self) -> list[NDArray[np.int64]]:
        """Return the tables that still live."""
        tables = []
        for key, each in [*self._tables.items()]:
            if (table := each()) is not None:
                tables.append(table)
            elif self._tables.get(key) is each:  # in place: this may interrupt :meth:`watch`
                del self._tables[key]
        return tables

    def keep_slots(self) -> KeptSlots:
        """Return a block in which nothing is freed or moved; see :class:`.KeptSlots`."""
        return KeptSlots(self._keepers)

    @property
    def keeps_slots(self) -> bool:
        """Whether there is a block of :meth:`keep_slots`."""
        return len(self._keepers) > 0

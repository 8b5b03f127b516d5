"""``MemoryLog``: the log in which buffers in memory keep their payloads, one after the other in large blocks.

A million small Python objects would take a third more memory than the payloads in them, and reading them would mean
following pointers. A ring buffer overwrites its oldest rows, so segments mostly become unused in the order
in which they were written.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec
from sb3_compressed.errors import CorruptStorage, StorageError

__all__ = ["MemoryLog", "MemorySegment"]

#: The bytes of a full segment: a sixteenth of the log, so that unused memory is little, within these bounds. Very large
#: logs have at most so many parts, since all tables are read when a segment is begun.
MIN_NBYTES, MAX_NBYTES, PARTS, MAX_PARTS = 1 << 20, 1 << 23, 16, 128
#: A segment has at least so many times the bytes of the copy with which it begins.
COPIES = 4
#: Dead weak references that may be listed before the list is pruned.
MAX_DEAD_TABLES = 64
#: Of a full segment, and of any: offsets have 32 bits.
MAX_FULL_NBYTES, MAX_SEGMENT_NBYTES = 1 << 30, 0xFFFFFFFF
#: Bytes that may be unused, besides as many as are used, before slots should be moved.
MAX_UNUSED_NBYTES = 1 << 20


class MemorySegment:
    """A block of memory that is only appended to.

    :param number: its number in the log, at least 1
    :param block: its memory, which is replaced by a larger block if more is appended
    """

    id = 0

    def __init__(self, number: int, block: NDArray[np.uint8]) -> None:
        self.number = number
        self.bytes = block
        self.next_offset = 0
        self.n_slots = np.zeros(1, np.int64)
        #: The codecs that wrote payloads in it, by their numbers in the log.
        self.codecs: dict[int, Codec] = {}

    def grow(self, nbytes: int) -> None:
        """Make the block larger; batches that are being decoded keep the old one."""
        grown = np.empty(nbytes, np.uint8)
        grown[: self.next_offset] = self.bytes[: self.next_offset]
        self.bytes = grown

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "bytes": self.bytes[: self.next_offset]}


class MemoryLog:
    """Segments in memory; see :class:`~.slot_log.SlotLog`.

    A full segment is freed by :meth:`free_unused` once no table refers to one of its slots.
    """

    checksum_nbytes = 0
    #: The last segment, once one was begun.
    last: MemorySegment

    def __init__(self) -> None:
        self.segments: dict[int, MemorySegment] = {}
        #: Whether a segment was begun since the last call of :meth:`free_unused`.
        self.has_grown = False
        #: The segment to append to, ``None`` if one has to be begun: others may be parts of copies, too.
        self._open: MemorySegment | None = None
        self._n_begun = self._n_codecs = 0
        #: The size at which the open segment is full; it has an eighth more room.
        self._full_at = 0
        self._tables: list[weakref.ref[NDArray[np.int64]]] = []
        self._n_live = 0
        #: The most references that tables have had to the slots of each segment, by its number.
        self._most_references: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """The bytes that were appended to its segments."""
        return sum(segment.next_offset for segment in [*self.segments.values()])

    def name(self, number: int) -> str:
        """Return the name of a segment, for messages."""
        return f"segment {number} in memory"

    def segment(self, number: int) -> MemorySegment:
        """Return a segment; raise ``CorruptStorage`` if it is missing."""
        try:
            return self.segments[number]
        except KeyError:
            raise CorruptStorage(f"{self.name(number)} is missing") from None

    @property
    def mapped_segments(self) -> Mapping[int, MemorySegment]:
        """The segments whose bytes are in the memory of the process."""
        return self.segments

    def new_segment(self, number: int, nbytes: int) -> MemorySegment:
        """Return a segment to append to."""
        return MemorySegment(number, np.empty(nbytes, np.uint8))

    def grow_last(self, nbytes: int) -> None:
        """Make the last segment larger."""
        self.last.grow(nbytes)

    def _begin_segment(self) -> MemorySegment:
        self.has_grown = True
        nbytes = self.nbytes
        self._full_at = min(max(nbytes // PARTS, MIN_NBYTES), max(nbytes // MAX_PARTS, MAX_NBYTES), MAX_FULL_NBYTES)
        segment = self.new_segment(self._n_begun + 1, self._full_at * 9 // 8)
        segments = {**self.segments, segment.number: segment}  # a copy of the log may have the old one
        # In one call, whatever interrupts this.
        self.__dict__.update(segments=segments, last=segment, _n_begun=segment.number, _open=segment)
        return segment

    def reserve(self, nbytes: int = 0) -> tuple[MemorySegment, NDArray[np.uint8], int]:
        """Return memory for the next bytes of the last segment; see :meth:`.SlotLog.reserve`."""
        segment = self._open or self._begin_segment()
        begin = segment.next_offset
        if begin + nbytes > segment.bytes.size:
            if begin + nbytes > MAX_SEGMENT_NBYTES:
                self._open = None
                raise StorageError(f"{nbytes} bytes of payloads are too many for one call: split it into smaller parts")
            self.grow_last(max(begin + nbytes, 2 * segment.bytes.size))
        return segment, segment.bytes, begin

    def append_reserved(self, nbytes: int, *, is_copy: bool = False) -> None:
        """Append what was written to reserved memory; see :meth:`.SlotLog.append_reserved`."""
        segment = self.last
        segment.next_offset += nbytes
        if is_copy:  # of the last row: of many environments, it may be larger than what else a segment has
            self._full_at = max(self._full_at, min(COPIES * nbytes, MAX_FULL_NBYTES))
        else:  # never between a copy and what continues it
            next_row_end = segment.next_offset + nbytes
            if segment.next_offset >= self._full_at or next_row_end > max(self._full_at, segment.bytes.size):
                self._open = None  # before another row makes the block twice as large

    def append_codec(self, codec: Codec) -> int:
        """Refer to a codec from the last segment, and return its number in the log, which is not 0."""
        known = {id(each): number for number, each in self.codecs.items()}
        number = known.get(id(codec), 0)
        if not number:
            number = self._n_codecs = self._n_codecs + 1
        self.last.codecs[number] = codec
        return number

    @property
    def codecs(self) -> dict[int, Codec]:
        """The codecs of all segments by their numbers."""
        return {number: codec for segment in self.segments.values() for number, codec in segment.codecs.items()}

    def codec_at(self, number: int, offset: int) -> Codec:
        """Return the codec with a number."""
        try:
            return self.codecs[offset]
        except KeyError:
            raise CorruptStorage(f"{self.name(number)} has no codec {offset}") from None

    # -- tables ----------------------------------------------------------------------------------------------

    def watch(self, table: NDArray[np.int64]) -> None:
        """Keep the segments of the slots that a table refers to as long as the table lives."""
        owner = table if table.base is None else table.base
        self._tables.append(weakref.ref(owner))
        if len(self._tables) >= 2 * self._n_live + MAX_DEAD_TABLES:
            self._n_live = len(self.live_tables())

    def live_tables(self) -> list[NDArray[np.int64]]:
        """Return the tables that still live."""
        tables = {id(table): table for each in self._tables if (table := each()) is not None}
        self._tables = [weakref.ref(table) for table in tables.values()]
        return [*tables.values()]

    def free_unused(self) -> list[int]:
        """Free the segments that no table refers to, except for the last one.

        :return: the numbers of mostly unused segments, if these are most of the log: their slots should be moved
        """
        counts = self._slot_counts()
        self._keep_segments(np.flatnonzero(counts).tolist())
        most = self._most_references
        self._most_references = {n: max(most.get(n, 0), int(counts[n])) for n in self.segments}
        self.has_grown = False
        shares = {number: self._used_share(number, counts) for number in self.segments}
        used_nbytes = sum(share * self.segments[number].next_offset for number, share in shares.items())
        if self.nbytes <= 2 * used_nbytes + MAX_UNUSED_NBYTES:
            return []
        return [number for number, share in shares.items() if share < 0.5]

    def _used_share(self, number: int, counts: NDArray[np.int64]) -> float:
        """Return the fraction of a segment's slots that tables still refer to."""
        # Most slots have two references, from observations and next observations.
        most = max(self._most_references.get(number, 0), int(self.segments[number].n_slots[0]))
        return min(int(counts[number]) / most, 1.0) if most else 1.0

    def close_last(self) -> None:
        """Append no more to the last segment."""
        self._open = None

    def close_if_large(self) -> None:
        """Append no more to the last segment unless it is small."""
        if self.segments and self.last.next_offset >= MIN_NBYTES:
            self._open = None

    def _keep_segments(self, numbers: Collection[int]) -> None:
        """Free all segments but some and the last one."""
        kept = {*numbers, self._n_begun}
        self.segments = {number: segment for number, segment in self.segments.items() if number in kept}

    def _slot_counts(self) -> NDArray[np.int64]:
        """Return how often tables refer to slots of each segment, by its number."""
        counts = np.zeros(self._n_begun + 1, np.int64)
        for table in self.live_tables():
            counts += np.bincount(table.reshape(-1) >> 32, minlength=len(counts))
        return counts

    # -- copies ----------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryLog:
        # Both logs have the same segments, to which neither appends any more.
        other = memo[id(self)] = MemoryLog()
        other.segments, other._n_begun, other._n_codecs = self.segments, self._n_begun, self._n_codecs
        if self.segments:
            other.last = self.last
        other._most_references = self._most_references
        self._open = None
        return other

    def __getstate__(self) -> dict[str, Any]:
        self.free_unused()
        return {**self.__dict__, "_open": None, "_tables": []}

"""``MemoryLog``: the log in which buffers in memory keep their payloads, one after the other in large blocks.

A million small Python objects would take a third more memory than the payloads in them, and reading them would mean
following pointers. A ring buffer overwrites its oldest rows, so segments mostly become unused in the order
in which they were written.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.compaction import SegmentUsage, count_references, measure_usage
from sb3_compressed.arrays.segment_log import Claim
from sb3_compressed.arrays.segment_memory import keep_block, new_block
from sb3_compressed.arrays.slot_copying import SlotCopier, copying_kernels
from sb3_compressed.arrays.slot_format import OFFSET
from sb3_compressed.arrays.slot_log import NO_ADDRESSES, SlotLog
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.common.memory import return_freed_memory
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError

__all__ = ["MemoryLog", "MemorySegment"]

#: The bytes of a full segment: a sixteenth of the log, so that unused memory is little, within these bounds. Very large
#: logs have at most so many parts, since all tables are read when a segment is begun.
MIN_NBYTES, MAX_NBYTES, PARTS, MAX_PARTS = 1 << 20, 1 << 23, 16, 128
#: A segment has at least so many times the bytes of the copy with which it begins.
COPIES = 4
#: Of a full segment, and of any: offsets have 32 bits.
MAX_FULL_NBYTES, MAX_SEGMENT_NBYTES = 1 << 30, 0xFFFFFFFF
#: Bytes that may be unused, besides as many as are used, before slots are moved.
MAX_UNUSED_NBYTES = 1 << 20
#: Bytes that are moved before the segments that contained them are freed.
MOVED_NBYTES = 1 << 25
#: How often all tables are read while all their references are overwritten, besides once for each segment, but not
#: before so many are.
MIN_CHECKS, MAX_CHECKS, MIN_CHECKED = 8, 64, 1024


class MemorySegment:
    """A block of memory that is only appended to.

    :param number: its number in the log, at least 1
    :param block: its memory, which is replaced by a larger block if more is appended
    """

    id = 0
    #: Whether it is in the heap of the C library: if it was unpickled.
    is_in_heap = False

    def __init__(self, number: int, block: NDArray[np.uint8]) -> None:
        self.number = number
        self.bytes = block
        self.next_offset = 0
        #: The codecs that wrote payloads in it, by their numbers in the log.
        self.codecs: dict[int, Codec] = {}

    def grow(self, nbytes: int) -> None:
        """Make the block larger; batches that are being decoded keep the old one."""
        grown = new_block(nbytes)
        grown[: self.next_offset] = self.bytes[: self.next_offset]
        self.bytes = grown

    def release(self) -> None:
        """Let its memory be reused as soon as nothing refers to it, which a copy of the log may still do."""
        if not self.is_in_heap:
            keep_block(self.bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "bytes": self.bytes[: self.next_offset]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, is_in_heap=True)


class MemoryLog(SlotLog):
    """Segments in memory.

    Segments are memory maps of their own, of which a part at the end that is not used takes no memory.
    """

    checksum_nbytes = 0
    is_in_memory = True
    segments: dict[int, MemorySegment]
    #: The last segment, once one was begun.
    last: MemorySegment

    def __init__(self) -> None:
        super().__init__()
        self.segments = {}
        #: The segment to append to, ``None`` if one has to be begun: others may be parts of copies, too.
        self._open: MemorySegment | None = None
        self._n_begun = self._n_codecs = 0
        #: The size at which the open segment is full, and the most that was appended to it at once.
        self._full_at = self._largest = 0
        #: What was used of each segment when :meth:`free_unused` was called last.
        self._usage: dict[int, SegmentUsage] = {}
        #: The numbers of segments that were unpickled, which are in the heap of the C library.
        self.unpickled: set[int] = set()
        self.n_until_free = 0

    @property
    def nbytes(self) -> int:
        """The bytes that were appended to its segments."""
        return sum(segment.next_offset for segment in [*self.segments.values()])

    @property
    def memory_nbytes(self) -> int:
        """The memory of all slots and codecs, in bytes."""
        return self.nbytes + sum(codec.nbytes for codec in self.trained_codecs())

    def trained_codecs(self) -> list[TrainableCodec]:
        """Return the different trained codecs of its payloads."""
        return [codec for codec in self.codecs.values() if isinstance(codec, TrainableCodec)]

    def name(self, number: int) -> str:
        """Return the name of a segment, for messages."""
        return f"segment {number} in memory"

    def segment(self, number: int) -> MemorySegment:
        """Return a segment; raise ``CorruptStorage`` if it is missing."""
        try:
            return self.segments[number]
        except KeyError:
            raise CorruptStorage(f"{self.name(number)} is missing") from None

    def new_segment(self, number: int, nbytes: int) -> MemorySegment:
        """Return a segment to append to."""
        return MemorySegment(number, new_block(nbytes))

    def grow_last(self, nbytes: int) -> None:
        """Make the last segment larger."""
        self.last.grow(nbytes)

    def _begin_segment(self) -> MemorySegment:
        total = self.nbytes
        full_at = min(max(total // PARTS, MIN_NBYTES), max(total // MAX_PARTS, MAX_NBYTES), MAX_FULL_NBYTES)
        full_at = 1 << full_at.bit_length() - 1  # so that a log that slowly grows reuses what it frees
        # With room for the last call, which begins before it is full.
        nbytes = min(full_at + max(full_at // 8, self._largest), MAX_SEGMENT_NBYTES)
        segment = self.new_segment(self._n_begun + 1, nbytes)
        segments = {**self.segments, segment.number: segment}  # a copy of the log may have the old one
        # In one call, whatever interrupts this.
        self.__dict__.update(
            segments=segments, last=segment, _n_begun=segment.number, _open=segment, _full_at=full_at, _largest=0,
            n_until_free=0,
        )  # fmt: skip
        return segment

    def segment_to_write(self) -> MemorySegment:
        """Return the segment to append to; see :meth:`.SegmentLog.segment_to_write`."""
        return self._open or self._begin_segment()

    def claim(self, nbytes: int) -> Claim:
        """Return memory that nothing else is written to; see :meth:`.SegmentLog.claim`."""
        segment = self._open or self._begin_segment()
        begin = segment.next_offset
        if begin + nbytes > segment.bytes.size:
            self._make_room(nbytes)
            return self.claim(nbytes)  # a handler of a signal may have appended to it meanwhile
        segment.next_offset = begin + nbytes  # no function was called since it was read, so no handler either
        return Claim(segment, begin, segment.bytes[begin : begin + nbytes])

    def _make_room(self, nbytes: int) -> None:
        """Make the last segment larger.

        :raises StorageError: if it would be larger than a segment can be
        """
        needed = self.last.next_offset + nbytes
        if needed > MAX_SEGMENT_NBYTES:
            self._open = None
            raise StorageError(f"{nbytes} bytes of payloads are too many for one call: split it into smaller parts")
        self.grow_last(min(max(needed, 2 * self.last.bytes.size), MAX_SEGMENT_NBYTES))

    def append_claimed(self, claim: Claim, nbytes: int, copy_nbytes: int = 0) -> None:
        """Append what was written to claimed memory; see :meth:`.SegmentLog.append_claimed`."""
        segment, (_, offset, room) = self.segments[claim.segment.number], claim
        if room.base is not segment.bytes:  # a handler of a signal has made it larger
            segment.bytes[offset : offset + nbytes] = room[:nbytes]
        if segment.next_offset == offset + room.size:  # else a handler of a signal has appended to it, too
            segment.next_offset = offset + nbytes
        if segment is not self.last or not nbytes:
            return
        if nbytes > self._largest:
            self._largest = nbytes
        if copy_nbytes:  # of the last row: of many environments, it may be larger than what else a segment has
            self._full_at = max(self._full_at, min(COPIES * copy_nbytes, MAX_FULL_NBYTES))
        elif segment.next_offset >= self._full_at:  # never between a copy and what continues it
            self._open = None

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
        # Lists, since a handler of a signal may add to them meanwhile.
        return dict(pair for segment in self.segments.values() for pair in [*segment.codecs.items()])

    def codec_at(self, number: int, offset: int) -> Codec:
        """Return the codec with a number."""
        try:
            return self.codecs[offset]
        except KeyError:
            raise CorruptStorage(f"{self.name(number)} has no codec {offset}") from None

    # -- freeing ---------------------------------------------------------------------------------------------

    def free_unused(self) -> None:
        """Free slots that no table refers to, and move the others together; see :meth:`.SegmentLog.free_unused`."""
        if self.keeps_slots:
            return
        with self.keep_slots():
            usage = self._usage = self._measured(self._free_segments())
            used_nbytes = sum(each.nbytes for each in usage.values())
            if self.nbytes > 2 * used_nbytes + MAX_UNUSED_NBYTES:
                self._move_slots([n for n, each in usage.items() if 2 * each.nbytes < self.segment(n).next_offset])
            self.n_overwritten, self.n_until_free = 0, self._n_until_worth(usage.values())
            self.drop_cached(self.segments)  # which keeps the memory of segments alive
            if freed := self.unpickled - self.segments.keys():
                self.unpickled -= freed
                return_freed_memory()

    def _free_segments(self) -> dict[int, SegmentUsage]:
        """Free the segments that no table refers to, except for the last one; return the references to the others."""
        counted = count_references(self._references(), [*self.segments])
        self._keep_segments([number for number, usage in counted.items() if usage.n_references])
        # Without those that a handler of a signal has begun meanwhile.
        return {number: usage for number, usage in counted.items() if number in self.segments}

    def _n_until_worth(self, usage: Collection[SegmentUsage]) -> int:
        """Return after how many references are overwritten much may be unused, which reading all tables is worth."""
        if self.nbytes <= MAX_UNUSED_NBYTES:
            return sys.maxsize  # until a segment is begun
        n_references = sum(each.n_references for each in usage)
        # Of the densest segment: a few rows of noise may be most of a log. In a segment, too.
        nbytes_each = max((each.nbytes / each.n_references for each in usage if each.n_references), default=1)
        n_worth = min(int(max(self._full_at, MAX_NBYTES) / nbytes_each), max(n_references // MIN_CHECKS, MIN_CHECKED))
        return max(n_worth, n_references // MAX_CHECKS)

    def _references(self) -> list[NDArray[np.int64]]:
        return [table.reshape(-1) for table in self.live_tables()]  # views, since tables are contiguous

    def _measured(self, counted: Mapping[int, SegmentUsage]) -> dict[int, SegmentUsage]:
        """Return how much of each segment is used; only if references to it have changed, its slots are read."""
        usage, sizes = {}, {}
        for number, each in counted.items():
            before = self._usage.get(number)
            if before is not None and before[:2] == each[:2]:
                usage[number] = before
            else:
                usage[number], sizes[number] = each, self.segments[number].next_offset
        for group in _groups(sizes):
            segments = [self.segment(number) for number in group]
            usage.update(measure_usage(self._references(), segments, counted))
        return usage

    def _move_slots(self, numbers: Sequence[int]) -> None:
        """Move the slots of some segments to new ones, those of a few segments at a time."""
        tables = self._references()
        self._begin_segment()  # the last one may be among them
        for group in _groups({number: self._usage[number].nbytes for number in numbers}):
            references = np.concatenate([NO_ADDRESSES, *[table[np.isin(table >> 32, group)] for table in tables]])
            # A damaged slot is of a forged pickle, whose segments stay as they are.
            with contextlib.suppress(CorruptPayload), SlotCopier(self, self, self._refer_to_codec) as copier:
                old, new = copier.copy_distinct(references)
                for table in tables:
                    copying_kernels().replace_references(table, old, new)
            left = {number for number, each in count_references(tables, group).items() if each.n_references}
            self._keep_segments((self.segments.keys() - group) | left)

    def _refer_to_codec(self, address: int) -> int:
        """Refer to a codec of the log from the last segment; return its number, or 0 for one that is not trained."""
        number = address & OFFSET
        return self.append_codec(self.codec_at(address >> 32, number)) if number else 0

    def _keep_segments(self, numbers: Collection[int]) -> None:
        """Free all segments but some and the last one."""
        kept = {*numbers, self._n_begun}
        freed = [segment for number, segment in self.segments.items() if number not in kept]
        self.segments = {number: segment for number, segment in self.segments.items() if number in kept}
        for segment in freed:
            segment.release()

    # -- copies ----------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryLog:
        # Both logs have the same segments, to which neither appends any more.
        other = memo[id(self)] = MemoryLog()
        other._restore(self.segments, self._n_begun, self._n_codecs)
        other._usage, other.unpickled = self._usage, {*self.unpickled}
        self._open = None
        return other

    def __getstate__(self) -> tuple[dict[int, MemorySegment], int, int]:
        if not self.keeps_slots:
            with self.keep_slots():
                self._free_segments()  # nothing is moved: a pickle may contain tables already
        return self.segments, self._n_begun, self._n_codecs

    def __setstate__(self, state: tuple[dict[int, MemorySegment], int, int]) -> None:
        MemoryLog.__init__(self)
        self._restore(*state)
        self.unpickled = {*self.segments}

    def _restore(self, segments: dict[int, MemorySegment], n_begun: int, n_codecs: int) -> None:
        """Use segments that are not appended to any more."""
        self.segments, self._n_begun, self._n_codecs = segments, n_begun, n_codecs
        if segments:
            self.last = segments[max(segments)]


def _groups(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Divide segments into groups, given the bytes to read or to move of each."""
    group: list[int] = []
    for number, nbytes in sizes.items():
        if group and sum(sizes[each] for each in group) + nbytes > MOVED_NBYTES:
            yield group
            group = []
        group.append(number)
    if group:
        yield group

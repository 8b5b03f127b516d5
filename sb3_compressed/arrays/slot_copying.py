"""``SlotCopier``: copies slots from a log to another one, or within one, as bytes.

Saving and loading, copies in memory, and moving slots out of segments of which little is used are all this.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.segment_log import SegmentLog, SlotSegment, segment_table
from sb3_compressed.arrays.slot_format import COPIED, NO_CODEC, NO_ROOM, OFFSET
from sb3_compressed.common.memory import mapped_memory
from sb3_compressed.errors import CorruptPayload, CorruptStorage

__all__ = ["SlotCopier", "copying_kernels"]

#: Bytes that are copied in one call, unless a slot has more: few, so that segments are hardly larger than planned.
CALL_NBYTES = 1 << 17
#: The most entries of the table of what was copied from a segment, each for 8 of its bytes.
MAX_ENTRIES = 1 << 22
ENTRY_NBYTES = 8
NO_CODECS = np.zeros((0, 2), np.int64)


@cache
def copying_kernels() -> ModuleType:
    """Import the kernels on first use: importing numba is slow."""
    from sb3_compressed.arrays import slot_copying_kernels

    return slot_copying_kernels


class SlotCopier:
    """Copies slots, and each payload once to a segment, however many slots refer to it.

    It remembers what it has copied from the segment that it read last, so that slots can be copied in several calls.
    Within its ``with`` block, neither log frees nor moves slots: nothing refers to the copies before the caller does.

    :param source: the log to read from; checksums are verified where it has them
    :param target: the log to append to
    :param codec_in_target: returns how payloads in the last segment of the target name a codec, given its address in
        the source, after writing it there if necessary; it raises ``CorruptStorage`` if the codec is not accepted
    :param is_copy: whether it copies a row that is continued; see :meth:`.SegmentLog.append_claimed`
    :param before_claim: is called before parts are appended; it may begin another segment of the target
    """

    def __init__(
        self,
        source: SegmentLog,
        target: SegmentLog,
        codec_in_target: Callable[[int], int],
        *,
        is_copy: bool = False,
        before_claim: Callable[[], None] = lambda: None,
    ) -> None:
        self._source, self._target = source, target
        self._codec_in_target, self._is_copy, self._before_claim = codec_in_target, is_copy, before_claim
        self._kept = source.keep_slots(), target.keep_slots()
        self._number = self._n_copied = 0  # the segment that was read last, and bytes that were copied to the target's
        self._target_segment: SlotSegment | None = None
        self._codecs, self._copied = NO_CODECS, _new_table(1)
        self._state = np.zeros(3, np.int64)

    def __enter__(self) -> SlotCopier:
        return self

    def __exit__(self, *error: object) -> None:
        for kept in self._kept:
            kept.__exit__()

    def copy(self, references: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copy slots to the end of the target.

        :param references: references to slots of the source, of any shape; 0 for slots that were never written
        :return: references to the copies, of the same shape
        :raises CorruptPayload: if one is damaged or of another codec; ``index`` is its position among them
        :raises OSError: if the target cannot be written
        """
        copies = references.flatten()
        copying_kernels().replace_references(copies, *self.copy_distinct(copies))
        return copies.reshape(references.shape)

    def copy_distinct(self, references: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Copy slots as :meth:`copy` does.

        :param references: references to slots of the source, ``(n,)``
        :return: the different ones, sorted and without 0, and references to their copies, ``(m,)`` each
        """
        distinct = np.unique(references)
        distinct = distinct[distinct != 0]
        copies = np.empty_like(distinct)
        # One segment after the other, in the order in which its slots were written.
        numbers = distinct >> 32
        bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(distinct)]
        first = 0
        try:
            for first, last in pairwise(bounds if len(distinct) else ()):
                self._copy_from_segment(int(numbers[first]), distinct[first:last], copies[first:last])
        except CorruptPayload as error:
            index = int(np.argmax(references == distinct[first + error.index]))
            raise CorruptPayload(error.reason, index) from error
        return distinct, copies

    def _copy_from_segment(self, number: int, slots: NDArray[np.int64], copies: NDArray[np.int64]) -> None:
        """Copy slots of one segment.

        :param slots: different references to them, ``(n,)``
        :param copies: receives references to the copies, ``(n,)``
        :raises CorruptPayload: as :meth:`copy`
        """
        try:
            segment = self._source.segment(number)
        except CorruptStorage as error:
            raise CorruptPayload(str(error), 0) from error
        data = segment.bytes  # a segment on a device may release its own
        source = segment_table([(segment, data)], self._source.checksum_nbytes)
        n_entries = min(1 << (data.size // ENTRY_NBYTES).bit_length(), MAX_ENTRIES)
        if number != self._number or n_entries > len(self._copied):
            self._number, self._codecs, self._copied = number, NO_CODECS, _new_table(n_entries)
        first = needed = 0
        while first < len(slots):
            self._before_claim()
            claim = self._target.claim(max(needed, CALL_NBYTES))
            if claim.segment is not self._target_segment:  # in which nothing was copied yet
                self._n_copied, self._codecs, self._copied = 0, NO_CODECS, _new_table(n_entries)
            self._target_segment = None  # until it is appended: after an error, nothing refers to what is not
            first = copying_kernels().copy_slots(
                slots, first, copies, source, self._codecs, claim.record(self._target.checksum_nbytes), self._copied,
                self._state,
            )  # fmt: skip
            nbytes, problem, detail = self._state.tolist()
            self._n_copied += nbytes
            self._target.append_claimed(claim, nbytes, self._n_copied if self._is_copy else 0)
            self._target_segment = claim.segment
            needed = detail if problem == NO_ROOM else 0
            if problem == NO_CODEC:
                self._add_codec(number, detail, slots, first)
            elif problem not in (COPIED, NO_ROOM):
                raise CorruptPayload(self._source.describe_damage(problem, number, detail), first)

    def _add_codec(self, number: int, codec: int, slots: NDArray[np.int64], index: int) -> None:
        """Find out how payloads in the target name a codec of a segment.

        :raises CorruptPayload: if it cannot be read or is not accepted, of the slot at an index
        """
        try:
            in_target = self._codec_in_target(number << 32 | codec)
        except CorruptStorage as error:
            slot = f"{self._source.name(number)}, the slot at byte {int(slots[index]) & OFFSET}"
            raise CorruptPayload(f"{slot}: {error}", index) from error
        self._codecs = np.append(self._codecs, [[codec, in_target]], axis=0)


def _new_table(n_entries: int) -> NDArray[np.uint32]:
    """Return a table of what was copied; memory maps are zeros, and what is not used of them takes none."""
    return mapped_memory(n_entries * ENTRY_NBYTES).view(np.uint32).reshape(n_entries, 2)

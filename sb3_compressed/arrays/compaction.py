"""What of a log in memory is used, and moving slots out of segments of which little is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.slot_log import SlotSegment

__all__ = ["SegmentUsage", "SlotCopier", "compaction_kernels", "count_references", "measure_usage"]

#: Each slot and each payload takes so many bytes at least.
MIN_PART_NBYTES = 8
#: Entries of a hash table besides those that are needed, such as for payloads that a slot refers to twice.
SPARE_KEYS = 256


class SegmentUsage(NamedTuple):
    """How much of a segment is used.

    :param n_references: the references of tables to its slots
    :param reference_sum: their sum, which wraps around: if both are as before, so are the references
    :param nbytes: the bytes of all slots that are referred to and of their payloads, each once
    :param n_parts: the number of these slots and payloads
    """

    n_references: int
    reference_sum: int
    nbytes: int = 0
    n_parts: int = 0


@cache
def compaction_kernels() -> ModuleType:
    """Import the kernels on first use: importing numba is slow."""
    from sb3_compressed.arrays import compaction_kernels

    return compaction_kernels


def count_references(tables: Sequence[NDArray[np.int64]], numbers: Sequence[int]) -> dict[int, SegmentUsage]:
    """Return the references to some segments, by their numbers; their bytes are not known yet.

    :param tables: references to slots, vectors
    :param numbers: the numbers of the segments
    """
    if not numbers:
        return {}
    first = min(numbers)
    counts = np.zeros((max(numbers) - first + 1, 2), np.int64)
    for table in tables:
        compaction_kernels().count_references(table, first, counts)
    return {number: SegmentUsage(*counts[number - first].tolist()) for number in numbers}


def measure_usage(
    tables: Sequence[NDArray[np.int64]], segments: Sequence[SlotSegment], counted: Mapping[int, SegmentUsage]
) -> dict[int, SegmentUsage]:
    """Return how much of some segments is used, by their numbers.

    :param tables: references to slots, vectors
    :param segments: the segments, whose bytes are in memory
    :param counted: what :func:`count_references` returned
    """
    rows = _table_of(segments)
    n_bits = rows[:, 1] // MIN_PART_NBYTES + 1
    rows[:, 2] = np.cumsum(n_bits) - n_bits
    marks, used = np.zeros(n_bits.sum() // 8 + 1, np.uint8), np.zeros((len(rows), 2), np.int64)
    for table in tables:
        compaction_kernels().measure_used(table, rows, marks, used)
    return {
        number: counted[number]._replace(nbytes=min(nbytes, size), n_parts=n_parts)
        for (_, size, _, number), (nbytes, n_parts) in zip(rows.tolist(), used.tolist(), strict=True)
    }


def _table_of(segments: Sequence[SlotSegment]) -> NDArray[np.int64]:
    """Return the table of segments that the kernels read."""
    rows = [(segment.bytes.ctypes.data, segment.next_offset, 0, segment.number) for segment in segments]
    return np.array(sorted(rows, key=lambda row: row[-1]), np.int64).reshape(-1, 4)


class SlotCopier:
    """Copies slots from some segments to others, each slot once.

    :param segments: the segments to copy from, whose bytes are in memory
    :param n_parts: the number of slots and payloads of theirs that are used
    """

    def __init__(self, segments: Sequence[SlotSegment], n_parts: int) -> None:
        self._bytes = [segment.bytes for segment in segments]  # a segment on a device may release its own
        self._rows = _table_of(segments)
        n_keys = 1 << (2 * (n_parts + SPARE_KEYS)).bit_length()
        self._keys, self._values = np.zeros(n_keys, np.int64), np.empty(n_keys, np.int64)
        self._state = np.zeros(4, np.int64)

    def copy(
        self, references: NDArray[np.int64], first: int, target: SlotSegment, at: int, codecs: NDArray[np.int64]
    ) -> tuple[int, int, int, int]:
        """Copy slots until something is missing, and replace the references to them; see :func:`.copy_slots`.

        :param references: references to slots, of which those in other segments stay the same, ``(n,)``
        :param first: the slot to begin with
        :param target: the segment to copy to
        :param at: where in it the copies begin
        :param codecs: the numbers of its codecs, as the kernel reads them
        :return: the slot to continue with, where the copies end in the target, what is missing, and how much or which
        """
        first = compaction_kernels().copy_slots(
            references, first, references, self._rows, codecs, target.bytes, at, target.number, self._keys,
            self._values, self._state,
        )  # fmt: skip
        end, missing, detail, _ = self._state.tolist()
        return first, end, missing, detail

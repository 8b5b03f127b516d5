"""What of a log in memory is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.segment_log import SlotSegment

__all__ = ["SegmentUsage", "compaction_kernels", "count_references", "measure_usage"]

#: Each slot and each payload takes so many bytes at least.
MIN_PART_NBYTES = 8


class SegmentUsage(NamedTuple):
    """How much of a segment is used.

    :param n_references: the references of tables to its slots
    :param reference_sum: their sum, which wraps around: if both are as before, so are the references
    :param nbytes: the bytes of all slots that are referred to and of their payloads, each once
    """

    n_references: int
    reference_sum: int
    nbytes: int = 0


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
    marks, used = np.zeros(n_bits.sum() // 8 + 1, np.uint8), np.zeros(len(rows), np.int64)
    for table in tables:
        compaction_kernels().measure_used(table, rows, marks, used)
    return {
        number: counted[number]._replace(nbytes=min(nbytes, size))
        for (_, size, _, number), nbytes in zip(rows.tolist(), used.tolist(), strict=True)
    }


def _table_of(segments: Sequence[SlotSegment]) -> NDArray[np.int64]:
    """Return the table of segments that the kernels read."""
    rows = [(segment.bytes.ctypes.data, segment.next_offset, 0, segment.number) for segment in segments]
    return np.array(sorted(rows, key=lambda row: row[-1]), np.int64).reshape(-1, 4)

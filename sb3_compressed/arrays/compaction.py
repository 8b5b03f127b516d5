"""What of a log in memory is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.segment_log import SlotSegment, segment_table

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
    table = segment_table([(segment, segment.bytes[: segment.next_offset]) for segment in segments], 0)
    sizes = table["nbytes"]
    n_bits = sizes // MIN_PART_NBYTES + 1
    firsts, marks = np.cumsum(n_bits) - n_bits, np.zeros(n_bits.sum() // 8 + 1, np.uint8)
    used = np.zeros(len(table), np.int64)
    for references in tables:
        compaction_kernels().measure_used(references, table, firsts, marks, used)
    return {
        number: counted[number]._replace(nbytes=nbytes)
        for number, nbytes in zip(table["number"].tolist(), np.minimum(used, sizes).tolist(), strict=True)
    }

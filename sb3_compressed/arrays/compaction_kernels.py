"""Kernels that find how much of a log in memory is used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.slot_format import (
    OFFSET,
    PAYLOAD_HEADER,
    SLOT_HEADER,
)
from sb3_compressed.arrays.slot_kernels import RECORD, SEGMENTS, n_payloads_of, nbytes_of_payload, row_of, uint32_at
from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import BYTES, INT_ROWS, INTS, helper, kernel

__all__ = ["count_references", "measure_used"]


@kernel(INT, INTS, INT, INT_ROWS)
def count_references(references: NDArray[np.int64], first: int, counts: NDArray[np.int64]) -> int:
    """Add to the number of references to each segment, and to their sum, which wraps around.

    :param references: addresses of slots, 0 for unwritten ones
    :param first: the number of the first segment
    :param counts: the number of references to each segment from the first one on, and their sum, ``(n, 2)``
    :return: the number of references that were counted
    """
    n_counted = 0
    for k in range(references.size):
        index = (references[k] >> 32) - first
        if 0 <= index < len(counts):
            counts[index, 0] += 1
            counts[index, 1] += references[k]
            n_counted += 1
    return n_counted


@helper(INT, RECORD, INT)
def n_whole_payloads_of(segment: Any, offset: int) -> int:
    """Return the number of payloads of a slot, 0 if it or one of them is damaged.

    :param segment: the segment, without checksums
    :param offset: where the slot begins in it
    """
    n = n_payloads_of(segment, offset)
    for index in range(n):
        payload = uint32_at(segment.address + offset + SLOT_HEADER + 4 * index)
        if nbytes_of_payload(segment, payload) < 0:
            return 0
    return max(n, 0)


@helper(INT, BYTES, INT)
def is_first(marks: NDArray[np.uint8], index: int) -> int:
    """Return 1 if a bit was not set yet, otherwise 0, and set it."""
    before, bit = marks[index >> 3], 1 << (index & 7)
    marks[index >> 3] = before | bit
    return 0 if before & bit else 1


@kernel(INT, INTS, SEGMENTS, INTS, BYTES, INTS)
def measure_used(
    references: NDArray[np.int64],
    segments: NDArray[Any],
    firsts: NDArray[np.int64],
    marks: NDArray[np.uint8],
    used: NDArray[np.int64],
) -> int:
    """Add up the slots that references refer to, and their payloads, each once.

    :param references: addresses of slots; those in other segments are ignored
    :param segments: segments without checksums, sorted by their numbers, ``(m,)``
    :param firsts: where the bits of each begin, ``(m,)``
    :param marks: zeros before the first call, with a bit for every 8 bytes of each segment and one more: no slot or
        payload is smaller, so no two begin there
    :param used: the number of bytes in each segment, ``(m,)``; all of them if a slot is damaged
    :return: the number of references that were followed
    """
    number, row, n_followed = 0, -1, 0
    for k in range(references.size):
        if references[k] >> 32 != number:
            number = references[k] >> 32
            row = row_of(segments, number)
        if row < 0:
            continue
        segment, first, offset = segments[row], firsts[row], references[k] & OFFSET
        n_followed += 1
        if offset < segment.nbytes and not is_first(marks, first + offset // 8):
            continue
        n = n_whole_payloads_of(segment, offset)
        if n == 0:
            used[row] += segment.nbytes
            continue
        used[row] += SLOT_HEADER + 4 * n
        for index in range(n):
            payload = uint32_at(segment.address + offset + SLOT_HEADER + 4 * index)
            if is_first(marks, first + payload // 8):
                used[row] += PAYLOAD_HEADER + uint32_at(segment.address + payload)
    return n_followed

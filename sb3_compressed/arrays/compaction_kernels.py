"""Kernels that find how much of a log in memory is used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.slot_format import (
    OFFSET,
    PAYLOAD_HEADER,
    SLOT_HEADER,
)
from sb3_compressed.arrays.slot_kernels import row_of, uint32_at
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


@helper(INT, INT, INT, INT)
def n_payloads_of(segment: int, nbytes: int, offset: int) -> int:
    """Return the number of payloads of a slot, 0 if it or one of them is damaged.

    :param segment: the address of the segment in memory
    :param nbytes: its size
    :param offset: where the slot begins in it
    """
    if offset + SLOT_HEADER > nbytes:
        return 0
    n = uint32_at(segment + offset)
    if offset + SLOT_HEADER + 4 * n > nbytes:
        return 0
    for index in range(n):
        payload = uint32_at(segment + offset + SLOT_HEADER + 4 * index)
        if payload + PAYLOAD_HEADER > nbytes or payload + PAYLOAD_HEADER + uint32_at(segment + payload) > nbytes:
            return 0
    return n


@helper(INT, BYTES, INT)
def is_first(marks: NDArray[np.uint8], index: int) -> int:
    """Return 1 if a bit was not set yet, otherwise 0, and set it."""
    before, bit = marks[index >> 3], 1 << (index & 7)
    marks[index >> 3] = before | bit
    return 0 if before & bit else 1


@kernel(INT, INTS, INT_ROWS, BYTES, INTS)
def measure_used(
    references: NDArray[np.int64], segments: NDArray[np.int64], marks: NDArray[np.uint8], used: NDArray[np.int64]
) -> int:
    """Add up the slots that references refer to, and their payloads, each once.

    :param references: addresses of slots; those in other segments are ignored
    :param segments: the address in memory, the size, where its bits begin, and the number of each segment, by which
        they are sorted, ``(m, 4)``
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
        segment, nbytes, first = segments[row, 0], segments[row, 1], segments[row, 2]
        offset = references[k] & OFFSET
        n_followed += 1
        if offset < nbytes and not is_first(marks, first + offset // 8):
            continue
        n = n_payloads_of(segment, nbytes, offset)
        if n == 0:
            used[row] += nbytes
            continue
        used[row] += SLOT_HEADER + 4 * n
        for index in range(n):
            payload = uint32_at(segment + offset + SLOT_HEADER + 4 * index)
            if is_first(marks, first + payload // 8):
                used[row] += PAYLOAD_HEADER + uint32_at(segment + payload)
    return n_followed

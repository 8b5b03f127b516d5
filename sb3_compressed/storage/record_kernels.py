"""Compiled kernels that write and find the records of a segment; their format is described in ``segment.py``."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, WORD
from sb3_compressed.kernels.checksum_kernels import put_low_bytes, xxh64
from sb3_compressed.kernels.jit import BYTES, INT_ROWS, READ_BYTES, byte_at, helper, kernel, word_at
from sb3_compressed.storage.record_format import HEADER_CHECKED_NBYTES, HEADER_NBYTES

__all__ = ["find_record", "find_records", "put_header"]


@kernel(types.void, BYTES, INT, types.uint64)
def put_header(record: NDArray[np.uint8], kind: int, segment_id: np.uint64) -> None:
    """Write the header of a record whose other bytes are written already."""
    start = record.ctypes.data
    nbytes = record.size - HEADER_NBYTES - 1  # of the content
    put_low_bytes(start, xxh64(start + HEADER_NBYTES, nbytes, np.uint64(kind << 32 | nbytes) ^ segment_id), 8)
    put_low_bytes(start + 8, np.uint64(nbytes), 4)
    put_low_bytes(start + 12, np.uint64(kind), 1)
    put_low_bytes(start + 13, xxh64(start, HEADER_CHECKED_NBYTES, np.uint64(HEADER_CHECKED_NBYTES) ^ segment_id), 3)


@helper(INT, INT, types.uint64)
def content_nbytes(record: int, segment_id: np.uint64) -> int:
    """Return the number of bytes of a record's content, -1 if the 16 bytes at its address are not a valid header."""
    fields = word_at(record + WORD)
    check = xxh64(record, HEADER_CHECKED_NBYTES, np.uint64(HEADER_CHECKED_NBYTES) ^ segment_id) & np.uint64(0xFFFFFF)
    return np.int64(fields & np.uint64(0xFFFFFFFF)) if fields >> np.uint64(40) == check else -1  # type: ignore[return-value]


@helper(types.boolean, INT, INT, types.uint64)
def is_content_intact(record: int, nbytes: int, segment_id: np.uint64) -> bool:
    """Return whether the content of a record matches its checksum; all bytes of the record must be readable."""
    kind_and_nbytes = word_at(record + WORD) & np.uint64(0xFFFFFFFFFF)
    found = xxh64(record + HEADER_NBYTES, nbytes, kind_and_nbytes ^ segment_id)
    return byte_at(record + HEADER_NBYTES + nbytes) == 255 and found == word_at(record)


@kernel(INT, READ_BYTES, types.uint64, INT_ROWS)
def find_records(data: NDArray[np.uint8], segment_id: np.uint64, found: NDArray[np.int64]) -> int:
    """Find the complete records that follow each other from the first byte on.

    :param found: receives the kind, the offset of the content and its number of bytes for each, ``(at most, 3)``
    :return: the number of records
    """
    base, at, n_found = data.ctypes.data, 0, 0
    while n_found < len(found) and at + HEADER_NBYTES <= data.size:
        nbytes = content_nbytes(base + at, segment_id)
        if nbytes < 0 or at + HEADER_NBYTES + nbytes + 1 > data.size:
            break
        if not is_content_intact(base + at, nbytes, segment_id):
            break
        found[n_found, 0] = np.int64((word_at(base + at + WORD) >> np.uint64(32)) & np.uint64(255))
        found[n_found, 1], found[n_found, 2] = at + HEADER_NBYTES, nbytes
        n_found += 1
        at += HEADER_NBYTES + nbytes + 1
    return n_found


@kernel(INT, READ_BYTES, types.uint64)
def find_record(data: NDArray[np.uint8], segment_id: np.uint64) -> int:
    """Return the offset of the first complete record, which may follow any bytes; -1 if there is none."""
    base = data.ctypes.data
    for at in range(data.size - HEADER_NBYTES):
        nbytes = content_nbytes(base + at, segment_id)
        is_inside = nbytes >= 0 and at + HEADER_NBYTES + nbytes + 1 <= data.size
        if is_inside and is_content_intact(base + at, nbytes, segment_id):
            return at
    return -1

"""The compiled kernel that writes the header of a record; its format is described in ``segment.py``."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.checksum_kernels import put_low_bytes, xxh64
from sb3_compressed.kernels.jit import BYTES, kernel
from sb3_compressed.storage.record_format import HEADER_CHECKED_NBYTES, HEADER_NBYTES

__all__ = ["put_header"]


@kernel(types.void, BYTES, INT, types.uint64)
def put_header(record: NDArray[np.uint8], kind: int, segment_id: np.uint64) -> None:
    """Write the header of a record whose other bytes are written already."""
    start = record.ctypes.data
    nbytes = record.size - HEADER_NBYTES - 1  # of the content
    put_low_bytes(start, xxh64(start + HEADER_NBYTES, nbytes, np.uint64(kind << 32 | nbytes) ^ segment_id), 8)
    put_low_bytes(start + 8, np.uint64(nbytes), 4)
    put_low_bytes(start + 12, np.uint64(kind), 1)
    put_low_bytes(start + 13, xxh64(start, HEADER_CHECKED_NBYTES, np.uint64(HEADER_CHECKED_NBYTES) ^ segment_id), 3)

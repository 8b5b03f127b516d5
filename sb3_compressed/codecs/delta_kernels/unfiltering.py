"""The inverse of the filter of smooth pictures, see :mod:`sb3_compressed.codecs.filtering`."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import BYTES, kernel
from sb3_compressed.kernels.plane_kernels import add_bytes

__all__ = ["unfilter"]


@kernel(types.void, INT, INT, BYTES)
def unfilter(line: int, plane: int, frame: NDArray[np.uint8]) -> None:
    """Undo the filter of a frame that consists of lines and planes of so many bytes."""
    first, size = frame.ctypes.data, frame.size
    for start in range(first, first + size, plane):
        for at in range(start + line, start + plane, line):
            add_bytes(at - line, at, line)
    if size == 3 * plane:
        add_bytes(first + plane, first, plane)
        add_bytes(first + plane, first + 2 * plane, plane)

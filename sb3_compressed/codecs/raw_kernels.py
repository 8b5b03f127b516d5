"""The kernel of ``none``."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import copy_bytes
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, kernel

__all__ = ["copy_frames"]


@kernel(types.void, INT_ROWS, BYTE_ROWS, BYTES)
def copy_frames(places: NDArray[np.int64], frames: NDArray[np.uint8], done: NDArray[np.uint8]) -> None:
    """Copy the payloads that have the size of a frame.

    :param places: for each payload its address, its size in bytes, and a number that is not used, ``(n, 3)``
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    start = frames.ctypes.data
    for k in range(n_frames):
        if done[k] == 0 and places[k, 1] == size:
            copy_bytes(places[k, 0], start + k * size, size, size)
            done[k] = 1

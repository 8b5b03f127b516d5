"""The decoder of ``lz4-block``, which calls the LZ4 library without the GIL.

No payload makes it read or write outside its memory and that of its frame. It leaves whatever it cannot decode to
python-lz4.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, c_function, kernel

__all__ = ["decode_blocks"]

MAX_NBYTES = 0x7E000000  # LZ4_MAX_INPUT_SIZE

decompress_safe_using_dict = c_function("ppiipi")


@kernel(types.void, INT_ROWS, INT, BYTE_ROWS, BYTES)
def decode_blocks(
    places: NDArray[np.int64], decompress: int, frames: NDArray[np.uint8], done: NDArray[np.uint8]
) -> None:
    """Decode payloads that are one block each.

    :param places: for each payload its address, its size in bytes, and a number that is not used, ``(n, 3)``
    :param decompress: the address of ``LZ4_decompress_safe_usingDict``
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    if size > MAX_NBYTES:
        return
    for k in range(n_frames):
        payload, nbytes = places[k, 0], places[k, 1]
        if done[k] == 0 and nbytes <= MAX_NBYTES:
            arguments = (payload, frames.ctypes.data + k * size, nbytes, size, 0, 0)
            done[k] = decompress_safe_using_dict(decompress, arguments) == size

"""The kernel of ``lz4-block``, apart from what ``delta`` needs of LZ4: each is compiled on first use."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.lz4_kernels import decode_block
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, kernel

__all__ = ["decode_blocks"]


@kernel(types.void, INT_ROWS, BYTE_ROWS, BYTES)
def decode_blocks(places: NDArray[np.int64], frames: NDArray[np.uint8], done: NDArray[np.uint8]) -> None:
    """Decode payloads that are one valid block each.

    :param places: for each payload its address, its size in bytes, and the index of its codec, ``(n, 3)``
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    start = frames.ctypes.data
    for k in range(n_frames):
        if done[k] == 0:
            done[k] = decode_block(places[k, 0], places[k, 1], start + k * size, start + k * size, size)

"""The decoder of ``packed``, apart from the kernels that ``delta`` needs: each is compiled on first use."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.packed_kernels import unpack_frame
from sb3_compressed.kernels.byte_kernels import copy_bytes, number_at
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, READ_INTS, kernel

__all__ = ["unpack_frames"]

RAW = 0  # the first byte of an uncompressed frame


@kernel(types.void, INT_ROWS, READ_INTS, BYTES, BYTE_ROWS, BYTES)
def unpack_frames(
    places: NDArray[np.int64],
    layout: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Decode valid payloads: packed and uncompressed ones.

    :param places: for each payload its address, its size in bytes, and a number that is not used, ``(n, 3)``
    :param layout: the :attr:`.PictureLayout.numbers` of the frames
    :param scratch: scratch memory, ``(scratch_nbytes,)``
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    start, numbers, memory = frames.ctypes.data, layout.ctypes.data, scratch.ctypes.data
    for k in range(n_frames):
        payload, nbytes, frame = places[k, 0], places[k, 1], start + k * size
        if done[k] != 0 or nbytes == 0:
            continue
        if number_at(payload) == RAW:
            if nbytes == 1 + size:
                copy_bytes(payload + 1, frame, size, size)
                done[k] = 1
        elif nbytes <= size:
            done[k] = unpack_frame(payload, nbytes, numbers, memory, frame)

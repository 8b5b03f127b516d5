"""The kernel of ``zstd``, which calls the C library."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, READ_INTS, c_function, kernel

__all__ = ["decompress_frames"]

call_with_payload, call_with_output = c_function(2), c_function(5)


@kernel(types.void, READ_INTS, INT, INT_ROWS, BYTE_ROWS, BYTES)
def decompress_frames(
    functions: NDArray[np.int64],
    context: int,
    places: NDArray[np.int64],
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Decompress payloads that are one valid frame of the right size each.

    :param functions: the addresses that :func:`.zstd_library.functions` returns
    :param context: the address of a context that no other thread uses
    :param places: for each payload its address, its size in bytes, and the index of its codec, ``(n, 3)``
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    start = frames.ctypes.data
    decompress, content_size, compressed_size = functions[0], functions[1], functions[2]
    for k in range(n_frames):
        payload, nbytes = places[k, 0], places[k, 1]
        if done[k] != 0 or call_with_payload(content_size, payload, nbytes) != size:
            continue
        if call_with_payload(compressed_size, payload, nbytes) == nbytes:  # nothing follows the frame
            done[k] = call_with_output(decompress, context, start + k * size, size, payload, nbytes) == size

"""Frames that are stored without references: raw, or as blocks of LZ4."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import LZ4_BLOCK
from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import BYTES, INTS, READ_BYTE_ROWS, c_function, kernel

__all__ = ["decompress_safe_using_dict", "encode_blocks"]

decompress_safe_using_dict = c_function("ppiipi")
reset_stream_fast = c_function("p")
attach_dictionary = c_function("pp")
compress_fast_continue = c_function("pppiii")


@kernel(INT, READ_BYTE_ROWS, INTS, INT, INT, BYTES, INTS)
def encode_blocks(
    frames: NDArray[np.uint8],
    functions: NDArray[np.int64],
    dictionary: int,
    stream: int,
    payloads: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> int:
    """Compress each frame as a block of LZ4.

    :param frames: bytes of frames, ``(n, frame_nbytes)``
    :param functions: the addresses of LZ4's functions, see :class:`.Lz4Functions`
    :param dictionary: the address of a stream that has loaded the dictionary, 0 if there is none
    :param stream: the address of another initialized stream
    :param payloads: output, the payloads one after the other; each has room for as many bytes as its frame
    :param ends: output, the end of each payload, ``(n,)``; one that does not fit has no bytes
    :return: the bytes of all payloads
    """
    n_frames, size = frames.shape
    written = 0
    for k in range(n_frames):
        source, target = frames.ctypes.data + k * size, payloads.ctypes.data + written + 1
        reset_stream_fast(functions[1], (stream,))
        attach_dictionary(functions[2], (stream, dictionary))
        n_bytes = compress_fast_continue(functions[3], (stream, source, target, size, size - 1, 1))
        if n_bytes > 0:
            payloads[written] = LZ4_BLOCK
            written += 1 + n_bytes
        ends[k] = written
    return written

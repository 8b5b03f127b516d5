"""The decoder of ``gzip`` and ``igzip``, which calls ISA-L without the GIL.

It leaves whatever it cannot decode to python-isal.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, number_at
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, c_function, kernel, put_word, word_at

__all__ = ["decode_gzip"]

MAX_NBYTES = 0x7FFFFFFF
#: The magic number, DEFLATE, and no optional fields: then the header has 10 bytes (RFC 1952).
MAGIC = (0x1F, 0x8B, 8, 0)
HEADER_NBYTES, TRAILER_NBYTES = 10, 8
LOW = np.uint64(0xFFFFFFFF)
#: The offsets of fields in ``struct inflate_state``, each in its own word.
NEXT_OUT, AVAILABLE_OUT, NEXT_IN, AVAILABLE_IN = 0, 8, 16, 32

inflate_stateless = c_function("p")
crc32_gzip_refl = c_function("ipp")


@kernel(types.void, INT_ROWS, INT, INT, INT, BYTE_ROWS, BYTES)
def decode_gzip(
    places: NDArray[np.int64],
    inflate: int,
    checksum: int,
    state: int,
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Decode payloads that are one member of a gzip file each.

    :param places: for each payload its address, its size in bytes, and a number that is not used, ``(n, 3)``
    :param inflate: the address of ``isal_inflate_stateless``
    :param checksum: the address of ``crc32_gzip_refl``
    :param state: the address of an initialized ``struct inflate_state`` that no other thread uses
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    if size > MAX_NBYTES:
        return
    for k in range(n_frames):
        payload, nbytes = places[k, 0], places[k, 1]
        if done[k] != 0 or not HEADER_NBYTES + TRAILER_NBYTES < nbytes <= MAX_NBYTES:
            continue
        is_expected = True
        for index in range(len(MAGIC)):
            is_expected &= number_at(payload + index) == MAGIC[index]
        if not is_expected:
            continue
        frame, end = frames.ctypes.data + k * size, payload + nbytes - TRAILER_NBYTES
        put_word(state + NEXT_OUT, np.uint64(frame))
        put_word(state + AVAILABLE_OUT, np.uint64(size))
        put_word(state + NEXT_IN, np.uint64(payload + HEADER_NBYTES))
        put_word(state + AVAILABLE_IN, np.uint64(nbytes - HEADER_NBYTES - TRAILER_NBYTES))
        if (
            inflate_stateless(inflate, (state,)) == 0
            and word_at(state + NEXT_OUT) == np.uint64(frame + size)
            and word_at(state + NEXT_IN) == np.uint64(end)
        ):
            crc = np.uint64(crc32_gzip_refl(checksum, (0, frame, size))) & LOW
            done[k] = word_at(end) == crc | np.uint64(size) << np.uint64(32)

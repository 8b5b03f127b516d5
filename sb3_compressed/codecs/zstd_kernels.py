"""The decoders of ``zstd`` and ``zstd-dict``, which call the Zstandard library without the GIL.

They leave whatever they cannot decode to python-zstandard.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, number_at
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, INTS, c_function, helper, kernel

__all__ = ["decode_frames", "decode_magicless_frames"]

MAX_NBYTES = 0x7FFFFFFF  # the functions below return an ``int``
PLAIN, WITH_DICTIONARY = 0, 1
"""The header bytes of the payloads of ``zstd-dict``."""
MAX_WINDOW = (27 - 10) << 3
"""The descriptor of the largest window that python-zstandard accepts, 2**27 bytes."""
RLE_BLOCK = 1
"""The type of a block of one repeated byte."""

decompress_using_ddict = c_function("pppppp")
nbytes_of_frame = c_function("pp")


@kernel(types.void, INT_ROWS, INT, INT, INT, INT, BYTE_ROWS, BYTES)
def decode_frames(
    places: NDArray[np.int64],
    decompress: int,
    content_size: int,
    compressed_size: int,
    context: int,
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Decode payloads that are one zstd frame each, with its content size in the header.

    :param places: for each payload its address, its size in bytes, and a number that is not used, ``(n, 3)``
    :param decompress: the address of ``ZSTD_decompress_usingDDict``
    :param content_size: the address of ``ZSTD_getFrameContentSize``
    :param compressed_size: the address of ``ZSTD_findFrameCompressedSize``
    :param context: the address of a context that no other thread uses
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    if size > MAX_NBYTES:
        return
    for k in range(n_frames):
        payload, nbytes = places[k, 0], places[k, 1]
        if (
            done[k] == 0
            and nbytes <= MAX_NBYTES
            and nbytes_of_frame(content_size, (payload, nbytes)) == size
            and nbytes_of_frame(compressed_size, (payload, nbytes)) == nbytes
        ):
            arguments = (context, frames.ctypes.data + k * size, size, payload, nbytes, 0)
            done[k] = decompress_using_ddict(decompress, arguments) == size


@helper(types.boolean, INT, INT)
def is_one_frame(payload: int, nbytes: int) -> bool:
    """Return whether a payload of ``zstd-dict`` has a valid header, and ends with the last block of its frame."""
    if nbytes < 3 or number_at(payload + 1) != 0 or number_at(payload + 2) > MAX_WINDOW:
        return False
    at = 3
    while at + 3 <= nbytes:
        header = number_at(payload + at) | number_at(payload + at + 1) << 8 | number_at(payload + at + 2) << 16
        at += 3 + (1 if header >> 1 & 3 == RLE_BLOCK else header >> 3)
        if header & 1:
            return at == nbytes
    return False


@kernel(types.void, INT_ROWS, INT, INTS, INT, BYTE_ROWS, BYTES)
def decode_magicless_frames(
    places: NDArray[np.int64],
    decompress: int,
    dictionaries: NDArray[np.int64],
    context: int,
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Decode payloads of ``zstd-dict``.

    :param places: for each payload its address, its size in bytes, and the index of its codec, ``(n, 3)``
    :param decompress: the address of ``ZSTD_decompress_usingDDict``
    :param dictionaries: for each codec the address of its loaded dictionary, 0 if it has none
    :param context: the address of a context for frames without magic number that no other thread uses
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    if size > MAX_NBYTES:
        return
    for k in range(n_frames):
        payload, nbytes, codec = places[k]
        if done[k] != 0 or nbytes > MAX_NBYTES or not 0 <= codec < len(dictionaries):
            continue
        if not is_one_frame(payload, nbytes):
            continue
        header = number_at(payload)
        dictionary = dictionaries[codec] if header == WITH_DICTIONARY else 0
        if header == PLAIN or dictionary != 0:
            arguments = (context, frames.ctypes.data + k * size, size, payload + 1, nbytes - 1, dictionary)
            done[k] = decompress_using_ddict(decompress, arguments) == size

"""The decoders of ``lz4-block`` and ``lz4-frame``, which call the LZ4 library without the GIL.

No payload makes them read or write outside its memory and that of its frame. They leave whatever they cannot decode to
python-lz4.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, copy_bytes, number_at
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, c_function, helper, kernel, word_at

__all__ = ["decode_blocks", "decode_frames"]

MAX_NBYTES = 0x7E000000  # LZ4_MAX_INPUT_SIZE
MAX_DISTANCE = 65_535  # of a match
MAGIC = 0x184D2204
HEADER_NBYTES = 15
#: The flags in the header of a frame: version 1 and the content size, and no checksums of the content.
FLAGS, INDEPENDENT_BLOCKS = 0x48, 0x20
MIN_BLOCK_ID, MAX_BLOCK_ID = 4, 7
UNCOMPRESSED = 1 << 31

decompress_safe_using_dict = c_function("ppiipi")
xxh32 = c_function("ppi")


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


@helper(INT, INT)
def uint32_at(address: int) -> int:
    """Read the little-endian uint32 at an address."""
    return (
        number_at(address) | number_at(address + 1) << 8 | number_at(address + 2) << 16 | number_at(address + 3) << 24
    )


@helper(types.boolean, INT, INT, INT, INT, INT, INT)
def decode_frame(payload: int, nbytes: int, decompress: int, checksum: int, frame: int, size: int) -> bool:
    """Decode an LZ4 frame with the content size ``size`` in its header; return whether this succeeded."""
    if nbytes < HEADER_NBYTES + 4 or uint32_at(payload) != MAGIC:
        return False
    flags, block_descriptor = number_at(payload + 4), number_at(payload + 5)
    block_id = block_descriptor >> 4
    if (
        flags | INDEPENDENT_BLOCKS != FLAGS | INDEPENDENT_BLOCKS
        or block_descriptor & 15
        or not MIN_BLOCK_ID <= block_id <= MAX_BLOCK_ID
        or word_at(payload + 6) != np.uint64(size)
        or xxh32(checksum, (payload + 4, HEADER_NBYTES - 5, 0)) >> 8 & 255 != number_at(payload + HEADER_NBYTES - 1)
    ):
        return False
    max_block_nbytes = 1 << (8 + 2 * block_id)
    at, position = HEADER_NBYTES, 0
    while at + 4 <= nbytes:
        header = uint32_at(payload + at)
        at += 4
        if header == 0:  # the end
            return at == nbytes and position == size
        block_nbytes, room = header & (UNCOMPRESSED - 1), min(max_block_nbytes, size - position)
        if block_nbytes > nbytes - at:
            return False
        if header & UNCOMPRESSED:
            if block_nbytes > room:
                return False
            copy_bytes(payload + at, frame + position, block_nbytes, block_nbytes)
            position += block_nbytes
        else:
            before = 0 if flags & INDEPENDENT_BLOCKS else min(position, MAX_DISTANCE)
            arguments = (payload + at, frame + position, block_nbytes, room, frame + position - before, before)
            decoded = decompress_safe_using_dict(decompress, arguments)
            if decoded < 0:
                return False
            position += decoded
        at += block_nbytes
    return False


@kernel(types.void, INT_ROWS, INT, INT, BYTE_ROWS, BYTES)
def decode_frames(
    places: NDArray[np.int64], decompress: int, checksum: int, frames: NDArray[np.uint8], done: NDArray[np.uint8]
) -> None:
    """Decode payloads that are LZ4 frames as python-lz4 writes them.

    The format is https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md.

    :param places: for each payload its address, its size in bytes, and a number that is not used, ``(n, 3)``
    :param decompress: the address of ``LZ4_decompress_safe_usingDict``
    :param checksum: the address of ``XXH32``
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
            done[k] = decode_frame(payload, nbytes, decompress, checksum, frames.ctypes.data + k * size, size)

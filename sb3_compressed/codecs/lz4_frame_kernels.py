"""The kernel of ``lz4-frame``: it decodes what the codec writes, frames of blocks without checksums."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.lz4_kernels import decode_block
from sb3_compressed.kernels.byte_kernels import INT, copy_bytes, number_at
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, READ_BYTES, helper, int32_at, kernel

__all__ = ["decode_lz4_frames"]

SIZE_NBYTES = 4  # that of the size before each block, and of the mark at the end
UNCOMPRESSED = 1 << 31  # the bit of a size whose block is not compressed


@helper(INT, INT)
def size_at(address: int) -> int:
    """Read a size, little-endian, at an address."""
    return int32_at(address) & 0xFFFFFFFF


@helper(types.boolean, INT, INT, INT, types.boolean, INT, INT)
def decode_blocks(at: int, end: int, block_nbytes: int, is_linked: bool, frame: int, size: int) -> bool:
    """Decode the blocks of a frame; return whether they are valid.

    :param at: address of the first one
    :param end: address after the payload
    :param block_nbytes: bytes that each block contains, except for the last one
    :param is_linked: whether matches may be in the blocks before
    :param frame: address of the output, of ``size`` bytes
    """
    position = 0
    while position < size:
        if at + SIZE_NBYTES > end:
            return False
        nbytes = size_at(at)
        at += SIZE_NBYTES
        part = min(block_nbytes, size - position)
        if nbytes & UNCOMPRESSED:
            if nbytes - UNCOMPRESSED != part or at + part > end:
                return False
            copy_bytes(at, frame + position, part, part)
            at += part
        else:
            output = frame + position
            if nbytes > end - at or not decode_block(at, nbytes, frame if is_linked else output, output, part):
                return False
            at += nbytes
        position += part
    return at + SIZE_NBYTES == end and size_at(at) == 0


@kernel(types.void, INT_ROWS, READ_BYTES, INT, types.boolean, BYTE_ROWS, BYTES)
def decode_lz4_frames(
    places: NDArray[np.int64],
    header: NDArray[np.uint8],
    block_nbytes: int,
    is_linked: bool,
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Decode the payloads that begin with a header and are valid.

    :param places: for each payload its address, its size in bytes, and the index of its codec, ``(n, 3)``
    :param header: the header of frames of this size, without checksums of blocks and of the content
    :param block_nbytes: the size of blocks in this header
    :param is_linked: whether this header links blocks
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    start = frames.ctypes.data
    for k in range(n_frames):
        payload, nbytes = places[k, 0], places[k, 1]
        if done[k] != 0 or nbytes < header.size:
            continue
        is_expected = True
        for i in range(header.size):
            is_expected &= number_at(payload + i) == header[i]
        if is_expected:
            done[k] = decode_blocks(
                payload + header.size, payload + nbytes, block_nbytes, is_linked, start + k * size, size
            )

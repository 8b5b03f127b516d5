"""Kernels that find which frames observations repeat, and extract their new frames.

An observation is its bytes in memory, ``[before, frame, after]``: ``n_before`` blocks of ``n_frames`` pieces of
``piece`` bytes. Contiguous frames are one block of large pieces; in channel-last memory, where each pixel has
a byte of every frame, there are as many blocks as pixels.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import EVERYWHERE, INT, WORD, copy_bytes, differ
from sb3_compressed.jit import BYTE_ROWS, BYTES, INT_ROWS, READ_BYTE_ROWS, READ_BYTES, helper, kernel

__all__ = ["take_new_frames"]


@helper(types.void, READ_BYTES, INT, INT, INT, BYTES)
def take_frame(item: NDArray[np.uint8], frame: int, n_frames: int, piece: int, out: NDArray[np.uint8]) -> None:
    """Copy one frame of an observation, ``[before, frame, after]``, to contiguous memory."""
    source = item[frame * piece :]  # the compiler proves that indices into this are not negative
    if piece == 1 and n_frames == 4:  # as games are stacked; constants compile to wide instructions
        for block in range(out.size):
            out[block] = source[block * 4]
    elif piece == 1:
        for block in range(out.size):
            out[block] = source[block * n_frames]
    else:
        for block in range(out.size // piece):
            at, taken = source.ctypes.data + block * n_frames * piece, block * piece
            copy_bytes(at, out.ctypes.data + taken, piece, piece)


@helper(types.boolean, INT, INT, INT, INT, INT, INT)
def continues(item: int, before: int, item_nbytes: int, piece: int, n_frames: int, shift: int) -> bool:
    """Return whether all but the newest ``shift`` frames of an observation are the newest ones of the one before."""
    if shift == 0:
        return not differ(item, before, item_nbytes, EVERYWHERE)
    block = n_frames * piece
    if WORD % block == 0:  # small blocks repeat within a word, in which some bits are of older frames
        older = np.uint64(0)
        for k in range(WORD):
            if k % block < block - shift * piece:
                older |= np.uint64(255) << np.uint64(8 * k)
        return not differ(item, before + shift * piece, item_nbytes - shift * piece, older)
    for begin in range(0, item_nbytes, block):
        at = before + begin + shift * piece
        if differ(item + begin, at, block - shift * piece, EVERYWHERE):
            return False
    return True


@kernel(INT, READ_BYTE_ROWS, READ_BYTE_ROWS, BYTE_ROWS, INT, INT, types.boolean, INT_ROWS, BYTE_ROWS)
def take_new_frames(
    first: NDArray[np.uint8],
    second: NDArray[np.uint8],
    previous: NDArray[np.uint8],
    n_frames: int,
    piece: int,
    is_valid: bool,
    n_new: NDArray[np.int64],
    frames: NDArray[np.uint8],
) -> int:
    """Extract the new frames of observations, and copy the last observations.

    The other frames continue the observation before: the number of new ones is the smallest shift by which the older
    frames equal the newer ones before. Bits are compared, not values: NaN equals itself, -0.0 differs from 0.0. The
    observations of one environment are compared together, while its previous one is in the cache.

    :param first: bytes of the observations, ``(n_envs, item_nbytes)``
    :param second: bytes of the next ones, of the same shape, or of none, ``(0, item_nbytes)``
    :param previous: bytes of the ones before, ``(n_envs, item_nbytes)``; receives the last ones
    :param n_frames: frames of an observation
    :param piece: contiguous bytes of one frame
    :param is_valid: whether there are previous observations
    :param n_new: receives the number of new frames, ``(2, n_envs)``
    :param frames: receives the new frames, those of an environment together, the oldest first;
        ``(2 * n_envs * n_frames, frame_nbytes)``
    :return: the number of new frames
    """
    n_envs, item_nbytes = first.shape
    written = 0
    for env in range(n_envs):
        before = previous.ctypes.data + env * item_nbytes
        is_continued = is_valid
        for row, items in enumerate((first, second)):
            if env >= len(items):
                continue
            item = items.ctypes.data + env * item_nbytes
            shift = 0 if is_continued else n_frames
            while shift < n_frames and not continues(item, before, item_nbytes, piece, n_frames, shift):
                shift += 1
            n_new[row, env] = shift
            is_continued = True
            if shift == 0:
                continue
            for frame in range(n_frames - shift, n_frames):
                take_frame(items[env], frame, n_frames, piece, frames[written])
                written += 1
            copy_bytes(item, before, item_nbytes, item_nbytes)
    return written

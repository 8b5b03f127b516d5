"""Kernels that find which frames observations repeat, and extract their new frames.

An observation is its bytes in memory, ``[before, frame, after]``: ``n_before`` blocks of ``n_frames`` pieces of
``piece`` bytes. Contiguous frames are one block of large pieces; in channel-last memory, where each pixel has
a byte of every frame, there are as many blocks as pixels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import from_dtype, types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, WORD, copy_bytes, differ, signed_address
from sb3_compressed.kernels.jit import (
    BYTE_ROWS,
    INT_ROWS,
    READ_BYTES,
    bytes_at,
    helper,
    kernel,
    put_word,
    word_at,
)

__all__ = ["PREVIOUS_ROW", "masks_of_older_frames", "take_new_frames"]

PREVIOUS_ROW = np.dtype(
    [
        ("items", np.int64),  # the address of its observations, ``(n_envs, item_nbytes)``
        ("n_envs", np.int64),
        ("item_nbytes", np.int64),
        ("n_frames", np.int64),  # frames of an observation
        ("piece", np.int64),  # contiguous bytes of a frame
        ("newest_first", np.int64),  # 1 if the newest frame is the first one of an observation, 0 if it is the last one
        ("masks", np.int64),  # the address of what ``masks_of_older_frames`` returns
        ("mask_size", np.int64),  # words of the mask for one shift
    ]
)
"""The row of observations that the next one continues."""
PREVIOUS_ROWS = types.Array(from_dtype(PREVIOUS_ROW), 1, "C")
MASK_NBYTES = 4096  # compared between two checks for a difference
MAX_MASKED_BLOCK = 512  # bytes


def masks_of_older_frames(n_frames: int, piece: int) -> NDArray[np.uint64]:
    """Return for each shift which bits of an observation are of frames that it may share with the one before.

    :param n_frames: frames of an observation
    :param piece: contiguous bytes of one frame
    :return: words in the order of memory, ``(n_frames, n)``; all bits are set for blocks so large that each is compared
        on its own
    """
    block = n_frames * piece
    if block > MAX_MASKED_BLOCK:
        return np.full((n_frames, MASK_NBYTES // WORD), np.iinfo(np.uint64).max)
    n_bytes = math.lcm(block, WORD)
    n_bytes *= -(-MASK_NBYTES // n_bytes)
    n_older = block - piece * np.arange(n_frames)[:, np.newaxis]
    return np.where(np.arange(n_bytes) % block < n_older, np.uint8(255), np.uint8(0)).view(np.uint64)


@helper(types.void, INT, INT, INT, INT, INT)
def take_frame(at: int, n_frames: int, piece: int, to: int, size: int) -> None:
    """Copy one frame of an observation, ``[before, frame, after]``, to contiguous memory.

    :param at: address of the first bytes of the frame
    :param to: address of the output, of ``size`` bytes
    """
    if piece == 1:
        pixels, out = bytes_at(at, (size - 1) * n_frames + 1), bytes_at(to, size)
        if n_frames == 4:  # as games are stacked; constants compile to wide instructions
            for block in range(size):
                out[block] = pixels[block * 4]
        else:
            for block in range(size):
                out[block] = pixels[block * n_frames]
    else:
        end = to + size
        if piece < WORD:  # whole words, each of which overwrites the end of the one before; except for the last ones
            while to + WORD * piece < end:
                put_word(to, word_at(at))
                at += n_frames * piece
                to += piece
        while to < end:
            copy_bytes(at, to, piece, piece)
            at += n_frames * piece
            to += piece


@helper(types.boolean, INT, INT, INT, INT, INT, INT, INT, INT)
def continues(
    item: int, before: int, item_nbytes: int, piece: int, n_frames: int, shift: int, mask: int, mask_size: int
) -> bool:
    """Return whether all but the newest ``shift`` frames of an observation are the newest ones of the one before.

    :param mask: address of the mask for this shift, of ``mask_size`` words
    """
    step = max(item_nbytes, 1) if n_frames * piece <= MAX_MASKED_BLOCK else n_frames * piece
    for begin in range(0, item_nbytes, step):
        at = before + begin + shift * piece
        if differ(item + begin, at, step - shift * piece, mask, mask_size):
            return False
    return True


@kernel(INT, INT, READ_BYTES, READ_BYTES, PREVIOUS_ROWS, types.boolean, INT_ROWS, BYTE_ROWS)
def take_new_frames(
    n_rows: int,
    first: NDArray[np.uint8],
    second: NDArray[np.uint8],
    previous: NDArray[Any],
    is_valid: bool,
    n_new: NDArray[np.int64],
    frames: NDArray[np.uint8],
) -> int:
    """Extract the new frames of observations, and copy the last observations.

    The other frames continue the observation before: the number of new ones is the smallest shift by which the older
    frames equal the newer ones before. Bits are compared, not values: NaN equals itself, -0.0 differs from 0.0. The
    observations of one environment are compared together, while its previous one is in the cache.

    :param n_rows: 1 for a row of observations, or twice the number of steps, for observations and the next ones in turn
    :param first: bytes of the observations, ``(n_steps * n_envs * item_nbytes,)``
    :param second: bytes of the next ones, of the same shape; ignored for one row
    :param previous: the ones before, ``(1,)`` of :data:`PREVIOUS_ROW`; their memory receives the last ones
    :param is_valid: whether there are previous observations
    :param n_new: receives the number of new frames, ``(n_rows, n_envs)`` or more rows
    :param frames: receives the new frames, those of an environment together, those of an observation in its order;
        ``(n_rows * n_envs * n_frames, frame_nbytes)`` or more
    :return: the number of new frames
    """
    row_before = previous[0]
    n_envs, item_nbytes, piece = row_before.n_envs, row_before.item_nbytes, row_before.piece
    n_frames, newest_first = row_before.n_frames, row_before.newest_first != 0
    mask, mask_size, frame_nbytes = row_before.masks, row_before.mask_size, frames.shape[1]
    observations, next_ones = signed_address(first.ctypes.data), signed_address(second.ctypes.data)
    output = signed_address(frames.ctypes.data)
    written = 0
    for env in range(n_envs):
        last = row_before.items + env * item_nbytes
        before = last
        is_continued = is_valid
        for row in range(n_rows):
            begin = (row // 2 * n_envs + env) * item_nbytes
            item = begin + (next_ones if row % 2 else observations)
            shift = 0 if is_continued else n_frames
            if item == before:  # the same memory, as of frames[1:] and frames[:-1]
                n_new[row, env] = 0
                continue
            # With the newest frame first, an observation is continued as the one before is otherwise.
            later, earlier = (before, item) if newest_first else (item, before)
            while shift < n_frames and not continues(
                later, earlier, item_nbytes, piece, n_frames, shift, mask + shift * mask_size * WORD, mask_size
            ):
                shift += 1
            n_new[row, env] = shift
            is_continued = True
            if shift == 0:
                continue
            first_new = 0 if newest_first else n_frames - shift
            for frame in range(first_new, first_new + shift):
                take_frame(item + frame * piece, n_frames, piece, output + written * frame_nbytes, frame_nbytes)
                written += 1
            before = item
        if before != last:
            copy_bytes(before, last, item_nbytes, item_nbytes)
    return written

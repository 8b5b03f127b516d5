"""The kernel that interleaves frames, apart from those that all items need: each is compiled on first use."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, WORD, copy_bytes
from sb3_compressed.kernels.jit import BYTE_ROWS, READ_BYTE_ROWS, kernel, put_word, word_at

__all__ = ["interleave_frames"]


@kernel(types.void, READ_BYTE_ROWS, INT, BYTE_ROWS)
def interleave_frames(frames: NDArray[np.uint8], piece: int, items: NDArray[np.uint8]) -> None:
    """Interleave frames pixel by pixel, as items contain them that are stacked along their last axis.

    :param frames: bytes of the frames, those of an item together, ``(n * n_frames, frame_nbytes)``
    :param piece: bytes of one frame in a pixel
    :param items: receives the items, ``(n, n_frames * frame_nbytes)``
    """
    n_frames, size = len(frames) // max(len(items), 1), frames.shape[1]
    for k in range(len(items)):
        first, item = k * n_frames, items[k]
        if piece == 1 and n_frames == 4:  # as games are stacked; constants compile to wide instructions
            a, b, c, d = frames[first], frames[first + 1], frames[first + 2], frames[first + 3]
            for pixel in range(size):
                item[4 * pixel] = a[pixel]
                item[4 * pixel + 1] = b[pixel]
                item[4 * pixel + 2] = c[pixel]
                item[4 * pixel + 3] = d[pixel]
            continue
        source, to = frames.ctypes.data + first * size, item.ctypes.data
        # Where they end within the item and the frames, whole words: each overwrites the end of the one before.
        n_whole = size - WORD if piece < WORD <= size else 0
        for taken in range(0, size, piece):
            for frame in range(n_frames):
                at = source + frame * size + taken
                if taken < n_whole:
                    put_word(to, word_at(at))
                else:
                    copy_bytes(at, to, piece, piece)
                to += piece

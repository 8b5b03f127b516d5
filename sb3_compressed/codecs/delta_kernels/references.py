"""Which reference frame is nearest to a frame."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import INT, WORD
from sb3_compressed.jit import INT_ROWS, READ_BYTE_ROWS, kernel, word_at

__all__ = ["nearest_reference", "word_differences"]

SAMPLE = 32  # words looked at in one go, to tell which frames are alike


@kernel(INT, INT, INT, INT)
def count_different_words(some: int, others: int, n_words: int) -> int:
    """Count the words that differ at two addresses; without branches, for wide instructions."""
    n_different = 0
    for k in range(n_words):
        n_different += word_at(some + k * WORD) != word_at(others + k * WORD)
    return n_different


@kernel(INT, INT, INT, INT, INT)
def dissimilarity(frame: int, reference: int, size: int, most: int) -> int:
    """Tell how different two frames are, up to ``most``, from a quarter of their words: a measure to choose by."""
    if size < 8 * SAMPLE * WORD:  # of small ones, from all
        return count_different_words(frame, reference, size // WORD)
    n_different = 0
    at = 0
    while at + SAMPLE * WORD <= size and n_different < most:
        n_different += count_different_words(frame + at, reference + at, SAMPLE)
        at += 4 * SAMPLE * WORD
    return n_different


@kernel(types.void, READ_BYTE_ROWS, INT_ROWS)
def word_differences(frames: NDArray[np.uint8], differences: NDArray[np.int64]) -> None:
    """Write in how many words each two of ``frames`` ``(n, frame_nbytes)`` differ to ``differences`` ``(n, n)``."""
    n_frames, size = frames.shape
    for i in range(n_frames):
        differences[i, i] = 0
        for j in range(i):
            address = frames.ctypes.data
            n_different = count_different_words(address + i * size, address + j * size, size // WORD)
            for k in range(size - size % WORD, size):
                n_different += frames[i, k] != frames[j, k]
            differences[i, j] = differences[j, i] = n_different


@kernel(INT, INT, INT, INT, INT, INT)
def nearest_reference(frame: int, size: int, bank: int, n_references: int, guess: int) -> int:
    """Return which reference differs from a frame least, ``guess`` where it is as good as another.

    :param frame: address of the frame's bytes
    :param size: how many there are
    :param bank: address of the references
    """
    nearest = guess
    least = dissimilarity(frame, bank + guess * size, size, size)
    for index in range(n_references):
        if index != guess:
            found = dissimilarity(frame, bank + index * size, size, least)
            if found < least:
                least = found
                nearest = index
    return nearest

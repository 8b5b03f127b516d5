"""Differences between frames, and the reference frame nearest to a frame."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, WORD
from sb3_compressed.kernels.jit import INT_ROWS, READ_BYTE_ROWS, helper, kernel, words_at

__all__ = ["nearest_reference", "word_differences"]

SAMPLE = 32  # words compared at a time
MAX_SAMPLES = 16  # of a frame, besides a last one


@helper(INT, INT, INT, INT)
def count_different_words(first: int, second: int, n_words: int) -> int:
    """Count the words that differ at two addresses; without branches, so that it compiles to SIMD instructions."""
    these, those = words_at(first, n_words), words_at(second, n_words)
    n_different = 0
    for k in range(n_words):
        n_different += these[k] != those[k]
    return n_different


@helper(INT, INT, INT, INT, INT)
def sampled_difference(frame: int, reference: int, size: int, most: int) -> int:
    """Return in how many of some of their words two frames differ, or a number of at least ``most``."""
    if size < 8 * SAMPLE * WORD:  # small frames are compared whole
        return count_different_words(frame, reference, size // WORD)
    step = max(4 * SAMPLE * WORD, size // MAX_SAMPLES)  # at most a quarter is compared
    n_different = 0
    at = 0
    while at + SAMPLE * WORD <= size and n_different < most:
        n_different += count_different_words(frame + at, reference + at, SAMPLE)
        at += step
    return n_different


@kernel(types.void, READ_BYTE_ROWS, INT_ROWS)
def word_differences(frames: NDArray[np.uint8], differences: NDArray[np.int64]) -> None:
    """Write the number of differing words of each pair of frames.

    :param frames: bytes of frames, ``(n, frame_nbytes)``; each byte after the last whole word counts as a word
    :param differences: output, ``(n, n)``
    """
    n_frames, size = frames.shape
    address = frames.ctypes.data
    for i in range(n_frames):
        differences[i, i] = 0
        for j in range(i):
            n_different = count_different_words(address + i * size, address + j * size, size // WORD)
            for k in range(size - size % WORD, size):
                n_different += frames[i, k] != frames[j, k]
            differences[i, j] = differences[j, i] = n_different


@helper(INT, INT, INT, INT, INT, INT)
def nearest_reference(frame: int, size: int, references: int, n_references: int, guess: int) -> int:
    """Return the index of the reference that differs least from a frame, preferring ``guess`` in a tie.

    :param frame: address of the frame
    :param size: bytes of the frame
    :param references: address of the references
    """
    nearest = guess
    least = sampled_difference(frame, references + guess * size, size, size)
    for index in range(n_references):
        if index != guess:
            difference = sampled_difference(frame, references + index * size, size, least)
            if difference < least:
                least = difference
                nearest = index
    return nearest

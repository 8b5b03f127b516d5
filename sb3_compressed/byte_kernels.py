"""Copying and comparing bytes at addresses, the kernels that other kernels are made of.

They are called for every few bytes, and handing over an array would take as long as what they do. Whoever calls them
has looked at the bounds. Words are read and written wherever they lie; alignment is none.

These become part of the machine code of the kernels that call them, in other files;
:mod:`sb3_compressed.kernel_cache` sees to it that those are compiled again when this file changes.
"""

from __future__ import annotations

import numpy as np
from numba import types

from sb3_compressed.jit import byte_at, first_byte_of, kernel, put_byte, put_word, word_at

__all__ = ["EVERYWHERE", "INT", "STEP", "WORD", "common_length", "copy_bytes", "differ", "number_at"]

INT = types.int64
"""An address, an index, a number of bytes."""

WORD = 8  # bytes
STEP = 4 * WORD
EVERYWHERE = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A mask for :func:`differ` that leaves nothing out."""
CHUNK = 512  # words compared before a difference ends it


@kernel(INT, INT)
def number_at(address: int) -> int:
    """Read the byte at an address as a number that can be counted with: numba takes sums of bytes for unsigned."""
    return byte_at(address)


@kernel(types.void, INT, INT)
def copy_step(source: int, target: int) -> None:
    """Copy ``STEP`` bytes. All reads come before the writes: then they are one wide instruction each."""
    w0, w1 = word_at(source), word_at(source + WORD)
    w2, w3 = word_at(source + 2 * WORD), word_at(source + 3 * WORD)
    put_word(target, w0)
    put_word(target + WORD, w1)
    put_word(target + 2 * WORD, w2)
    put_word(target + 3 * WORD, w3)


@kernel(types.void, INT, INT, INT, INT)
def copy_bytes(source: int, target: int, length: int, room: int) -> None:
    """Copy ``length`` bytes from one address to another, and where there is room, some more, to whole steps.

    Most copies are short. Whole steps have no branches that depend on how short, and those are what takes time.

    :param room: bytes that may be read and written, ``length`` at least
    """
    if length + STEP <= room:
        copy_step(source, target)
        n = STEP
        while n < length:
            copy_step(source + n, target + n)
            n += STEP
        return
    n = 0
    while n + STEP <= length:
        copy_step(source + n, target + n)
        n += STEP
    while n + WORD <= length:
        put_word(target + n, word_at(source + n))
        n += WORD
    while n < length:
        put_byte(target + n, byte_at(source + n))
        n += 1


@kernel(INT, INT, INT, INT)
def common_length(some: int, others: int, limit: int) -> int:
    """Return how many bytes at two addresses are equal, of ``limit`` at most."""
    n = 0
    while n + 4 * WORD <= limit:
        different = word_at(some + n) ^ word_at(others + n)
        different |= word_at(some + n + WORD) ^ word_at(others + n + WORD)
        different |= word_at(some + n + 2 * WORD) ^ word_at(others + n + 2 * WORD)
        different |= word_at(some + n + 3 * WORD) ^ word_at(others + n + 3 * WORD)
        if different:
            break
        n += 4 * WORD
    while n + WORD <= limit:
        different = word_at(some + n) ^ word_at(others + n)
        if different:
            return n + first_byte_of(different)
        n += WORD
    while n < limit and byte_at(some + n) == byte_at(others + n):
        n += 1
    return n


@kernel(types.boolean, INT, INT, INT, types.uint64)
def differ(some: int, others: int, length: int, mask: np.uint64) -> bool:
    """Return whether ``length`` bytes at two addresses differ in the bits of ``mask``, which repeats every word."""
    n_words = length // WORD
    start = 0
    while start < n_words:
        different = np.uint64(0)
        for k in range(start, min(start + CHUNK, n_words)):  # without branches, for wide instructions
            different |= (word_at(some + k * WORD) ^ word_at(others + k * WORD)) & mask
        if different:
            return True
        start += CHUNK
    for k in range(n_words * WORD, length):
        if (byte_at(some + k) ^ byte_at(others + k)) & np.uint8(mask >> np.uint64(k % WORD * 8)):
            return True
    return False

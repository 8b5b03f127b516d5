"""Kernels that copy and compare bytes at memory addresses, for use in other kernels.

They are called for every few bytes, where passing an array would cost as much as the work itself. Callers check the
bounds. Words need not be aligned.

The compiler inlines them into kernels of other files, which are compiled again when this file changes.
"""

from __future__ import annotations

import numpy as np
from numba import types

from sb3_compressed.kernels.jit import byte_at, first_byte_of, helper, put_byte, put_word, word_at, words_at

__all__ = ["INT", "STEP", "WORD", "common_length", "copy_bytes", "differ", "number_at", "signed_address"]

INT = types.int64
"""An address, an index, a number of bytes."""

WORD = 8  # bytes
STEP = 4 * WORD


@helper(INT, INT)
def signed_address(address: int) -> int:
    """Return an address of ``array.ctypes.data`` as an int64, since it is unsigned, and numba adds both as floats."""
    return address


@helper(INT, INT)
def number_at(address: int) -> int:
    """Read the byte at an address as an int64, since numba makes sums of uint8 unsigned."""
    return byte_at(address)


@helper(types.void, INT, INT)
def copy_step(source: int, target: int) -> None:
    """Copy ``STEP`` bytes. All reads precede the writes, so that each compiles to one SIMD instruction."""
    w0, w1 = word_at(source), word_at(source + WORD)
    w2, w3 = word_at(source + 2 * WORD), word_at(source + 3 * WORD)
    put_word(target, w0)
    put_word(target + WORD, w1)
    put_word(target + 2 * WORD, w2)
    put_word(target + 3 * WORD, w3)


@helper(types.void, INT, INT, INT, INT)
def copy_bytes(source: int, target: int, length: int, room: int) -> None:
    """Copy ``length`` bytes from one address to another; if there is room, rounded up to whole steps.

    Most copies are short, and branches on their length are what costs time; whole steps have none.

    :param room: bytes that may be read and written, at least ``length``
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


@helper(INT, INT, INT, INT)
def common_length(first: int, second: int, limit: int) -> int:
    """Return the length of the common prefix of the bytes at two addresses, at most ``limit``."""
    n = 0
    while n + 4 * WORD <= limit:
        different = word_at(first + n) ^ word_at(second + n)
        different |= word_at(first + n + WORD) ^ word_at(second + n + WORD)
        different |= word_at(first + n + 2 * WORD) ^ word_at(second + n + 2 * WORD)
        different |= word_at(first + n + 3 * WORD) ^ word_at(second + n + 3 * WORD)
        if different:
            break
        n += 4 * WORD
    while n + WORD <= limit:
        different = word_at(first + n) ^ word_at(second + n)
        if different:
            return n + first_byte_of(different)
        n += WORD
    while n < limit and byte_at(first + n) == byte_at(second + n):
        n += 1
    return n


@helper(types.boolean, INT, INT, INT, INT, INT)
def differ(first: int, second: int, length: int, mask: int, mask_size: int) -> bool:
    """Return whether ``length`` bytes at two addresses differ in any bit of a mask.

    :param mask: address of ``mask_size`` words that select bits of the first words, then of as many of the next ones,
        and so on
    """
    bits = words_at(mask, mask_size)
    n_words = length // WORD
    start = 0
    while start < n_words:
        n = min(mask_size, n_words - start)
        these, those = words_at(first + start * WORD, n), words_at(second + start * WORD, n)
        different = np.uint64(0)
        for k in range(n):  # without branches, so that it compiles to SIMD instructions
            different |= (these[k] ^ those[k]) & bits[k]
        if different:
            return True
        start += n
    for k in range(n_words * WORD, length):
        byte = bits[k // WORD % mask_size] >> np.uint64(k % WORD * 8)
        if (byte_at(first + k) ^ byte_at(second + k)) & byte & np.uint64(255):
            return True
    return False

"""Compiled kernels that compute XXH64; see :mod:`sb3_compressed.kernels.checksum`."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, WORD
from sb3_compressed.kernels.jit import READ_BYTES, byte_at, helper, kernel, put_byte, word_at

__all__ = ["put_low_bytes", "xxh64", "xxh64_of"]

U64 = types.uint64
P1 = np.uint64(0x9E3779B185EBCA87)
P2 = np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4 = np.uint64(0x85EBCA77C2B2AE63)
P5 = np.uint64(0x27D4EB2F165667C5)


@helper(U64, U64, INT)
def rotated(word: np.uint64, n_bits: int) -> np.uint64:
    """Rotate a word to the left."""
    return (word << np.uint64(n_bits)) | (word >> np.uint64(64 - n_bits))


@helper(U64, U64, U64)
def mixed(lane: np.uint64, word: np.uint64) -> np.uint64:
    """Mix one word into a lane (``round`` in the specification)."""
    return rotated(lane + word * P2, 31) * P1


@helper(U64, U64, U64)
def merged(total: np.uint64, lane: np.uint64) -> np.uint64:
    """Merge a lane into the total (``mergeAccumulator``)."""
    return (total ^ mixed(np.uint64(0), lane)) * P1 + P4


@helper(U64, INT, INT, U64)
def xxh64(address: int, nbytes: int, seed: np.uint64) -> np.uint64:
    """Return the checksum of ``nbytes`` bytes at an address; the caller guarantees that they are readable."""
    end = address + nbytes
    if nbytes >= 4 * WORD:
        a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while address + 4 * WORD <= end:
            a = mixed(a, word_at(address))
            b = mixed(b, word_at(address + WORD))
            c = mixed(c, word_at(address + 2 * WORD))
            d = mixed(d, word_at(address + 3 * WORD))
            address += 4 * WORD
        total = rotated(a, 1) + rotated(b, 7) + rotated(c, 12) + rotated(d, 18)
        total = merged(merged(merged(merged(total, a), b), c), d)
    else:
        total = seed + P5
    total += np.uint64(nbytes)
    while address + WORD <= end:
        total = rotated(total ^ mixed(np.uint64(0), word_at(address)), 27) * P1 + P4
        address += WORD
    if address + WORD // 2 <= end:
        half = np.uint64(0)
        for k in range(WORD // 2):
            half |= np.uint64(byte_at(address + k)) << np.uint64(8 * k)
        total = rotated(total ^ (half * P1), 23) * P2 + P3
        address += WORD // 2
    while address < end:
        total = rotated(total ^ (np.uint64(byte_at(address)) * P5), 11) * P1
        address += 1
    total = (total ^ (total >> np.uint64(33))) * P2
    total = (total ^ (total >> np.uint64(29))) * P3
    return total ^ (total >> np.uint64(32))


@helper(types.void, INT, U64, INT)
def put_low_bytes(address: int, word: np.uint64, nbytes: int) -> None:
    """Write the lowest bytes of a word to an address, in little-endian order."""
    for k in range(nbytes):
        put_byte(address + k, (word >> np.uint64(8 * k)) & np.uint64(255))  # type: ignore[arg-type]


@kernel(U64, READ_BYTES, U64)
def xxh64_of(data: NDArray[np.uint8], seed: np.uint64) -> np.uint64:
    """Return the checksum of a byte array."""
    return xxh64(data.ctypes.data, data.size, seed)

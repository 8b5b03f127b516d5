"""Kernels that find repeated payloads of a batch, join payloads, and copy decoded frames."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, common_length, copy_bytes
from sb3_compressed.kernels.jit import (
    BYTE_ROWS,
    BYTES,
    INT_ROWS,
    INTS,
    helper,
    kernel,
)

__all__ = [
    "concatenate_payloads",
    "copy_repeated",
    "equal_items",
    "find_repeated",
    "find_repeated_payloads",
]

HASH_FACTOR = 0x9E3779B1


@helper(types.void, INT_ROWS, INT, INTS)
def find_repeated(places: NDArray[np.int64], n: int, first_same: NDArray[np.int64]) -> None:
    """Find the payloads that occur several times in a batch.

    :param places: of each payload an address, and two numbers that equal payloads have in common, ``(at least n, 3)``
    :param n: the number of payloads
    :param first_same: receives for each payload the index of the first one that is equal, ``(at least n,)``
    """
    n_entries = 1
    while n_entries <= 2 * n:
        n_entries *= 2
    table = np.empty(n_entries, np.int64)  # a hash table of the first payload at each address
    table[:] = -1
    for k in range(n):
        address = places[k, 0]
        slot = (address >> 4) * HASH_FACTOR >> 16 & (table.size - 1)
        while table[slot] >= 0 and places[table[slot], 0] != address:
            slot = (slot + 1) & (table.size - 1)
        if table[slot] < 0:
            table[slot] = k
        same = table[slot]
        # Python may use one object for equal payloads of two codecs, and payloads without bytes have no address.
        is_same = places[same, 1] == places[k, 1] and places[same, 2] == places[k, 2]
        first_same[k] = same if is_same else k


@kernel(types.void, INT_ROWS, INTS)
def find_repeated_payloads(places: NDArray[np.int64], first_same: NDArray[np.int64]) -> None:
    """Find the payloads that occur several times in a batch.

    :param places: the address of each payload's bytes, their number, and the number of its codec, ``(n, 3)``
    :param first_same: receives for each payload the index of the first one at its address and of its codec, ``(n,)``
    """
    find_repeated(places, len(places), first_same)


@kernel(types.void, INTS, INT, INT, BYTE_ROWS)
def copy_repeated(first_same: NDArray[np.int64], begin: int, end: int, frames: NDArray[np.uint8]) -> None:
    """Copy the frames of payloads that occur several times.

    :param first_same: as :func:`find_repeated_payloads` returns it, ``(n,)``
    :param begin: the index of the first payload whose frame may be copied
    :param end: the index after the last one
    :param frames: the frames of payloads that are the first one; receives the others, ``(n, frame_nbytes)``
    """
    size, start = frames.shape[1], frames.ctypes.data
    for k in range(begin, end):
        if first_same[k] != k:
            copy_bytes(start + first_same[k] * size, start + k * size, size, size)


@kernel(types.void, INT_ROWS, BYTES)
def concatenate_payloads(places: NDArray[np.int64], content: NDArray[np.uint8]) -> None:
    """Copy payloads to contiguous memory.

    :param places: as for :func:`find_repeated_payloads`
    :param content: receives the bytes of the payloads, one after the other, ``(sum of their lengths,)``
    """
    to = content.ctypes.data
    for k in range(len(places)):
        length = places[k, 1]
        copy_bytes(places[k, 0], to, length, length)
        to += length


@kernel(types.void, INT_ROWS, INTS, INT_ROWS, INTS, BYTE_ROWS, BYTES)
def equal_items(
    places: NDArray[np.int64],
    offsets: NDArray[np.int64],
    other_places: NDArray[np.int64],
    other_offsets: NDArray[np.int64],
    same_codecs: NDArray[np.uint8],
    result: NDArray[np.uint8],
) -> None:
    """Find items of two batches that have equal payloads by equal codecs; different payloads may decode to equal items.

    :param places: the address of each payload's bytes, their number, and the number of its codec, ``(n, 3)``
    :param offsets: the index of the first payload of each item, and the number of payloads, ``(n_items + 1,)``
    :param other_places: those of the other batch
    :param other_offsets: those of the other batch, which has as many items
    :param same_codecs: 1 for each codec of the batch, and each of the other one, that are equal
    :param result: receives 1 for equal items that were written, else 0, ``(n_items,)``
    """
    for k in range(result.size):
        n, shift = offsets[k + 1] - offsets[k], other_offsets[k] - offsets[k]
        result[k] = n > 0 and n == other_offsets[k + 1] - other_offsets[k]
        for index in range(offsets[k], offsets[k + 1]):
            if not result[k]:
                break
            nbytes, other = places[index, 1], other_places[index + shift]
            result[k] = (
                other[1] == nbytes
                and same_codecs[places[index, 2], other[2]] != 0
                and common_length(places[index, 0], other[0], nbytes) == nbytes
            )

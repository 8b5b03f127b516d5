"""The kernel that counts what makes blocks of LZ4 slow to decode."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import LZ4_BLOCK
from sb3_compressed.kernels.byte_kernels import INT, number_at
from sb3_compressed.kernels.jit import INT_ROWS, helper, kernel

__all__ = ["count_sequences"]

MIN_MATCH = 4
#: LZ4 copies matches from further back in steps of 16 bytes or more. It repeats patterns of 1, 2 and 4 bytes as words,
#: and copies other matches in steps of 8 bytes, each of which waits until the previous ones are written.
MAX_OVERLAP = 15
PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]


@helper(PAIR, INT, INT, INT)
def read_length(start: int, at: int, end: int) -> tuple[int, int]:
    """Return a length whose first four bits are ``start``, and the position after it.

    :param at: address of the bytes that continue it if the bits are all set
    :param end: address after the block
    """
    length = start
    if start == 15:
        while at < end:
            byte = number_at(at)
            at += 1
            length += byte
            if byte < 255:
                break
    return length, at


@kernel(types.void, INT_ROWS, INT_ROWS)
def count_sequences(places: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """Count the sequences of blocks of LZ4, each of which is literals and a match.

    The format is https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md.

    :param places: for each payload its address, its size in bytes, and a number that is not used, ``(n, 3)``
    :param counts: output, for each payload the number of sequences, of those with a match that LZ4 copies in a loop,
        and the bytes of matches that overlap themselves so closely that it copies them slowly, ``(n, 3)``; 0 if it is
        not a block
    """
    for k in range(len(places)):
        at, end = places[k, 0], places[k, 0] + places[k, 1]
        n_sequences = n_long = n_overlapping = 0
        if at < end and number_at(at) == LZ4_BLOCK:
            at += 1
            while at < end:
                token = number_at(at)
                literals, at = read_length(token >> 4, at + 1, end)
                n_sequences += 1
                at += literals
                if at + 2 > end:  # the last one has no match
                    break
                offset = number_at(at) | number_at(at + 1) << 8
                n_long += token & 15 == 15
                length, at = read_length(token & 15, at + 2, end)
                if offset <= MAX_OVERLAP and offset != 1 and offset != 2 and offset != 4:
                    n_overlapping += length + MIN_MATCH
        counts[k, 0], counts[k, 1], counts[k, 2] = n_sequences, n_long, n_overlapping

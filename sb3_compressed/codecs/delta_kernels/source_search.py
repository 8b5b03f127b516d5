"""The search for sources of a delta: positions in the references and in the frame itself with equal bytes.

As in LZ4, a hash table has one position of each word, the last one stored. That of the references has all their words.
That of the frame has only the words that were searched for: tiles of a game are equal to others from their first pixel
on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_kernels.copy_sources import FRAME, N_RECENT, PAIR, Frame, address_of, n_readable
from sb3_compressed.kernels.byte_kernels import INT, STEP, WORD, common_length
from sb3_compressed.kernels.jit import (
    READ_BYTES,
    SHORT_INTS,
    byte_at,
    helper,
    int32_at,
    int64_at,
    kernel,
    put_word,
    stack_memory,
    word_at,
)

__all__ = [
    "SEARCH",
    "TABLE_BITS",
    "Search",
    "better_source",
    "clear_frame_table",
    "index_words",
    "n_bytes_to_pixel",
    "n_different_bytes",
    "new_frame_table",
    "store_words",
]

MAX_SOURCE = (256 - N_RECENT) << 16  # positions that three bytes can encode, besides the recent offsets
MIN_GAIN = 7  # bytes that another source must match beyond those that the current one matches
TABLE_BITS = 16
FRAME_TABLE_BITS = 11  # of a smaller table, since it is cleared for each batch
FRAME_TABLE_SHIFT = TABLE_BITS - FRAME_TABLE_BITS
INT32_NBYTES = 4
HASH = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio (Knuth, The Art of Computer Programming 3, 6.4)
NO_POSITION = np.uint64(0xFFFFFFFFFFFFFFFF)  # -1
new_frame_table = stack_memory(1 << FRAME_TABLE_BITS)
"""Return the address of scratch memory for the hash table of the words of a frame."""


class Search(NamedTuple):
    """Where sources for a frame are searched for.

    :param table: address of the hash table of the words of the references
    :param line: bytes of a line of pixels: a pixel often equals the one above
    :param plane: bytes of a color plane, as planes often have equal bytes; 0 if there is only one
    :param pixel: bytes of a pixel, if equal pixels are searched for in the frame itself; else 0
    :param recent: address of scratch memory for the recent offsets
    :param frame_table: address of the table that :func:`store_words` fills; it may contain words of previous frames
    :param begin: the position of the frame among those of its batch, which this table counts from
    """

    table: int
    line: int
    plane: int
    pixel: int
    recent: int
    frame_table: int
    begin: int


SEARCH = types.NamedUniTuple(INT, len(Search._fields), Search)  # type: ignore[no-untyped-call]


@helper(INT, types.uint64)
def n_different_bytes(word: np.uint64) -> int:
    """Count the nonzero bytes of a word."""
    low = np.uint64(0x7F7F7F7F7F7F7F7F)
    ones = ((((word & low) + low) | word) >> np.uint64(7)) & np.uint64(0x0101010101010101)
    return np.int64((ones * np.uint64(0x0101010101010101)) >> np.uint64(56))  # type: ignore[return-value]


@helper(types.boolean, INT, INT, INT, INT)
def differ_in(first: int, second: int, length: int, n_bytes: int) -> bool:
    """Return whether at least ``n_bytes`` of ``length`` bytes at two addresses differ."""
    n = 0
    while length >= WORD and n < n_bytes:
        n += n_different_bytes(word_at(first) ^ word_at(second))
        first += WORD
        second += WORD
        length -= WORD
    while length > 0 and n < n_bytes:
        length -= 1
        n += byte_at(first + length) != byte_at(second + length)
    return n >= n_bytes


@helper(INT, types.uint64)
def hash_of_word(word: np.uint64) -> int:
    """Return the index of a word in a hash table of ``2 ** TABLE_BITS`` elements."""
    return np.int64((word * HASH) >> np.uint64(64 - TABLE_BITS))  # type: ignore[return-value]


@kernel(types.void, READ_BYTES, SHORT_INTS)
def index_words(references: NDArray[np.uint8], table: NDArray[np.int32]) -> None:
    """Fill a hash table ``(2 ** TABLE_BITS,)`` with a position of every word of the references, -1 elsewhere.

    In a run of equal words only the first position is stored, from where the run is longest.
    """
    table[:] = -1
    address = references.ctypes.data
    previous = ~word_at(address) if references.size >= WORD else np.uint64(0)
    for i in range(references.size - WORD + 1):
        word = word_at(address + i)
        if word != previous:
            table[hash_of_word(word)] = i
        previous = word


@helper(INT, INT, INT)
def n_bytes_to_pixel(i: int, pixel: int) -> int:
    """Return the number of bytes from ``i`` to the start of a pixel. Divisions by constants are faster."""
    if pixel == 3:
        return (3 - i % 3) % 3
    if pixel == 1:
        return 0
    return -i % pixel


@helper(types.void, INT)
def clear_frame_table(table: int) -> None:
    """Remove all words from the hash table of a frame.

    :param table: address of the hash table
    """
    for k in range(1 << FRAME_TABLE_BITS):
        put_word(table + k * WORD, NO_POSITION)


@helper(types.void, SEARCH, INT, INT, INT)
def store_words(search: Search, frame: int, start: int, end: int) -> None:
    """Store the positions of those words of a frame that start with a pixel from ``start`` on, before ``end``.

    :param frame: address of the frame
    """
    i = start + n_bytes_to_pixel(start, search.pixel)
    while i < end:  # range() would divide
        hashed = hash_of_word(word_at(frame + i)) >> FRAME_TABLE_SHIFT
        put_word(search.frame_table + hashed * WORD, search.begin + i)
        i += search.pixel


@helper(INT, FRAME, INT, INT, types.uint64)
def match_length(frame: Frame, source: int, i: int, word: np.uint64) -> int:
    """Return how many bytes of a frame from ``i`` on equal those of a source; 0 if not even a word does.

    :param source: the position of the source
    :param word: the word of the frame at ``i``
    """
    references_nbytes = frame.references_nbytes
    if source < references_nbytes:
        if source < 0 or source + WORD > references_nbytes:
            return 0
        address = frame.references + source
        readable = min(references_nbytes - source, frame.size - i)
    else:
        if source - references_nbytes + STEP > i:
            return 0
        address = frame.address + source - references_nbytes
        readable = frame.size - i
    if word_at(address) != word:
        return 0
    return WORD + common_length(frame.address + i + WORD, address + WORD, readable - WORD)


@helper(PAIR, FRAME, SEARCH, INT, INT)
def better_source(frame: Frame, search: Search, i: int, offset: int) -> tuple[int, int]:
    """Find a source that matches the frame from ``i`` on so much better than the current one that changing it pays.

    It tries a position of the same word in the frame itself, which is preferred as it often suits the next lines, too,
    then one in the references, the line above, other color planes, and the recent offsets.

    :param offset: the current source
    :return: its offset, which is ``offset`` if none is better, and its index among the recent ones, :data:`N_RECENT` if
        it is none of them
    """
    references_nbytes = frame.references_nbytes
    word = word_at(frame.address + i)
    hashed = hash_of_word(word)
    longest = 0
    best, index = offset, N_RECENT
    if search.pixel:
        stored = int64_at(search.frame_table + (hashed >> FRAME_TABLE_SHIFT) * WORD) - search.begin
        source = references_nbytes + stored
        if stored >= 0 and source - i != offset and source < MAX_SOURCE:
            longest = match_length(frame, source, i, word)
            best = source - i if longest else offset
    source = int32_at(search.table + hashed * INT32_NBYTES)
    if source - i != offset and source < MAX_SOURCE:
        length = match_length(frame, source, i, word)
        if length > longest:
            longest, best = length, source - i
    for k in range(3 if search.plane else 1):
        source = references_nbytes + i - (search.line if k == 0 else (3 - k) * search.plane)
        if source - i != offset and source < MAX_SOURCE:
            length = match_length(frame, source, i, word)
            if length > longest:
                longest, best = length, source - i
    for k in range(N_RECENT):
        other = int64_at(search.recent + k * WORD)
        if other != offset:
            length = match_length(frame, other + i, i, word)
            if length > max(longest - 2, 0):  # a recent offset takes two bytes less
                longest, best, index = length, other, k
    if longest < MIN_GAIN:
        return offset, N_RECENT
    comparable = min(longest, n_readable(frame, offset + i, i))
    if comparable > 0:
        source = address_of(frame, offset + i)
        if not differ_in(frame.address + i, source, comparable, MIN_GAIN - longest + comparable):
            return offset, N_RECENT
    return best, index

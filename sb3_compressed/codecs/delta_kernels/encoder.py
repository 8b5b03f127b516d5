"""The encoder of deltas."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import FIRST_REFERENCE
from sb3_compressed.codecs.delta_kernels.copy_sources import (
    LONG,
    N_RECENT,
    address_of,
    fill_recent,
    n_readable,
    new_recent,
    push_offset,
)
from sb3_compressed.codecs.delta_kernels.references import nearest_reference
from sb3_compressed.codecs.delta_kernels.source_search import (
    better_source,
    clear_frame_table,
    n_bytes_to_pixel,
    n_different_bytes,
    new_frame_table,
    store_words,
)
from sb3_compressed.kernels.byte_kernels import INT, STEP, WORD, common_length, copy_bytes
from sb3_compressed.kernels.jit import (
    BYTES,
    INT_ROWS,
    READ_BYTE_ROWS,
    READ_BYTES,
    SHORT_INTS,
    byte_at,
    first_byte_of,
    helper,
    kernel,
    last_byte_of,
    put_byte,
    word_at,
)

__all__ = ["encode_deltas"]

MAX_NUMBER = 0xFFFF  # the largest number of two bytes
MAX_GAP = 5  # at most so many equal bytes between two runs are cheaper as literals than as a new piece
ROOM = 16  # the most bytes of a piece, a change of source and the end of a payload, besides literals
DENSE = 4  # different bytes of a word that start a search for another source: small differences are not scrolling
DENSE_IN_TILES = 3  # the same where tiles are searched for: as many as a pixel has
MAX_STRETCH_NBYTES = 5  # bytes that encode a stretch of 65,536 equal bytes
RUN = types.UniTuple(INT, 6)  # type: ignore[no-untyped-call]


@helper(INT, INT, INT)
def write_number(at: int, number: int) -> int:
    """Write a number at an address of the payload; return the address after it, as the next functions do."""
    if number < LONG:
        put_byte(at, number)
        return at + 1
    put_byte(at, LONG)
    put_byte(at + 1, number & 0xFF)
    put_byte(at + 2, number >> 8)
    return at + 3


@helper(INT, INT, INT, INT, INT)
def write_equal(at: int, frame: int, start: int, end: int) -> int:
    """Write that the bytes of a frame from ``start`` to ``end`` equal the source.

    A number encodes at most 65,535 bytes. Of more, one in 65,536 is written as a literal.

    :param frame: address of the frame
    """
    for _ in range((end - start) >> 16):
        at = write_number(write_number(at, MAX_NUMBER), 1)
        put_byte(at, byte_at(frame + start + MAX_NUMBER))
        at += 1
        start += MAX_NUMBER + 1
    return write_number(at, end - start)


@helper(INT, INT, INT, INT, INT, INT, INT, INT, inline=True)
def write_literals(at: int, limit: int, frame: int, size: int, encoded: int, start: int, end: int) -> int:
    """Write that bytes equal the source up to ``start``, and those from there to ``end``.

    :param limit: address after the memory for the payload
    :param frame: address of the frame, of ``size`` bytes
    :param encoded: bytes of the frame that the payload encodes so far
    """
    at = write_number(write_equal(at, frame, encoded, start), end - start)
    copy_bytes(frame + start, at, end - start, min(size - start, limit - at))
    return at + end - start


@helper(INT, INT, INT, INT, INT, INT, INT, inline=True)
def write_source(at: int, frame: int, encoded: int, i: int, offset: int, index: int) -> int:
    """Write that bytes equal the source up to ``i``, and another source from there on.

    :param frame: address of the frame
    :param encoded: bytes of the frame that the payload encodes so far
    :param offset: the other source
    :param index: its index among the recent offsets, :data:`N_RECENT` if it is none of them
    """
    at = write_equal(at, frame, encoded, i)
    put_byte(at, 0)
    if index < N_RECENT:
        put_byte(at + 1, index)
        return at + 2
    source = offset + i
    put_byte(at + 1, N_RECENT + (source >> 16))
    put_byte(at + 2, source & 0xFF)
    put_byte(at + 3, (source >> 8) & 0xFF)
    return at + 4


@helper(INT, INT, INT, INT, INT, INT, INT, INT, INT, inline=True)
def store_searched(
    frame: int, stored: int, pending: int, start: int, i: int, pixel: int, first: int, table: int
) -> int:
    """Store the words of a frame that are searched for, up to ``i``, and return up to where they are stored now.

    Words that start before ``stored`` are in the table; those before ``pending`` are to follow. Of equal words the
    table has the last one, which must not be so near that it is no valid source.

    :param frame: address of the frame
    :param start: the first of the bytes that differ
    """
    if start > pending:
        store_words(frame, stored, pending, pixel, first, table)
        stored = start
    last = i + 1 - STEP
    if stored < last:
        store_words(frame, stored, last, pixel, first, table)
        stored = last
    return stored


@helper(INT, INT, INT, INT, INT, INT, INT, INT, inline=True)
def first_equal(frame: int, size: int, references: int, references_size: int, offset: int, start: int, i: int) -> int:
    """Return from where on, but not before ``start``, the bytes of a frame before ``i`` equal those of a source."""
    while i > start and n_readable(offset + i - 1, references_size, i - 1, size) > 0:
        source = address_of(offset + i - 1, references, references_size, frame)
        if byte_at(source) != byte_at(frame + i - 1):
            break
        i -= 1
    return i


@helper(RUN, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, inline=True)
def different_bytes(
    frame: int,
    size: int,
    references: int,
    references_size: int,
    table: int,
    frame_table: int,
    first: int,
    start: int,
    offset: int,
    line: int,
    plane: int,
    pixel: int,
    recent: int,
    stored: int,
    pending: int,
) -> tuple[int, int, int, int, int, int]:
    """Find the bytes from ``start`` on that differ from the source, until they are equal for a while.

    :return: where they end; the next byte to compare; the offset of a better source from there on, or the same, and its
        index, as of :func:`better_source`; ``stored`` and ``pending``, as of :func:`store_searched`
    """
    least = DENSE_IN_TILES if pixel else DENSE
    i = end = start
    base = address_of(offset + i, references, references_size, frame) - i
    last = i + n_readable(offset + i, references_size, i, size)
    while i < size and i - end <= MAX_GAP:
        whole = i + WORD <= last
        different = word_at(frame + i) ^ word_at(base + i) if whole else np.uint64(0)
        if whole and (different == 0 or i + first_byte_of(different) - end > MAX_GAP):
            break
        dense = n_different_bytes(different) >= least if whole else (i - start) % WORD == 0
        if dense and i + WORD <= size:
            at = i
            if pixel:
                skipped = n_bytes_to_pixel(i, pixel)
                at += skipped if i + skipped + WORD <= last else 0
            best, index = better_source(
                frame, size, references, references_size, table, frame_table, first, at, offset, line, plane, pixel,
                recent,
            )  # fmt: skip
            if pixel:
                stored = store_searched(frame, stored, pending, start, i, pixel, first, frame_table)
                pending = i + 1
            if best != offset:
                equal = first_equal(frame, size, references, references_size, best, start, at)
                return (equal if equal > i else min(end, equal)), equal, best, index, stored, pending
        if whole:
            end = i + last_byte_of(different) + 1
            i += WORD
        else:
            if i >= last or byte_at(base + i) != byte_at(frame + i):
                end = i + 1
            i += 1
    return end, i, offset, N_RECENT, stored, pending


@helper(INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT)
def encode_delta(
    frame: int,
    size: int,
    references: int,
    references_size: int,
    table: int,
    frame_table: int,
    first: int,
    reference: int,
    line: int,
    plane: int,
    pixel: int,
    recent: int,
    payload: int,
    room: int,
) -> int:
    """Encode a frame; return the bytes written, -1 if the payload does not fit. See :func:`encode_deltas`.

    :param frame: address of the frame, of ``size`` bytes
    :param references: address of the references, of ``references_size`` bytes together
    :param table: address of the hash table of the words of the references
    :param frame_table: address of the one that :func:`store_words` fills; it may contain words of previous frames
    :param first: the position of the frame among those of its batch, which the table counts from
    :param reference: index of the first source
    :param recent: address of scratch memory for the recent offsets
    :param payload: address of the output, of ``room`` bytes
    """
    # Long stretches of equal bytes take more, but their number is limited.
    spare = ROOM + MAX_STRETCH_NBYTES * (size >> 16)
    if room < spare:
        return -1
    limit = payload + room
    offset = reference * size
    fill_recent(recent, offset)
    put_byte(payload, FIRST_REFERENCE + reference)
    written = payload + 1
    stored = pending = encoded = 0
    i = common_length(frame, references + offset, size)
    while i < size:
        start = i
        end, i, best, index, stored, pending = different_bytes(
            frame, size, references, references_size, table, frame_table, first, start, offset, line, plane, pixel,
            recent, stored, pending,
        )  # fmt: skip
        if written + end - start + spare > limit or end - start > MAX_NUMBER:
            return -1
        if end > start:
            written = write_literals(written, limit, frame, size, encoded, start, end)
            encoded = end
        if best != offset:
            written = write_source(written, frame, encoded, i, best, index)
            push_offset(recent, min(index, N_RECENT - 1), offset)
            offset, encoded = best, i
        readable = n_readable(offset + i, references_size, i, size)
        if readable > 0:
            i += common_length(frame + i, address_of(offset + i, references, references_size, frame), readable)
    return write_equal(written, frame, encoded, size) - payload


@kernel(INT, READ_BYTE_ROWS, READ_BYTES, SHORT_INTS, INT, INT, INT, INT, BYTES, INT_ROWS)
def encode_deltas(
    frames: NDArray[np.uint8],
    references: NDArray[np.uint8],
    table: NDArray[np.int32],
    line: int,
    plane: int,
    pixel: int,
    max_nbytes: int,
    payloads: NDArray[np.uint8],
    places: NDArray[np.int64],
) -> int:
    """Encode each frame, starting from the reference nearest to it.

    :param frames: bytes of frames, ``(n, frame_nbytes)``
    :param references: bytes of all references, ``(n_references * frame_nbytes,)``
    :param table: the hash table that :func:`index_words` filled
    :param line: bytes of a line of pixels: a pixel often equals the one above
    :param plane: bytes of a color plane, as planes often have equal bytes; 0 if there is only one
    :param pixel: bytes of a pixel, if equal pixels are searched for in the frame itself, which takes more time; else 0
    :param max_nbytes: the bytes of a small payload
    :param payloads: output, the payloads one after the other, ``(n * room,)``; each has at most ``room`` bytes
    :param places: output, for each payload its address, its number of bytes, and 0, ``(n, 3)``; one that does not fit
        has no bytes
    :return: the number of bytes of all payloads; 0 if one does not fit, or is larger than small ones
    """
    first, references_address, references_size = frames.ctypes.data, references.ctypes.data, references.size
    table_address, output = table.ctypes.data, payloads.ctypes.data
    recent, frame_table = new_recent(), new_frame_table()
    if pixel:
        clear_frame_table(frame_table)
    n_frames, size = frames.shape
    room = payloads.size // n_frames
    nearest = written = n_large = 0
    for k in range(n_frames):
        frame = first + k * size
        nearest = nearest_reference(frame, size, references_address, references_size // size, nearest)
        length = encode_delta(
            frame, size, references_address, references_size, table_address, frame_table, k * size, nearest,
            line, plane, pixel, recent, output + written, room,
        )  # fmt: skip
        length = max(length, 0)
        places[k, 0], places[k, 1], places[k, 2] = output + written, length, 0
        written += length
        n_large += not 0 < length <= max_nbytes
    return 0 if n_large else written

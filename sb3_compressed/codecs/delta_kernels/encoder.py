"""The encoder of deltas."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype, types
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_format import ENCODER_STATE, FIRST_REFERENCE
from sb3_compressed.codecs.delta_kernels.copy_sources import (
    FRAME,
    LONG,
    N_RECENT,
    Frame,
    address_of,
    fill_recent,
    n_readable,
    new_recent,
    push_offset,
)
from sb3_compressed.codecs.delta_kernels.references import nearest_reference
from sb3_compressed.codecs.delta_kernels.source_search import (
    SEARCH,
    TABLE_BITS,
    Search,
    better_source,
    clear_frame_table,
    index_words,
    n_bytes_to_pixel,
    n_different_bytes,
    new_frame_table,
    store_words,
)
from sb3_compressed.kernels.byte_kernels import INT, STEP, WORD, common_length, copy_bytes, signed_address
from sb3_compressed.kernels.jit import (
    BYTES,
    INT_ROWS,
    READ_BYTE_ROWS,
    byte_at,
    first_byte_of,
    helper,
    kernel,
    last_byte_of,
    put_byte,
    word_at,
)

__all__ = ["DeltaEncoder", "encode_deltas"]

ENCODER_STATES = types.Array(from_dtype(ENCODER_STATE), 1, "C")
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


@helper(INT, SEARCH, INT, INT, INT, INT, INT, inline=True)
def store_searched(search: Search, frame: int, stored: int, pending: int, start: int, i: int) -> int:
    """Store the words of a frame that are searched for, up to ``i``, and return up to where they are stored now.

    Words that start before ``stored`` are in the table; those before ``pending`` are to follow. Of equal words the
    table has the last one, which must not be so near that it is no valid source.

    :param frame: address of the frame
    :param start: the first of the bytes that differ
    """
    if start > pending:
        store_words(search, frame, stored, pending)
        stored = start
    last = i + 1 - STEP
    if stored < last:
        store_words(search, frame, stored, last)
        stored = last
    return stored


@helper(INT, FRAME, INT, INT, INT, inline=True)
def first_equal(frame: Frame, offset: int, start: int, i: int) -> int:
    """Return from where on, but not before ``start``, the bytes of a frame before ``i`` equal those of a source."""
    while i > start and n_readable(frame, offset + i - 1, i - 1) > 0:
        if byte_at(address_of(frame, offset + i - 1)) != byte_at(frame.address + i - 1):
            break
        i -= 1
    return i


@helper(RUN, FRAME, SEARCH, INT, INT, INT, INT, inline=True)
def different_bytes(
    frame: Frame, search: Search, start: int, offset: int, stored: int, pending: int
) -> tuple[int, int, int, int, int, int]:
    """Find the bytes from ``start`` on that differ from the source, until they are equal for a while.

    :return: where they end; the next byte to compare; the offset of a better source from there on, or the same, and its
        index, as of :func:`better_source`; ``stored`` and ``pending``, as of :func:`store_searched`
    """
    size, pixel = frame.size, search.pixel
    least = DENSE_IN_TILES if pixel else DENSE
    i = end = start
    base = address_of(frame, offset + i) - i
    last = i + n_readable(frame, offset + i, i)
    while i < size and i - end <= MAX_GAP:
        whole = i + WORD <= last
        different = word_at(frame.address + i) ^ word_at(base + i) if whole else np.uint64(0)
        if whole and (different == 0 or i + first_byte_of(different) - end > MAX_GAP):
            break
        dense = n_different_bytes(different) >= least if whole else (i - start) % WORD == 0
        if dense and i + WORD <= size:
            at = i
            if pixel:
                skipped = n_bytes_to_pixel(i, pixel)
                at += skipped if i + skipped + WORD <= last else 0
            best, index = better_source(frame, search, at, offset)
            if pixel:
                stored = store_searched(search, frame.address, stored, pending, start, i)
                pending = i + 1
            if best != offset:
                equal = first_equal(frame, best, start, at)
                return (equal if equal > i else min(end, equal)), equal, best, index, stored, pending
        if whole:
            end = i + last_byte_of(different) + 1
            i += WORD
        else:
            if i >= last or byte_at(base + i) != byte_at(frame.address + i):
                end = i + 1
            i += 1
    return end, i, offset, N_RECENT, stored, pending


@helper(INT, FRAME, SEARCH, INT, INT, INT)
def encode_delta(frame: Frame, search: Search, reference: int, payload: int, room: int) -> int:
    """Encode a frame; return the bytes written, -1 if the payload does not fit. See :func:`encode_deltas`.

    :param reference: index of the first source
    :param payload: address of the output, of ``room`` bytes
    """
    address, size = frame.address, frame.size
    # Long stretches of equal bytes take more, but their number is limited.
    spare = ROOM + MAX_STRETCH_NBYTES * (size >> 16)
    if room < spare:
        return -1
    limit = payload + room
    offset = reference * size
    fill_recent(search.recent, offset)
    put_byte(payload, FIRST_REFERENCE + reference)
    written = payload + 1
    stored = pending = encoded = 0
    i = common_length(address, frame.references + offset, size)
    while i < size:
        start = i
        end, i, best, index, stored, pending = different_bytes(frame, search, start, offset, stored, pending)
        if written + end - start + spare > limit or end - start > MAX_NUMBER:
            return -1
        if end > start:
            written = write_literals(written, limit, address, size, encoded, start, end)
            encoded = end
        if best != offset:
            written = write_source(written, address, encoded, i, best, index)
            push_offset(search.recent, min(index, N_RECENT - 1), offset)
            offset, encoded = best, i
        readable = n_readable(frame, offset + i, i)
        if readable > 0:
            i += common_length(address + i, address_of(frame, offset + i), readable)
    return write_equal(written, address, encoded, size) - payload


@kernel(INT, READ_BYTE_ROWS, ENCODER_STATES, BYTES, INT_ROWS)
def encode_deltas(
    frames: NDArray[np.uint8], encoder: NDArray[Any], payloads: NDArray[np.uint8], places: NDArray[np.int64]
) -> int:
    """Encode each frame, starting from the reference nearest to it.

    :param frames: bytes of frames, ``(n, frame_nbytes)``
    :param encoder: what encodes them, ``(1,)`` of :data:`.ENCODER_STATE`
    :param payloads: output, the payloads one after the other, ``(n * room,)``; each has at most ``room`` bytes
    :param places: output, for each payload its address, its number of bytes, and 0, ``(n, 3)``; one that does not fit
        has no bytes
    :return: the number of bytes of all payloads; 0 if one does not fit, or is larger than small ones
    """
    state = encoder[0]
    references, references_nbytes, small_nbytes = state.references, state.references_nbytes, state.small_nbytes
    table, line, plane, pixel = state.table, state.line, state.plane, state.pixel
    recent, frame_table = new_recent(), new_frame_table()
    if pixel:
        clear_frame_table(frame_table)
    n_frames, size = frames.shape
    first, output = signed_address(frames.ctypes.data), signed_address(payloads.ctypes.data)
    room = payloads.size // n_frames
    nearest = written = n_large = 0
    for k in range(n_frames):
        frame = Frame(first + k * size, size, references, references_nbytes)
        search = Search(table, line, plane, pixel, recent, frame_table, k * size)
        nearest = nearest_reference(frame.address, size, references, references_nbytes // size, nearest)
        length = max(encode_delta(frame, search, nearest, output + written, room), 0)
        places[k, 0], places[k, 1], places[k, 2] = output + written, length, 0
        written += length
        n_large += not 0 < length <= small_nbytes
    return 0 if n_large else written


class DeltaEncoder:
    """What :func:`encode_deltas` needs for frames of one shape.

    :param references: bytes of all references, ``(n_references * frame_nbytes,)``, which must not change
    :param line: bytes of a line of pixels
    :param plane: bytes of a color plane; 0 if there is only one
    :param pixel: bytes of a pixel, if equal pixels are searched for in the frame itself, which takes more time; else 0
    :param small_nbytes: the most bytes of a small payload, which need not compete with other coders
    :ivar state: the record of the kernel, ``(1,)`` of :data:`.ENCODER_STATE`; valid as long as this object lives
    """

    def __init__(self, references: NDArray[np.uint8], line: int, plane: int, pixel: int, small_nbytes: int) -> None:
        self.small_nbytes = small_nbytes
        table = np.empty(1 << TABLE_BITS, np.int32)
        index_words(references, table)
        self._memory = references, table
        addresses = references.ctypes.data, references.size, table.ctypes.data
        self.state = np.array([(*addresses, line, plane, pixel, small_nbytes)], ENCODER_STATE)

"""The encoder of deltas."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import FIRST_REFERENCE
from sb3_compressed.codecs.delta_kernels.copy_sources import (
    LONG,
    N_RECENT,
    address_of,
    n_readable,
    new_recent,
    push_offset,
)
from sb3_compressed.codecs.delta_kernels.references import nearest_reference
from sb3_compressed.codecs.delta_kernels.source_search import (
    better_source,
    n_bytes_to_pixel,
    n_different_bytes,
    new_frame_table,
    store_words,
)
from sb3_compressed.kernels.byte_kernels import INT, STEP, WORD, common_length, copy_bytes
from sb3_compressed.kernels.jit import (
    BYTES,
    INTS,
    READ_BYTE_ROWS,
    READ_BYTES,
    SHORT_INTS,
    byte_at,
    first_byte_of,
    helper,
    kernel,
    last_byte_of,
    word_at,
)

__all__ = ["encode_deltas"]

MAX_NUMBER = 0xFFFF  # the largest number of two bytes
MAX_GAP = 5  # at most so many equal bytes between two runs are cheaper as literals than as a new piece
ROOM = 16  # the most bytes of a piece, a change of source and the end of a payload, besides literals
DENSE = 4  # different bytes of a word that start a search for another source: small differences are not scrolling
DENSE_IN_TILES = 3  # the same where tiles are searched for: as many as a pixel has
MAX_STRETCH_NBYTES = 5  # bytes that encode a stretch of 65,536 equal bytes


@helper(INT, BYTES, INT, INT)
def write_number(payload: NDArray[np.uint8], written: int, number: int) -> int:
    """Append a number to the first ``written`` bytes; return the new number of bytes."""
    if number < LONG:
        payload[written] = number
        return written + 1
    payload[written] = LONG
    payload[written + 1] = number & 0xFF
    payload[written + 2] = number >> 8
    return written + 3


@helper(INT, BYTES, INT, INT, INT, INT)
def write_equal(payload: NDArray[np.uint8], written: int, frame: int, start: int, end: int) -> int:
    """Append that the bytes of a frame from ``start`` to ``end`` equal the source; return the new number of bytes.

    A number encodes at most 65,535 bytes. Of more, one in 65,536 is written as a literal.

    :param frame: address of the frame
    """
    for _ in range((end - start) >> 16):
        written = write_number(payload, written, MAX_NUMBER)
        written = write_number(payload, written, 1)
        payload[written] = byte_at(frame + start + MAX_NUMBER)
        written += 1
        start += MAX_NUMBER + 1
    return write_number(payload, written, end - start)


@helper(INT, READ_BYTES, READ_BYTES, SHORT_INTS, INTS, INT, INT, INT, INT, INT, INTS, BYTES)
def encode_delta(
    frame: NDArray[np.uint8],
    references: NDArray[np.uint8],
    table: NDArray[np.int32],
    frame_table: NDArray[np.int64],
    first: int,
    reference: int,
    line: int,
    plane: int,
    pixel: int,
    recent: NDArray[np.int64],
    payload: NDArray[np.uint8],
) -> int:
    """Encode a frame; return the bytes written, -1 if the payload does not fit.

    :param frame: bytes of the frame, ``(frame_nbytes,)``
    :param references: bytes of all references, ``(n_references * frame_nbytes,)``
    :param table: the hash table that :func:`index_words` filled
    :param frame_table: the hash table that :func:`store_words` fills; it may contain words of previous frames
    :param first: the position of the frame among those of its batch, which the table counts from
    :param reference: index of the first source
    :param line: bytes of a line of pixels: a pixel often equals the one above
    :param plane: bytes of a color plane, as planes often have equal bytes; 0 if there is only one
    :param pixel: bytes of a pixel, if equal pixels are searched for in the frame itself; else 0
    :param recent: scratch memory for the recent offsets, ``(N_RECENT,)``
    :param payload: output
    """
    size = frame.size
    frame_address = frame.ctypes.data
    references_address = references.ctypes.data
    # Long stretches of equal bytes take more, but their number is limited.
    spare = ROOM + MAX_STRETCH_NBYTES * (size >> 16)
    if payload.size < spare:
        return -1
    offset = reference * size
    recent[:] = offset
    payload[0] = FIRST_REFERENCE + reference
    written = 1
    least = DENSE_IN_TILES if pixel else DENSE
    # Words that start before ``stored`` are in the table of the frame; those before ``pending`` are to follow. Of equal
    # words the table has the last one, which must not be so near that it is no valid source.
    stored = pending = 0
    encoded = 0  # bytes of the frame that the payload encodes so far
    i = common_length(frame_address, references_address + offset, size)
    while i < size:
        # Frame and source differ here: write literals until they are equal for a while or another source is better.
        start = end = i
        best, index = offset, N_RECENT
        base = address_of(offset + i, references_address, references.size, frame_address) - i
        last = i + n_readable(offset + i, references.size, i, size)
        while i < size and i - end <= MAX_GAP:
            whole = i + WORD <= last
            different = word_at(frame_address + i) ^ word_at(base + i) if whole else np.uint64(0)
            if whole and (different == 0 or i + first_byte_of(different) - end > MAX_GAP):
                break
            dense = n_different_bytes(different) >= least if whole else (i - start) % WORD == 0
            if dense and i + WORD <= size:
                at = i
                if pixel:
                    skipped = n_bytes_to_pixel(i, pixel)
                    at += skipped if i + skipped + WORD <= last else 0
                best, index = better_source(
                    frame, references, table, frame_table, first, at, offset, line, plane, pixel, recent
                )
                if pixel:
                    if start > pending:
                        store_words(frame_address, stored, pending, pixel, first, frame_table)
                        stored = start
                    pending = i + 1
                    if stored < pending - STEP:
                        store_words(frame_address, stored, pending - STEP, pixel, first, frame_table)
                        stored = pending - STEP
                if best != offset:
                    searched = i
                    i = at
                    while i > start and n_readable(best + i - 1, references.size, i - 1, size) > 0:
                        source = address_of(best + i - 1, references_address, references.size, frame_address)
                        if byte_at(source) != byte_at(frame_address + i - 1):
                            break
                        i -= 1
                    end = i if i > searched else min(end, i)
                    break
            if whole:
                end = i + last_byte_of(different) + 1
                i += WORD
            else:
                if i >= last or byte_at(base + i) != byte_at(frame_address + i):
                    end = i + 1
                i += 1
        if written + end - start + spare > payload.size or end - start > MAX_NUMBER:
            return -1
        if end > start:
            written = write_equal(payload, written, frame_address, encoded, start)
            written = write_number(payload, written, end - start)
            room = min(size - start, payload.size - written)
            copy_bytes(frame_address + start, payload.ctypes.data + written, end - start, room)
            written += end - start
            encoded = end
        if best != offset:
            written = write_equal(payload, written, frame_address, encoded, i)
            payload[written] = 0
            written += 1
            if index < N_RECENT:
                payload[written] = index
                written += 1
            else:
                source = best + i
                payload[written] = N_RECENT + (source >> 16)
                payload[written + 1] = source & 0xFF
                payload[written + 2] = (source >> 8) & 0xFF
                written += 3
            push_offset(recent, min(index, N_RECENT - 1), offset)
            offset = best
            encoded = i
        readable = n_readable(offset + i, references.size, i, size)
        if readable > 0:
            source = address_of(offset + i, references_address, references.size, frame_address)
            i += common_length(frame_address + i, source, readable)
    return write_equal(payload, written, frame_address, encoded, size)


@kernel(INT, READ_BYTE_ROWS, READ_BYTES, SHORT_INTS, INT, INT, INT, BYTES, INTS)
def encode_deltas(
    frames: NDArray[np.uint8],
    references: NDArray[np.uint8],
    table: NDArray[np.int32],
    line: int,
    plane: int,
    pixel: int,
    payloads: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> int:
    """Encode each frame, starting from the reference nearest to it.

    :param frames: bytes of frames, ``(n, frame_nbytes)``
    :param references: bytes of all references, ``(n_references * frame_nbytes,)``
    :param table: the hash table that :func:`index_words` filled
    :param line: bytes of a line of pixels
    :param plane: bytes of a color plane, 0 if there is only one
    :param pixel: bytes of a pixel, if equal pixels are searched for in the frame itself, which takes more time; else 0
    :param payloads: output, the payloads one after the other, ``(n * room,)``; each has at most ``room`` bytes
    :param ends: output, the end of each payload, ``(n,)``; a payload that does not fit has no bytes
    :return: the bytes of all payloads
    """
    recent = new_recent()
    frame_table = new_frame_table()
    if pixel:
        frame_table[:] = -1
    n_frames, size = frames.shape
    room = payloads.size // n_frames
    nearest = 0
    written = 0
    for k in range(n_frames):
        address = frames[k].ctypes.data
        nearest = nearest_reference(address, size, references.ctypes.data, references.size // size, nearest)
        payload = payloads[written : written + room]
        length = encode_delta(
            frames[k], references, table, frame_table, k * size, nearest, line, plane, pixel, recent, payload
        )
        written += max(length, 0)
        ends[k] = written
    return written

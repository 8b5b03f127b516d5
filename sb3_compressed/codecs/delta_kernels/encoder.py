"""From frames to deltas."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import INT, WORD, common_length, copy_bytes
from sb3_compressed.codecs.delta_kernels.references import nearest_reference
from sb3_compressed.codecs.delta_kernels.sources import (
    FIRST_REFERENCE,
    LONG,
    N_RECENT,
    PAIR,
    address_of,
    n_readable,
    remember_shift,
)
from sb3_compressed.jit import (
    BYTES,
    INTS,
    READ_BYTE_ROWS,
    READ_BYTES,
    SHORT_INTS,
    byte_at,
    first_byte_of,
    kernel,
    last_byte_of,
    word_at,
)

__all__ = ["TABLE_BITS", "encode_deltas", "index_words"]

MAX_NUMBER = 0xFFFF  # that two bytes tell
MAX_GAP = 5  # equal bytes between two runs that cost less as literals than as a new run
MAX_SOURCE = (256 - N_RECENT) << 16  # positions that three bytes can tell, beside the recent shifts
MIN_GAIN = 7  # bytes that another source must have in common with a frame, beyond those of the present one
DENSE = 4  # bytes of a word that have to differ for another source to be looked for: small things are no scrolling
ROOM = 16  # bytes that a run, a change of source and the end of a payload take at most, besides literals
MAX_STRETCH_NBYTES = 5  # what a stretch of 65,536 equal bytes takes
TABLE_BITS = 16
HASH = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio (Knuth, The Art of Computer Programming 3, 6.4)


@kernel(INT, types.uint64)
def n_different_bytes(word: np.uint64) -> int:
    """Count the bytes of a word that are not 0."""
    low = np.uint64(0x7F7F7F7F7F7F7F7F)
    ones = ((((word & low) + low) | word) >> np.uint64(7)) & np.uint64(0x0101010101010101)
    return np.int64((ones * np.uint64(0x0101010101010101)) >> np.uint64(56))  # type: ignore[return-value]


@kernel(types.boolean, INT, INT, INT, INT)
def differ_in(some: int, others: int, length: int, n_bytes: int) -> bool:
    """Return whether of ``length`` bytes at two addresses ``n_bytes`` or more differ."""
    n = 0
    while length >= WORD and n < n_bytes:
        n += n_different_bytes(word_at(some) ^ word_at(others))
        some += WORD
        others += WORD
        length -= WORD
    while length > 0 and n < n_bytes:
        length -= 1
        n += byte_at(some + length) != byte_at(others + length)
    return n >= n_bytes


@kernel(INT, types.uint64)
def place_of_word(word: np.uint64) -> int:
    """Return where a word has its place in a table of ``2 ** TABLE_BITS``."""
    return np.int64((word * HASH) >> np.uint64(64 - TABLE_BITS))  # type: ignore[return-value]


@kernel(types.void, READ_BYTES, SHORT_INTS)
def index_words(bank: NDArray[np.uint8], table: NDArray[np.int32]) -> None:
    """Fill a table ``(2 ** TABLE_BITS,)`` with a position of every word in the bank, -1 elsewhere.

    Of a run of equal words the first position is kept, from where most of the run follows.
    """
    table[:] = -1
    address = bank.ctypes.data
    before = ~word_at(address) if bank.size >= WORD else np.uint64(0)
    for i in range(bank.size - WORD + 1):
        word = word_at(address + i)
        if word != before:
            table[place_of_word(word)] = i
        before = word


@kernel(INT, BYTES, INT, INT)
def write_number(payload: NDArray[np.uint8], written: int, number: int) -> int:
    """Write a number behind the first ``written`` bytes; return how many there are then."""
    if number < LONG:
        payload[written] = number
        return written + 1
    payload[written] = LONG
    payload[written + 1] = number & 0xFF
    payload[written + 2] = number >> 8
    return written + 3


@kernel(INT, BYTES, INT, INT, INT, INT)
def write_equal(payload: NDArray[np.uint8], written: int, frame: int, start: int, end: int) -> int:
    """Write that the bytes of a frame from ``start`` to ``end`` equal the source; return how many are written then.

    A number tells of 65,535 at most. Of more, one in 65,536 is told as a literal.

    :param frame: address of the frame's bytes
    """
    for _ in range((end - start) >> 16):
        written = write_number(payload, written, MAX_NUMBER)
        written = write_number(payload, written, 1)
        payload[written] = byte_at(frame + start + MAX_NUMBER)
        written += 1
        start += MAX_NUMBER + 1
    return write_number(payload, written, end - start)


@kernel(PAIR, READ_BYTES, READ_BYTES, SHORT_INTS, INT, INT, INT, INT, INTS)
def better_source(
    frame: NDArray[np.uint8],
    bank: NDArray[np.uint8],
    table: NDArray[np.int32],
    i: int,
    shift: int,
    line: int,
    plane: int,
    recent: NDArray[np.int64],
) -> tuple[int, int]:
    """Return the shift of a source that is so much better from ``frame[i]`` on that it is worth to change.

    What is tried are the recent ones, the line above, other colours, and wherever the bank has the same word.

    :return: its shift, which is ``shift`` where none is better, and its place among the recent ones,
        :data:`N_RECENT` for another
    """
    size = frame.size
    here = frame.ctypes.data
    there = bank.ctypes.data
    word = word_at(here + i)
    longest = 0
    better, place = shift, N_RECENT
    for k in range(-4, N_RECENT):  # fixed, so that the compiler unrolls it
        if k == -4:
            other = int(table[place_of_word(word)]) - i
            if other + i < 0:
                continue
        elif k == -3:
            other = bank.size - line
        elif k < 0:
            if not plane:
                continue
            other = bank.size + k * plane
        else:
            other = recent[k]
        readable = n_readable(other + i, bank.size, i, size)
        if other == shift or readable < WORD or (k < 0 and other + i >= MAX_SOURCE):
            continue
        source = address_of(other + i, there, bank.size, here)
        if word_at(source) != word:
            continue
        length = common_length(here + i, source, readable)
        if length > longest - 2 * (k >= 0):  # recent ones take two bytes less to tell
            longest, better, place = length, other, (k if k >= 0 else N_RECENT)
    if longest < MIN_GAIN:
        return shift, N_RECENT
    comparable = min(longest, n_readable(shift + i, bank.size, i, size))
    if comparable > 0:
        source = address_of(shift + i, there, bank.size, here)
        if not differ_in(here + i, source, comparable, MIN_GAIN - longest + comparable):
            return shift, N_RECENT
    return better, place


@kernel(INT, READ_BYTES, READ_BYTES, SHORT_INTS, INT, INT, INT, INTS, BYTES)
def encode_delta(
    frame: NDArray[np.uint8],
    bank: NDArray[np.uint8],
    table: NDArray[np.int32],
    reference: int,
    line: int,
    plane: int,
    recent: NDArray[np.int64],
    payload: NDArray[np.uint8],
) -> int:
    """Write a frame as a delta to a reference; return the bytes written, -1 without room.

    :param frame: its bytes, ``(frame_nbytes,)``
    :param bank: bytes of all references, ``(n_references * frame_nbytes,)``
    :param table: what :func:`index_words` made of the bank
    :param reference: the one to begin with
    :param line: bytes of a line of pixels: what is above a pixel is often like it
    :param plane: bytes of all lines, if those of another colour follow: it often has the same; else 0
    :param recent: room for the recent shifts, ``(N_RECENT,)``
    :param payload: room for the payload
    """
    size = frame.size
    here = frame.ctypes.data
    there = bank.ctypes.data
    spare = ROOM + MAX_STRETCH_NBYTES * (size >> 16)  # long stretches of equal bytes take more, but only so many can be
    if payload.size < spare:
        return -1
    shift = reference * size
    recent[:] = shift
    payload[0] = FIRST_REFERENCE + reference
    written = 1
    told = 0  # up to here the payload tells the frame
    i = common_length(here, there + shift, size)
    while i < size:
        # Here frame and source differ. Literals, until they are equal for a while or another source is better.
        start = end = i
        better, place = shift, N_RECENT
        base = address_of(shift + i, there, bank.size, here) - i
        last = i + n_readable(shift + i, bank.size, i, size)
        while i < size and i - end <= MAX_GAP:
            whole = i + WORD <= last
            different = word_at(here + i) ^ word_at(base + i) if whole else np.uint64(0)
            if whole and (different == 0 or i + first_byte_of(different) - end > MAX_GAP):
                break
            dense = n_different_bytes(different) >= DENSE if whole else (i - start) % WORD == 0
            if dense and i + WORD <= size:
                better, place = better_source(frame, bank, table, i, shift, line, plane, recent)
                if better != shift:
                    while i > start and n_readable(better + i - 1, bank.size, i - 1, size) > 0:
                        if byte_at(address_of(better + i - 1, there, bank.size, here)) != byte_at(here + i - 1):
                            break
                        i -= 1
                    end = min(end, i)
                    break
            if whole:
                end = i + last_byte_of(different) + 1
                i += WORD
            else:
                if i >= last or byte_at(base + i) != byte_at(here + i):
                    end = i + 1
                i += 1
        if written + end - start + spare > payload.size or end - start > MAX_NUMBER:
            return -1
        if end > start:
            written = write_equal(payload, written, here, told, start)
            written = write_number(payload, written, end - start)
            room = min(size - start, payload.size - written)
            copy_bytes(here + start, payload.ctypes.data + written, end - start, room)
            written += end - start
            told = end
        if better != shift:
            written = write_equal(payload, written, here, told, i)
            payload[written] = 0
            written += 1
            if place < N_RECENT:
                payload[written] = place
                written += 1
            else:
                source = better + i
                payload[written] = N_RECENT + (source >> 16)
                payload[written + 1] = source & 0xFF
                payload[written + 2] = (source >> 8) & 0xFF
                written += 3
            remember_shift(recent, min(place, N_RECENT - 1), shift)
            shift = better
            told = i
        readable = n_readable(shift + i, bank.size, i, size)
        if readable > 0:
            i += common_length(here + i, address_of(shift + i, there, bank.size, here), readable)
    return write_equal(payload, written, here, told, size)


@kernel(INT, READ_BYTE_ROWS, READ_BYTES, SHORT_INTS, INT, INT, BYTES, INTS)
def encode_deltas(
    frames: NDArray[np.uint8],
    bank: NDArray[np.uint8],
    table: NDArray[np.int32],
    line: int,
    plane: int,
    payloads: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> int:
    """Encode each frame, beginning with the reference nearest to it.

    :param frames: bytes of frames, ``(n, frame_nbytes)``
    :param bank: bytes of all references, ``(n_references * frame_nbytes,)``
    :param table: what :func:`index_words` made of the bank
    :param line: bytes of a line of pixels
    :param plane: bytes of all lines, if those of another colour follow, else 0
    :param payloads: room for the payloads, one after the other, ``(n * room,)``; each may have ``room`` bytes
    :param ends: is given where each payload ends; one that has no room has no bytes, ``(n,)``
    :return: the bytes of all payloads
    """
    recent = np.empty(N_RECENT, dtype=np.int64)
    n_frames, size = frames.shape
    room = payloads.size // n_frames
    nearest = 0
    written = 0
    for k in range(n_frames):
        nearest = nearest_reference(frames[k].ctypes.data, size, bank.ctypes.data, bank.size // size, nearest)
        payload = payloads[written : written + room]
        length = encode_delta(frames[k], bank, table, nearest, line, plane, recent, payload)
        written += max(length, 0)
        ends[k] = written
    return written

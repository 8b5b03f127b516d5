"""The numba kernels behind ``delta``; :mod:`sb3_compressed.codecs.delta` tells the wire format.

*Bank* are the bytes of all reference frames, one after the other; the bytes of the frame itself follow, as far as they
are known. The *source* of the byte at ``position`` of the frame is that at ``shift + position`` of all these.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import INT, STEP, WORD, common_length, copy_bytes, number_at
from sb3_compressed.jit import (
    BYTE_ROWS,
    BYTES,
    INT_ROWS,
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

__all__ = ["DONE", "NOT_A_DELTA", "decode_deltas", "encode_deltas", "index_words", "word_differences"]

TO_DO, DONE, NOT_A_DELTA, CORRUPT = 0, 1, 2, 3
"""What :func:`decode_deltas` says of a payload."""

FIRST_REFERENCE = 2  # header bytes below are those of zstd payloads
LONG = 255  # a number that does not fit one byte: two bytes follow
MAX_NUMBER = 0xFFFF  # that two bytes tell
MAX_GAP = 5  # equal bytes between two runs that cost less as literals than as a new run
N_RECENT = 4  # shifts that a change of source can name by one byte
MAX_SOURCE = (256 - N_RECENT) << 16  # positions that three bytes can tell, beside the recent shifts
MIN_GAIN = 7  # bytes that another source must have in common with a frame, beyond those of the present one
DENSE = 4  # bytes of a word that have to differ for another source to be looked for: small things are no scrolling
SAMPLE = 32  # words looked at in one go, to tell which frames are alike
ROOM = 16  # bytes that a run, a change of source and the end of a payload take at most, besides literals
MAX_STRETCH_NBYTES = 5  # what a stretch of 65,536 equal bytes takes
TABLE_BITS = 16
HASH = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio (Knuth, The Art of Computer Programming 3, 6.4)
PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]


@kernel(INT, types.uint64)
def n_different_bytes(word: np.uint64) -> int:
    """Count the bytes of a word that are not 0."""
    low = np.uint64(0x7F7F7F7F7F7F7F7F)
    ones = ((((word & low) + low) | word) >> np.uint64(7)) & np.uint64(0x0101010101010101)
    return np.int64((ones * np.uint64(0x0101010101010101)) >> np.uint64(56))  # type: ignore[return-value]


@kernel(types.boolean, INT, INT, INT, INT)
def differ_in(some: int, others: int, length: int, n_bytes: int) -> bool:
    """Tell whether of ``length`` bytes at two addresses ``n_bytes`` or more differ."""
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


@kernel(INT, INT, INT, INT)
def count_different_words(some: int, others: int, n_words: int) -> int:
    """Count the words that differ at two addresses; without branches, for wide instructions."""
    n_different = 0
    for k in range(n_words):
        n_different += word_at(some + k * WORD) != word_at(others + k * WORD)
    return n_different


@kernel(INT, INT, INT, INT, INT)
def dissimilarity(frame: int, reference: int, size: int, most: int) -> int:
    """Tell how different two frames are, up to ``most``, from a quarter of their words: a measure to choose by."""
    if size < 8 * SAMPLE * WORD:  # of small ones, from all
        return count_different_words(frame, reference, size // WORD)
    n_different = 0
    at = 0
    while at + SAMPLE * WORD <= size and n_different < most:
        n_different += count_different_words(frame + at, reference + at, SAMPLE)
        at += 4 * SAMPLE * WORD
    return n_different


@kernel(types.void, READ_BYTE_ROWS, INT_ROWS)
def word_differences(frames: NDArray[np.uint8], differences: NDArray[np.int64]) -> None:
    """Write in how many words each two of ``frames`` ``(n, frame_nbytes)`` differ to ``differences`` ``(n, n)``."""
    n_frames, size = frames.shape
    for i in range(n_frames):
        differences[i, i] = 0
        for j in range(i):
            address = frames.ctypes.data
            n_different = count_different_words(address + i * size, address + j * size, size // WORD)
            for k in range(size - size % WORD, size):
                n_different += frames[i, k] != frames[j, k]
            differences[i, j] = differences[j, i] = n_different


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


@kernel(INT, INT, INT, INT, INT, INT)
def nearest_reference(frame: int, size: int, bank: int, n_references: int, guess: int) -> int:
    """Return which reference differs from a frame least, ``guess`` where it is as good as another.

    :param frame: address of the frame's bytes
    :param size: how many there are
    :param bank: address of the references
    """
    nearest = guess
    least = dissimilarity(frame, bank + guess * size, size, size)
    for index in range(n_references):
        if index != guess:
            found = dissimilarity(frame, bank + index * size, size, least)
            if found < least:
                least = found
                nearest = index
    return nearest


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


@kernel(types.void, INTS, INT, INT)
def remember_shift(recent: NDArray[np.int64], place: int, shift: int) -> None:
    """Put a shift that is left before the recent ones, and take the one at ``place`` out of them."""
    for k in range(place, 0, -1):
        recent[k] = recent[k - 1]
    recent[0] = shift


@kernel(INT, INT, INT, INT, INT)
def n_readable(source: int, bank_size: int, position: int, size: int) -> int:
    """Return for how many bytes from ``position`` on a source can be read, 0 if it cannot be.

    Of the frame itself only what lies a whole step back can: closer bytes may not be there when a step is copied.
    """
    if source < 0:
        return 0
    if source < bank_size:
        return min(bank_size - source, size - position)
    return size - position if source - bank_size + STEP <= position else 0


@kernel(INT, INT, INT, INT, INT)
def address_of(source: int, bank: int, bank_size: int, frame: int) -> int:
    """Return where a source is in memory."""
    return bank + source if source < bank_size else frame + source - bank_size


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


@kernel(PAIR, INT, INT, INT)
def read_number(payload: int, at: int, size: int) -> tuple[int, int]:
    """Return the number at ``at`` and where what follows it starts; beyond ``size`` where it goes beyond the end.

    :param payload: address of the payload
    :param size: how many bytes it has
    """
    if at >= size:
        return 0, size + 1
    first = number_at(payload + at)
    if first < LONG:
        return first, at + 1
    if at + 3 > size:
        return 0, size + 1
    return number_at(payload + at + 1) | number_at(payload + at + 2) << 8, at + 3


@kernel(types.uint8, INT, INT, INT, INT, INTS, INT, INT)
def decode_delta(
    payload: int, payload_size: int, bank: int, bank_size: int, recent: NDArray[np.int64], frame: int, size: int
) -> int:
    """Decode one payload; return :data:`DONE`, :data:`NOT_A_DELTA` or :data:`CORRUPT`.

    :param payload: address of the payload, of ``payload_size`` bytes
    :param bank: address of the references of its codec, ``bank_size`` bytes in all
    :param recent: room for the recent shifts, ``(N_RECENT,)``
    :param frame: address of the memory for the frame, of ``size`` bytes
    """
    if payload_size == 0 or size == 0 or byte_at(payload) < FIRST_REFERENCE:
        return NOT_A_DELTA
    shift = (number_at(payload) - FIRST_REFERENCE) * size
    if shift + size > bank_size:
        return CORRUPT
    recent[:] = shift
    position = 0
    at = 1
    while True:
        equal, at = read_number(payload, at, payload_size)
        if at > payload_size or position + equal > size:
            return CORRUPT
        while equal > 0:  # twice where the source goes on from the bank's end to the frame
            source = shift + position
            readable = n_readable(source, bank_size, position, size)
            if readable <= 0:
                return CORRUPT
            length = min(equal, readable)
            copy_bytes(address_of(source, bank, bank_size, frame), frame + position, length, readable)
            position += length
            equal -= length
        if position == size:
            return DONE if at == payload_size else CORRUPT
        length, at = read_number(payload, at, payload_size)
        if at > payload_size:
            return CORRUPT
        if length > 0:
            if position + length > size or at + length > payload_size:
                return CORRUPT
            copy_bytes(payload + at, frame + position, length, min(payload_size - at, size - position))
            position += length
            at += length
            continue
        # Another source, named by its shift or where it begins.
        if at >= payload_size:
            return CORRUPT
        place = number_at(payload + at)
        if place < N_RECENT:
            better = recent[place]
            at += 1
        else:
            if at + 3 > payload_size:
                return CORRUPT
            source = number_at(payload + at + 1) | number_at(payload + at + 2) << 8
            better = ((place - N_RECENT) << 16 | source) - position
            place = N_RECENT - 1
            at += 3
        remember_shift(recent, place, shift)
        shift = better


@kernel(INT, INT_ROWS, INT_ROWS, BYTE_ROWS, BYTES)
def decode_deltas(
    places: NDArray[np.int64], banks: NDArray[np.int64], frames: NDArray[np.uint8], status: NDArray[np.uint8]
) -> int:
    """Decode the payloads that are deltas.

    :param places: for each payload its address, how many bytes it has, and the index of its codec, ``(n, 3)``
    :param banks: for each codec the address of its references, the bytes they have, and those of one, ``(n_codecs, 3)``
    :param frames: is given the frames, ``(n, frame_nbytes)``
    :param status: for each payload, :data:`TO_DO`, or :data:`DONE` if its frame is there; is given :data:`DONE`,
        :data:`NOT_A_DELTA` or :data:`CORRUPT`, ``(n,)``
    :return: the number of payloads that are not done
    """
    n_left = 0
    n_frames, size = frames.shape
    recent = np.empty(N_RECENT, dtype=np.int64)
    for k in range(n_frames):
        if status[k] == DONE:
            continue
        writer = places[k, 2]
        if not 0 <= writer < len(banks):
            raise IndexError("a payload's writer is not among the codecs")
        bank_size = banks[writer, 1] if banks[writer, 2] == size else 0
        frame = frames.ctypes.data + k * size
        status[k] = decode_delta(places[k, 0], places[k, 1], banks[writer, 0], bank_size, recent, frame, size)
        n_left += status[k] != DONE
    return n_left

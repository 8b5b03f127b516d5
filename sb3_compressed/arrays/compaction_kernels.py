"""Kernels that find how much of a log in memory is used, and copy slots from one segment to another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.slot_format import (
    NO_CODEC,
    NO_ROOM,
    OFFSET,
    PAYLOAD_HEADER,
    SLOT_HEADER,
)
from sb3_compressed.arrays.slot_kernels import put_uint32, row_of, uint32_at
from sb3_compressed.kernels.byte_kernels import INT, copy_bytes
from sb3_compressed.kernels.jit import BYTES, INT_ROWS, INTS, helper, kernel

__all__ = ["copy_slots", "count_references", "measure_used"]


@kernel(INT, INTS, INT, INT_ROWS)
def count_references(references: NDArray[np.int64], first: int, counts: NDArray[np.int64]) -> int:
    """Add to the number of references to each segment, and to their sum, which wraps around.

    :param references: addresses of slots, 0 for unwritten ones
    :param first: the number of the first segment
    :param counts: the number of references to each segment from the first one on, and their sum, ``(n, 2)``
    :return: the number of references that were counted
    """
    n_counted = 0
    for k in range(references.size):
        index = (references[k] >> 32) - first
        if 0 <= index < len(counts):
            counts[index, 0] += 1
            counts[index, 1] += references[k]
            n_counted += 1
    return n_counted


@helper(INT, INT, INT, INT)
def n_payloads_of(segment: int, nbytes: int, offset: int) -> int:
    """Return the number of payloads of a slot, 0 if it or one of them is damaged.

    :param segment: the address of the segment in memory
    :param nbytes: its size
    :param offset: where the slot begins in it
    """
    if offset + SLOT_HEADER > nbytes:
        return 0
    n = uint32_at(segment + offset)
    if offset + SLOT_HEADER + 4 * n > nbytes:
        return 0
    for index in range(n):
        payload = uint32_at(segment + offset + SLOT_HEADER + 4 * index)
        if payload + PAYLOAD_HEADER > nbytes or payload + PAYLOAD_HEADER + uint32_at(segment + payload) > nbytes:
            return 0
    return n


@helper(INT, BYTES, INT)
def is_first(marks: NDArray[np.uint8], index: int) -> int:
    """Return 1 if a bit was not set yet, otherwise 0, and set it."""
    before, bit = marks[index >> 3], 1 << (index & 7)
    marks[index >> 3] = before | bit
    return 0 if before & bit else 1


@kernel(INT, INTS, INT_ROWS, BYTES, INT_ROWS)
def measure_used(
    references: NDArray[np.int64], segments: NDArray[np.int64], marks: NDArray[np.uint8], used: NDArray[np.int64]
) -> int:
    """Add up the slots that references refer to, and their payloads, each once.

    :param references: addresses of slots; those in other segments are ignored
    :param segments: the address in memory, the size, where its bits begin, and the number of each segment, by which
        they are sorted, ``(m, 4)``
    :param marks: zeros before the first call, with a bit for every 8 bytes of each segment and one more: no slot or
        payload is smaller, so no two begin there
    :param used: the number of bytes in each segment, and of slots and payloads, ``(m, 2)``; all bytes if a slot is
        damaged
    :return: the number of references that were followed
    """
    number, row, n_followed = 0, -1, 0
    for k in range(references.size):
        if references[k] >> 32 != number:
            number = references[k] >> 32
            row = row_of(segments, number)
        if row < 0:
            continue
        segment, nbytes, first = segments[row, 0], segments[row, 1], segments[row, 2]
        offset = references[k] & OFFSET
        n_followed += 1
        if offset < nbytes and not is_first(marks, first + offset // 8):
            continue
        n = n_payloads_of(segment, nbytes, offset)
        if n == 0:
            used[row, 0] += nbytes
            continue
        used[row, 0] += SLOT_HEADER + 4 * n
        used[row, 1] += 1
        for index in range(n):
            payload = uint32_at(segment + offset + SLOT_HEADER + 4 * index)
            if is_first(marks, first + payload // 8):
                used[row, 0] += PAYLOAD_HEADER + uint32_at(segment + payload)
                used[row, 1] += 1
    return n_followed


@helper(INT, INTS, INT)
def entry_of(keys: NDArray[np.int64], key: int) -> int:
    """Return where a key is in a hash table with open addressing, or the free entry for it."""
    mask = keys.size - 1
    entry = ((key ^ (key >> 29)) * 0x9E3779B1) & mask
    while keys[entry] and keys[entry] != key:
        entry = (entry + 1) & mask
    return entry


@helper(INT, INT_ROWS, INT)
def target_codec(codecs: NDArray[np.int64], codec: int) -> int:
    """Return what payloads refer to as their codec in the target, -1 if that is not known yet."""
    target = -1
    for row in range(len(codecs)):
        if codecs[row, 0] == codec:
            target = codecs[row, 1]
    return target


@kernel(INT, INTS, INT, INTS, INT_ROWS, INT_ROWS, BYTES, INT, INT, INTS, INTS, INTS)
def copy_slots(
    sources: NDArray[np.int64],
    first: int,
    references: NDArray[np.int64],
    segments: NDArray[np.int64],
    codecs: NDArray[np.int64],
    room: NDArray[np.uint8],
    at: int,
    number: int,
    keys: NDArray[np.int64],
    values: NDArray[np.int64],
    state: NDArray[np.int64],
) -> int:
    """Copy slots from some segments to another one, each slot once, and each payload once in each target.

    :param sources: addresses of slots, ``(n,)``
    :param first: the slot to begin with
    :param references: receives the addresses of the copies, ``(n,)``; it may be ``sources``. Those of slots that are
        damaged, or in no segment to copy from, stay the same
    :param segments: the segments to copy from: address in memory, size, anything, and number, by which they are sorted,
        ``(m, 4)``
    :param codecs: what payloads refer to as their codec in these segments, and in the target, ``(n_codecs, 2)``
    :param room: the bytes of the target
    :param at: where in it the copies begin
    :param number: the number of the target
    :param keys: a hash table of what was copied, zeros at first; its size is a power of two. Slots have their address
        as a key, payloads its complement
    :param values: the address of each copy, of the size of ``keys``
    :param state: receives where the copies end, what is missing for the next slot (:data:`NO_ROOM`, :data:`NO_CODEC`,
        otherwise 0), and how many bytes or which codec; its last element is the number of keys, ``(4,)``
    :return: the slot to continue with, ``n`` after the last one
    """
    output = room.ctypes.data
    row_number, row = 0, -1
    state[0], state[1] = at, 0
    for k in range(first, sources.size):
        source = sources[k]
        references[k] = source
        if source >> 32 != row_number:
            row_number = source >> 32
            row = row_of(segments, row_number)
        if row < 0:
            continue
        entry = entry_of(keys, source)
        if keys[entry]:
            references[k] = values[entry]
            continue
        segment, offset = segments[row, 0], source & OFFSET
        n = n_payloads_of(segment, segments[row, 1], offset)
        if n == 0 or 2 * (n + 1) > keys.size:
            continue
        needed = SLOT_HEADER + 4 * n
        for index in range(n):  # before the first byte is written
            payload = segment + uint32_at(segment + offset + SLOT_HEADER + 4 * index)
            needed += PAYLOAD_HEADER + uint32_at(payload)
            if target_codec(codecs, uint32_at(payload + 4)) < 0:
                state[1], state[2] = NO_CODEC, uint32_at(payload + 4)
                return k
        if at + needed > room.size:
            state[1], state[2] = NO_ROOM, needed
            return k
        if 2 * (state[3] + n + 1) > keys.size:  # what is referred to again will be copied again
            keys[:] = 0
            state[3] = 0
        for index in range(n):
            begin = uint32_at(segment + offset + SLOT_HEADER + 4 * index)
            key = ~(row_number << 32 | begin)
            entry = entry_of(keys, key)
            if keys[entry] and values[entry] >> 32 == number:
                continue
            state[3] += 0 if keys[entry] else 1
            keys[entry], values[entry] = key, number << 32 | at
            nbytes = uint32_at(segment + begin)
            put_uint32(output + at, nbytes)
            put_uint32(output + at + 4, target_codec(codecs, uint32_at(segment + begin + 4)))
            copy_bytes(segment + begin + PAYLOAD_HEADER, output + at + PAYLOAD_HEADER, nbytes, nbytes)
            at += PAYLOAD_HEADER + nbytes
        put_uint32(output + at, n)
        for index in range(n):
            key = ~(row_number << 32 | uint32_at(segment + offset + SLOT_HEADER + 4 * index))
            put_uint32(output + at + SLOT_HEADER + 4 * index, values[entry_of(keys, key)] & OFFSET)
        entry = entry_of(keys, source)
        state[3] += 1
        keys[entry], values[entry] = source, number << 32 | at
        references[k] = values[entry]
        at += SLOT_HEADER + 4 * n
        state[0] = at
    return sources.size

"""Kernels that write slots and their payloads to a log, and locate and verify them there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype, types
from numpy.typing import NDArray

from sb3_compressed.arrays.payload_kernels import find_repeated
from sb3_compressed.arrays.slot_format import (
    APPENDED_ROWS,
    DAMAGED_PAYLOAD,
    DAMAGED_SLOT,
    ELSEWHERE,
    INVALID_SLOT,
    NO_SEGMENT,
    OFFSET,
    PAYLOAD_HEADER,
    SEGMENT,
    SLOT_HEADER,
    SLOT_SEED,
    TOO_MANY_PAYLOADS,
)
from sb3_compressed.kernels.byte_kernels import INT, copy_bytes, number_at, signed_address
from sb3_compressed.kernels.checksum_kernels import put_low_bytes, xxh64
from sb3_compressed.kernels.jit import BYTES, INT_ROWS, INTS, helper, kernel, prefetch

__all__ = ["append_rows", "locate_stored"]

RECORD = from_dtype(SEGMENT)
"""A segment."""
SEGMENTS = types.Array(RECORD, 1, "C")
"""Segments that a kernel reads; see :func:`.segment_log.segment_table`."""


@helper(INT, INT)
def uint32_at(address: int) -> int:
    """Read the 32-bit number at an address, which need not be aligned."""
    return (
        number_at(address)
        | number_at(address + 1) << 8
        | number_at(address + 2) << 16
        | number_at(address + 3) << 24
    )  # fmt: skip


@helper(types.boolean, INT, INT, types.uint64)
def is_whole(address: int, nbytes: int, seed: np.uint64) -> bool:
    """Return whether the checksum at an address is that of the bytes after it, ``nbytes`` together."""
    return bool((xxh64(address + 4, nbytes - 4, seed) & np.uint64(OFFSET)) == np.uint64(uint32_at(address)))


@helper(types.void, INT, INT)
def put_uint32(address: int, number: int) -> None:
    """Write a 32-bit number to an address, which need not be aligned."""
    put_low_bytes(address, np.uint64(number), 4)


@helper(types.void, INT, INT, types.uint64)
def put_checksum(address: int, nbytes: int, seed: np.uint64) -> None:
    """Write the checksum of the bytes of a part, ``nbytes`` with the checksum, to its first 4 bytes."""
    put_low_bytes(address, xxh64(address + 4, nbytes - 4, seed), 4)


@helper(INT, RECORD, INT)
def n_payloads_of(segment: Any, offset: int) -> int:
    """Return the number of payloads of the slot at an offset of a segment, -1 if it is damaged."""
    prefix, slot = segment.checksum_nbytes, segment.address + offset
    header = prefix + SLOT_HEADER
    if offset + header > segment.nbytes:
        return -1
    n = uint32_at(slot + prefix)
    if offset + header + 4 * n > segment.nbytes:
        return -1
    if prefix and not is_whole(slot, header + 4 * n, np.uint64(offset + SLOT_SEED) ^ segment.id):
        return -1
    return n


@helper(INT, RECORD, INT)
def nbytes_of_payload(segment: Any, offset: int) -> int:
    """Return the number of bytes of the payload at an offset of a segment, -1 if it is damaged."""
    prefix, payload = segment.checksum_nbytes, segment.address + offset
    header = prefix + PAYLOAD_HEADER
    if offset + header > segment.nbytes:
        return -1
    nbytes = uint32_at(payload + prefix)
    if offset + header + nbytes > segment.nbytes:
        return -1
    if prefix and not is_whole(payload, header + nbytes, np.uint64(offset) ^ segment.id):
        return -1
    return nbytes


@helper(INT, INT, RECORD, INT, INT, INT, INT)
def put_payload(address: int, segment: Any, offset: int, content: int, nbytes: int, codec: int) -> int:
    """Write a payload, and return how many bytes it has with its header.

    :param address: where to write it
    :param segment: that it is appended to
    :param offset: where it will be there
    :param content: the address of its bytes
    :param nbytes: their number
    :param codec: what it refers to as its codec
    """
    prefix: int = segment.checksum_nbytes
    header = prefix + PAYLOAD_HEADER
    put_uint32(address + prefix, nbytes)
    put_uint32(address + prefix + 4, codec)
    copy_bytes(content, address + header, nbytes, nbytes)
    if prefix:
        put_checksum(address, header + nbytes, np.uint64(offset) ^ segment.id)
    return header + nbytes


@helper(INT, INT, RECORD, INT, INT)
def finish_slot(address: int, segment: Any, offset: int, n: int) -> int:
    """Write what precedes the offsets of the payloads of a slot, and return how many bytes it has with them.

    :param address: where the slot begins
    :param segment: that it is appended to
    :param offset: where it will be there
    :param n: the number of its payloads
    """
    prefix: int = segment.checksum_nbytes
    nbytes = prefix + SLOT_HEADER + 4 * n
    put_uint32(address + prefix, n)
    if prefix:
        put_checksum(address, nbytes, np.uint64(offset + SLOT_SEED) ^ segment.id)
    return nbytes


@kernel(INT, INTS, INT_ROWS, INT_ROWS, types.Array(from_dtype(APPENDED_ROWS), 1, "C"), INT, BYTES, INT_ROWS)
def append_rows(
    previous: NDArray[np.int64],
    n_new: NDArray[np.int64],
    places: NDArray[np.int64],
    appended: NDArray[Any],
    start: int,
    room: NDArray[np.uint8],
    references: NDArray[np.int64],
) -> int:
    """Write the slots of rows of items that continue a row, and their new payloads.

    :param previous: addresses of the slots of the row before, ``(n_envs,)``, or none if all frames are new
    :param n_new: the number of new frames of each item, ``(n_rows, n_envs)``; its other frames are the newest ones of
        the item before
    :param places: of the payloads of new frames, those of one environment together: address, and number of bytes;
        ``(sum of n_new, 3)``
    :param appended: what the items have in common, ``(1,)`` of :data:`.APPENDED_ROWS`
    :param start: the offset in the segment that what is written will have
    :param room: receives slots and payloads, for which it must be large enough
    :param references: receives the addresses of slots, ``(n_rows, n_envs)``
    :return: the number of bytes of slots and payloads; :data:`ELSEWHERE` if slots of the row before that items
        continue are not in the segment
    """
    segment, codec = appended[0].segment, appended[0].codec
    n_frames, newest_first = appended[0].n_frames, appended[0].newest_first != 0
    n_rows, n_envs = n_new.shape
    output, prefix = signed_address(room.ctypes.data), segment.checksum_nbytes
    header = prefix + SLOT_HEADER
    slot_nbytes = header + 4 * n_frames
    written = taken = 0
    for env in range(n_envs):
        latest = reference = 0  # address in memory of the offsets in the last slot, and its address in the log
        if previous.size and n_rows and n_new[0, env] < n_frames:
            reference = previous[env]
            offset = reference & OFFSET
            if reference >> 32 != segment.number or offset + slot_nbytes > segment.nbytes:
                return ELSEWHERE
            latest = segment.address + offset + header
            if uint32_at(latest - SLOT_HEADER) != n_frames:
                return ELSEWHERE
        for row in range(n_rows):
            count = n_new[row, env]
            n_old = n_frames - count
            if count and (latest or n_old == 0) and taken + count <= len(places):
                slot = written
                for k in range(taken, taken + count):
                    slot += prefix + PAYLOAD_HEADER + places[k, 1]
                first = output + slot + header
                if newest_first:
                    to = first
                    copy_bytes(latest, first + 4 * count, 4 * n_old, 4 * n_old)
                else:
                    to = first + 4 * n_old
                    copy_bytes(latest + 4 * count, first, 4 * n_old, 4 * n_old)
                for k in range(taken, taken + count):
                    offset = start + written
                    put_uint32(to + 4 * (k - taken), offset)
                    written += put_payload(output + written, segment, offset, places[k, 0], places[k, 1], codec)
                written += finish_slot(output + slot, segment, start + slot, n_frames)
                reference = segment.number << 32 | (start + slot)
                taken += count
                latest = first
            references[row, env] = reference
    return written


@helper(INT, SEGMENTS, INT)
def row_of(segments: NDArray[Any], number: int) -> int:
    """Return the row of a segment in a table that is sorted by the number; -1 if it is missing."""
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].number < number:
            low = middle + 1
        else:
            high = middle
    return low if low < len(segments) and segments[low].number == number else -1


@helper(INT, INTS, INT, SEGMENTS, INTS, INT_ROWS, INTS)
def locate_slots(
    slots: NDArray[np.int64],
    n_frames: int,
    segments: NDArray[Any],
    offsets: NDArray[np.int64],
    places: NDArray[np.int64],
    problem: NDArray[np.int64],
) -> int:
    """Verify slots, and write the address in the log of each of their payloads to the first column of ``places``.

    The arguments are those of :func:`locate_stored`.

    :return: the number of payloads, or what is wrong
    """
    for k in range(slots.size):  # fetching all at once takes a fraction of waiting for one after the other
        row = row_of(segments, slots[k] >> 32)
        if row >= 0:
            prefetch(segments[row].address + (slots[k] & OFFSET))
    n_payloads = 0
    for k in range(slots.size):
        offsets[k] = n_payloads
        if slots[k] == 0:
            continue
        row, offset = row_of(segments, slots[k] >> 32), slots[k] & OFFSET
        problem[0], problem[1] = k, offset
        if row < 0:
            return NO_SEGMENT
        segment = segments[row]
        n = n_payloads_of(segment, offset)
        if n < 0:
            return DAMAGED_SLOT
        if n < 1 or (n_frames and n != n_frames and n != 1):
            return INVALID_SLOT
        if n_payloads + n > len(places):
            return TOO_MANY_PAYLOADS
        first = segment.address + offset + segment.checksum_nbytes + SLOT_HEADER
        for frame in range(n):
            begin = uint32_at(first + 4 * frame)
            places[n_payloads, 0], places[n_payloads, 1], places[n_payloads, 2] = slots[k] - offset + begin, 0, 0
            prefetch(segment.address + begin)
            n_payloads += 1
    offsets[slots.size] = n_payloads
    return n_payloads


@helper(INT, INTS, INT, INT)
def number_of(codecs: NDArray[np.int64], n_codecs: int, codec: int) -> int:
    """Return the number of a codec among those that were found, after adding it if it is new."""
    number = n_codecs - 1
    while number >= 0 and codecs[number] != codec:
        number -= 1
    if number >= 0:
        return number
    codecs[n_codecs] = codec
    return n_codecs


@kernel(INT, INTS, INT, SEGMENTS, INTS, INTS, INT_ROWS, INTS, INTS)
def locate_stored(
    slots: NDArray[np.int64],
    n_frames: int,
    segments: NDArray[Any],
    codecs: NDArray[np.int64],
    offsets: NDArray[np.int64],
    places: NDArray[np.int64],
    first_same: NDArray[np.int64],
    problem: NDArray[np.int64],
) -> int:
    """Locate and verify the payloads of slots, some of which may not be written yet; each payload once.

    :param slots: addresses in the log, ``(n,)``
    :param n_frames: the number of payloads of each slot, unless it has one; 0 for any number
    :param segments: those of the log that are in memory, sorted by their numbers, ``(m,)``
    :param codecs: receives the address in the log of each different codec, ``(number of rows of places,)``
    :param offsets: receives the index of the first payload of each slot, and the number of payloads, ``(n + 1,)``
    :param places: receives the address of each payload's bytes, their number, and the number of its codec,
        ``(at most, 3)``
    :param first_same: receives for each payload the index of the first one that is the same, ``(number of rows of
        places,)``; if it is empty, repeated payloads are not looked for
    :param problem: receives the index of a slot that cannot be read, and the offset of the damaged part, ``(2,)``
    :return: the number of different codecs, or what is wrong: :data:`TOO_MANY_PAYLOADS` if ``places`` has no room for
        them, :data:`NO_SEGMENT`, :data:`INVALID_SLOT`, :data:`DAMAGED_SLOT` or :data:`DAMAGED_PAYLOAD`
    """
    n_payloads = locate_slots(slots, n_frames, segments, offsets, places, problem)
    if n_payloads < 0:
        return n_payloads
    finds_repeated = first_same.size > 0
    if finds_repeated:
        find_repeated(places, n_payloads, first_same)
    n_codecs = 0
    for k in range(slots.size):
        row = row_of(segments, slots[k] >> 32)
        for index in range(offsets[k], offsets[k + 1]):
            place = places[index]
            if finds_repeated and first_same[index] != index:
                same = places[first_same[index]]
                place[0], place[1], place[2] = same[0], same[1], same[2]
            else:
                segment, begin = segments[row], place[0] & OFFSET
                problem[0], problem[1] = k, begin
                nbytes = nbytes_of_payload(segment, begin)
                if nbytes < 0:
                    return DAMAGED_PAYLOAD
                content = segment.address + begin + segment.checksum_nbytes + PAYLOAD_HEADER
                codec = uint32_at(content - 4)
                if segment.checksum_nbytes:  # on disk, the codecs of a segment are in it
                    codec |= segment.number << 32
                place[0], place[1], place[2] = content, nbytes, number_of(codecs, n_codecs, codec)
                n_codecs = max(n_codecs, place[2] + 1)
            codec, first = codecs[place[2]], codecs[places[offsets[k], 2]]
            if bool(codec & OFFSET) != bool(first & OFFSET):  # some of its payloads name a codec, and some do not
                problem[0], problem[1] = k, slots[k] & OFFSET
                return INVALID_SLOT
    return n_codecs

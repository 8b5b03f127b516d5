"""Kernels that copy slots with their payloads to a segment, and replace references to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype, types
from numpy.typing import NDArray

from sb3_compressed.arrays.slot_format import (
    CLAIM,
    COPIED,
    DAMAGED_PAYLOAD,
    DAMAGED_SLOT,
    INVALID_SLOT,
    NO_CODEC,
    NO_ROOM,
    OFFSET,
    PAYLOAD_HEADER,
    SLOT_HEADER,
)
from sb3_compressed.arrays.slot_kernels import (
    RECORD,
    SEGMENTS,
    finish_slot,
    n_payloads_of,
    nbytes_of_payload,
    put_payload,
    put_uint32,
    uint32_at,
)
from sb3_compressed.kernels.byte_kernels import INT, common_length, copy_bytes
from sb3_compressed.kernels.jit import INT_ROWS, INTS, UINT_ROWS, helper, kernel

__all__ = ["append_items", "copy_slots", "replace_references"]

CLAIMS = types.Array(from_dtype(CLAIM), 1, "C")
#: No two slots or payloads begin in the same 8 bytes: each is at least as large.
PART_SHIFT = 3


@helper(INT, INT_ROWS, INT)
def target_codec(codecs: NDArray[np.int64], codec: int) -> int:
    """Return what payloads refer to as their codec in the target, -1 if that is not known yet."""
    target = -1
    for row in range(len(codecs)):
        if codecs[row, 0] == codec:
            target = codecs[row, 1]
    return target


@helper(INT, UINT_ROWS, INT)
def copied_to(copied: NDArray[np.uint32], offset: int) -> int:
    """Return the offset of the copy of a slot or a payload, -1 if there is none."""
    row = (offset >> PART_SHIFT) & (len(copied) - 1)
    if np.int64(copied[row, 0]) != offset + 1:
        return -1
    return int(np.int64(copied[row, 1]))


@helper(types.void, UINT_ROWS, INT, INT)
def record_copy(copied: NDArray[np.uint32], offset: int, target: int) -> None:
    """Record the offset of the copy of a slot or a payload."""
    row = (offset >> PART_SHIFT) & (len(copied) - 1)
    copied[row, 0], copied[row, 1] = offset + 1, target


@kernel(INT, INTS, INT, INTS, SEGMENTS, INT_ROWS, CLAIMS, UINT_ROWS, INTS)
def copy_slots(
    slots: NDArray[np.int64],
    first: int,
    references: NDArray[np.int64],
    sources: NDArray[Any],
    codecs: NDArray[np.int64],
    claims: NDArray[Any],
    copied: NDArray[np.uint32],
    state: NDArray[np.int64],
) -> int:
    """Verify and copy slots of one segment to the end of another one, with their payloads.

    What was copied already is referred to. Nothing of a slot is written unless all of it can be.

    :param slots: addresses of slots of one segment, ``(n,)``
    :param first: the slot to begin with
    :param references: receives the addresses of the copies, ``(n,)``
    :param sources: the segment, ``(1,)``
    :param codecs: what payloads refer to as their codec in the source, and in the target, ``(n_codecs, 2)``
    :param claims: receives the copies, ``(1,)`` of :data:`.CLAIM`
    :param copied: the offset plus 1 of each slot and payload in the source, and its offset in the target; zeros at
        first, ``(m, 2)``. ``m`` is a power of two; if the source has more than ``8 * m`` bytes, payloads that are
        further apart may be copied twice
    :param state: receives the number of bytes that were written; why the next slot was not copied: :data:`COPIED` if
        all are, :data:`NO_ROOM`, :data:`NO_CODEC`, :data:`INVALID_SLOT`, :data:`DAMAGED_SLOT` or
        :data:`DAMAGED_PAYLOAD`; and how many bytes it needs, which codec it has, or the offset of the damage, ``(3,)``
    :return: the slot to continue with, ``n`` after the last one
    """
    source, claim = sources[0], claims[0]
    target, start, output = claim.segment, claim.offset, claim.address
    segment, skipped, prefix = source.address, source.checksum_nbytes, target.checksum_nbytes
    number = target.number << 32
    at = 0
    state[0], state[1], state[2] = 0, COPIED, 0
    for k in range(first, slots.size):
        offset = slots[k] & OFFSET
        copy = copied_to(copied, offset)
        if copy >= 0:
            references[k] = number | copy
            continue
        n = n_payloads_of(source, offset)
        if n < 1:
            state[1], state[2] = DAMAGED_SLOT if n < 0 else INVALID_SLOT, offset
            return k
        numbers = segment + offset + skipped + SLOT_HEADER
        needed = prefix + SLOT_HEADER + 4 * n  # at most, since some payloads may be copied already
        for index in range(n):
            begin = uint32_at(numbers + 4 * index)
            if copied_to(copied, begin) >= 0:
                nbytes = uint32_at(segment + begin + skipped)
            else:
                nbytes = nbytes_of_payload(source, begin)
                if nbytes < 0:
                    state[1], state[2] = DAMAGED_PAYLOAD, begin
                    return k
                codec = uint32_at(segment + begin + skipped + 4)
                if target_codec(codecs, codec) < 0:
                    state[1], state[2] = NO_CODEC, codec
                    return k
            needed += prefix + PAYLOAD_HEADER + nbytes
        if at + needed > claim.nbytes:
            state[1], state[2] = NO_ROOM, needed
            return k
        # The slot follows its payloads; until they are written, its numbers are at the end of the room that it needs.
        found = output + at + needed - 4 * n
        for index in range(n):
            begin = uint32_at(numbers + 4 * index)
            copy = copied_to(copied, begin)
            if copy < 0:
                copy = start + at
                payload = segment + begin + skipped
                content, nbytes, codec = payload + PAYLOAD_HEADER, uint32_at(payload), uint32_at(payload + 4)
                at += put_payload(output + at, target, copy, content, nbytes, target_codec(codecs, codec))
                record_copy(copied, begin, copy)
            put_uint32(found + 4 * index, copy)
        copy = start + at
        copy_bytes(found, output + at + prefix + SLOT_HEADER, 4 * n, 4 * n)
        at += finish_slot(output + at, target, copy, n)
        record_copy(copied, offset, copy)
        references[k] = number | copy
        state[0] = at
    state[1], state[2] = COPIED, 0
    return slots.size


@helper(types.boolean, INTS, INTS, INT, INT)
def have_same_payloads(first_same: NDArray[np.int64], offsets: NDArray[np.int64], item: int, other: int) -> bool:
    """Return whether two items of a batch have the same payloads."""
    index, end, shift = offsets[item], offsets[item + 1], offsets[other] - offsets[item]
    if offsets[other + 1] - shift != end:
        return False
    while index < end and first_same[index] == first_same[index + shift]:
        index += 1
    return bool(index == end)


@helper(INT, RECORD, INT, INT, INT, INT_ROWS, INTS, INT_ROWS)
def find_payloads(
    segment: Any,
    previous: int,
    begin: int,
    n: int,
    places: NDArray[np.int64],
    first_same: NDArray[np.int64],
    written: NDArray[np.int64],
) -> int:
    """Find the payloads of an item in a slot of the segment, which may have the same ones at the same places.

    The arguments are those of :func:`append_items`.

    :param segment: the segment
    :param previous: the address of the slot
    :param begin: the index of the first payload of the item
    :param n: the number of its payloads
    :return: how many are the same
    """
    offset, prefix = previous & OFFSET, segment.checksum_nbytes
    if previous >> 32 != segment.number or n_payloads_of(segment, offset) != n:
        return 0
    first = segment.address + offset + prefix + SLOT_HEADER
    n_same = 0
    for index in range(n):
        payload, nbytes = uint32_at(first + 4 * index), places[begin + index, 1]
        if nbytes_of_payload(segment, payload) != nbytes:
            continue
        content = segment.address + payload + prefix + PAYLOAD_HEADER
        if uint32_at(content - 4) != places[begin + index, 2]:
            continue
        if common_length(content, places[begin + index, 0], nbytes) == nbytes:
            n_same += 1
            if written[first_same[begin + index], 0] < 0:
                written[first_same[begin + index], 0] = payload
    return n_same


@kernel(INT, INTS, INTS, INTS, INT_ROWS, INTS, INTS, CLAIMS, INT_ROWS)
def append_items(
    previous: NDArray[np.int64],
    items: NDArray[np.int64],
    references: NDArray[np.int64],
    places: NDArray[np.int64],
    offsets: NDArray[np.int64],
    first_same: NDArray[np.int64],
    claims: NDArray[Any],
    written: NDArray[np.int64],
) -> int:
    """Write items of a batch of payloads to the end of a segment as slots, what is the same once.

    :param previous: addresses of slots that the first items may repeat, those of the row before; ``(at most n,)``
    :param items: the numbers of the items in the batch, ``(n,)``
    :param references: receives the addresses of the slots, 0 for items without payloads, ``(n,)``
    :param places: the address of each payload's bytes, their number, and what it refers to as its codec,
        ``(n_payloads, 3)``
    :param offsets: the index of the first payload of each item, and the number of payloads, ``(n_items + 1,)``
    :param first_same: for each payload the index of the first one that is the same, ``(n_payloads,)``
    :param claims: receives them, ``(1,)`` of :data:`.CLAIM`; there must be room for all of them
    :param written: -1 before the call; by the index of a payload, where it is in the segment, and the last item that
        begins with it, by its number and where its slot is, ``(n_payloads, 3)``
    :return: the number of bytes that were written
    """
    target, start, output = claims[0].segment, claims[0].offset, claims[0].address
    header, number = target.checksum_nbytes + SLOT_HEADER, target.number << 32
    at = 0
    for k in range(items.size):
        item = items[k]
        begin, n = offsets[item], offsets[item + 1] - offsets[item]
        if n == 0:
            references[k] = 0
            continue
        first_payload = first_same[begin]
        other = written[first_payload, 1]
        if other >= 0 and have_same_payloads(first_same, offsets, item, other):
            references[k] = number | written[first_payload, 2]
            continue
        if k < previous.size and find_payloads(target, previous[k], begin, n, places, first_same, written) == n:
            references[k] = previous[k]
            written[first_payload, 1], written[first_payload, 2] = item, previous[k] & OFFSET
            continue
        for index in range(begin, begin + n):
            same = first_same[index]
            if written[same, 0] >= 0:
                continue
            written[same, 0] = start + at
            place = places[index]
            at += put_payload(output + at, target, start + at, place[0], place[1], place[2])
        slot = start + at
        for index in range(n):
            put_uint32(output + at + header + 4 * index, written[first_same[begin + index], 0])
        at += finish_slot(output + at, target, slot, n)
        written[first_payload, 1], written[first_payload, 2] = item, slot
        references[k] = number | slot
    return at


@kernel(INT, INTS, INTS, INTS)
def replace_references(table: NDArray[np.int64], old: NDArray[np.int64], new: NDArray[np.int64]) -> int:
    """Replace references in a table, in one call, whatever interrupts its caller.

    :param table: references to slots, ``(n,)``; those that are not among the old ones stay as they are
    :param old: those that are replaced, sorted, ``(m,)``
    :param new: what replaces them, ``(m,)``
    :return: the number of references that were replaced
    """
    n_replaced = at = 0
    for k in range(table.size):
        reference = table[k]
        if at + 1 < old.size and old[at + 1] == reference:  # mostly the next one
            at += 1
        elif not (at < old.size and old[at] == reference):
            low, high = 0, old.size
            while low < high:
                middle = (low + high) // 2
                if old[middle] < reference:
                    low = middle + 1
                else:
                    high = middle
            if low == old.size or old[low] != reference:
                continue
            at = low
        table[k] = new[at]
        n_replaced += 1
    return n_replaced

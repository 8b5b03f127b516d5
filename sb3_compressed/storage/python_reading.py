"""Reading a folder without kernels, where so little is read that importing numba would take longer.

Each function does what the kernel of its name does; see ``record_kernels.py`` and ``log_slot_kernels.py``.
"""

from __future__ import annotations

import ctypes
import struct
import sys

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.kernels.checksum import xxh64_function
from sb3_compressed.storage.record_format import (
    DAMAGED_PAYLOAD,
    DAMAGED_SLOT,
    HEADER_CHECKED_NBYTES,
    HEADER_NBYTES,
    INVALID_SLOT,
    LAST,
    NO_SEGMENT,
    PAYLOAD_HEADER,
    RECORD_HEADER,
    SLOT_HEADER,
    SLOT_SEED,
    TOO_MANY_PAYLOADS,
)

__all__ = ["find_records", "is_little", "locate_stored"]

#: Records and slots that take about as long to read without kernels as importing numba.
MAX_PARTS = 50_000
#: The numbers that a slot begins with, and those before a payload.
SLOT, PAYLOAD = struct.Struct("<II"), struct.Struct("<III")
CHECK_NBYTES = 4
UINT32, UINT64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF

_n_read = 0


def is_little(n_parts: int, kernels: str) -> bool:
    """Return whether to read without kernels.

    :param n_parts: records or slots to read, at least about
    :param kernels: the module of the kernels that would read them
    """
    global _n_read
    _n_read += n_parts
    return _n_read <= MAX_PARTS and kernels not in sys.modules and xxh64_function() is not None


def find_records(data: NDArray[np.uint8], segment_id: int, found: NDArray[np.int64]) -> int:
    """Find the complete records that follow each other from the first byte on."""
    xxh64 = xxh64_function()
    assert xxh64 is not None, "is_little() has returned true"
    base, at, n_found = data.ctypes.data, 0, 0
    while n_found < len(found) and at + HEADER_NBYTES <= len(data):
        expected, nbytes, kind, check = RECORD_HEADER.unpack_from(data.data, at)
        header = xxh64(base + at, HEADER_CHECKED_NBYTES, HEADER_CHECKED_NBYTES ^ segment_id)
        offset = at + HEADER_NBYTES
        end = offset + nbytes
        if header.to_bytes(8, "little")[: len(check)] != check or end >= len(data) or data[end] != LAST[0]:
            break
        if xxh64(base + offset, nbytes, (kind << 32 | nbytes) ^ segment_id) != expected:
            break
        found[n_found] = kind, offset, nbytes
        n_found += 1
        at = end + 1
    return n_found


def locate_stored(
    slots: NDArray[np.int64],
    n_frames: int,
    segments: NDArray[np.int64],
    codecs: NDArray[np.int64],
    offsets: NDArray[np.int64],
    places: NDArray[np.int64],
    problem: NDArray[np.int64],
) -> int:
    """Locate and verify the payloads of slots, some of which may not be written yet."""
    xxh64 = xxh64_function()
    assert xxh64 is not None, "is_little() has returned true"
    memory = {
        number: ((ctypes.c_char * size).from_address(base), base, size, segment_id & UINT64)
        for base, size, segment_id, number in segments.tolist()
    }
    addresses: list[int] = slots.tolist()
    payloads: list[tuple[int, int]] = []  # the index of the slot, and the offset
    for index, address in enumerate(addresses):
        offsets[index] = len(payloads)
        if address == 0:
            continue
        offset = address & UINT32
        problem[:] = index, offset
        if address >> 32 not in memory:
            return NO_SEGMENT
        data, base, size, segment_id = memory[address >> 32]
        if offset + SLOT_HEADER > size:
            return DAMAGED_SLOT
        check, n_payloads = SLOT.unpack_from(data, offset)
        nbytes = SLOT_HEADER + 4 * n_payloads
        seed = (offset + SLOT_SEED) ^ segment_id
        if offset + nbytes > size or xxh64(base + offset + CHECK_NBYTES, nbytes - CHECK_NBYTES, seed) & UINT32 != check:
            return DAMAGED_SLOT
        if n_payloads < 1 or (n_frames and n_payloads not in (1, n_frames)):
            return INVALID_SLOT
        if len(payloads) + n_payloads > len(places):
            return TOO_MANY_PAYLOADS
        payloads += [(index, begin) for begin in struct.unpack_from(f"<{n_payloads}I", data, offset + SLOT_HEADER)]
    offsets[len(slots)] = len(payloads)

    numbers: dict[int, int] = {}  # of the codecs, by their addresses
    verified: dict[tuple[int, int], tuple[int, int, int, bool]] = {}  # payloads, which slots share
    rows: list[tuple[int, int, int, bool]] = []
    for index, begin in payloads:
        number = addresses[index] >> 32
        row = verified.get((number, begin))
        if row is None:
            data, base, size, segment_id = memory[number]
            problem[:] = index, begin
            if begin + PAYLOAD_HEADER > size:
                return DAMAGED_PAYLOAD
            check, nbytes, codec = PAYLOAD.unpack_from(data, begin)
            checked_nbytes = PAYLOAD_HEADER - CHECK_NBYTES + nbytes
            if (
                begin + PAYLOAD_HEADER + nbytes > size
                or xxh64(base + begin + CHECK_NBYTES, checked_nbytes, begin ^ segment_id) & UINT32 != check
            ):
                return DAMAGED_PAYLOAD
            writer = numbers.setdefault(number << 32 | codec, len(numbers))
            row = verified[number, begin] = base + begin + PAYLOAD_HEADER, nbytes, writer, codec != 0
        rows.append(row)
        if row[-1] != rows[offsets[index]][-1]:  # some of its payloads name a codec, and some do not
            problem[:] = index, addresses[index] & UINT32
            return INVALID_SLOT
    if rows:
        places[: len(rows)] = [row[:-1] for row in rows]
        codecs[: len(numbers)] = [*numbers]
    return len(numbers)

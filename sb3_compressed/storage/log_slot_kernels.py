"""Kernels that locate and verify the payloads of slots in a log, and write their checksums."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import INT, number_at
from sb3_compressed.jit import BYTES, INT_ROWS, INTS, helper, kernel, prefetch
from sb3_compressed.storage.checksum_kernels import put_low_bytes, xxh64
from sb3_compressed.storage.record_format import CORRUPT, PAYLOAD_HEADER, SLOT_HEADER, SLOT_SEED, TOO_MANY_CODECS

__all__ = ["locate_stored", "put_checksums"]

OFFSET = np.int64(0xFFFFFFFF)


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


@kernel(types.void, BYTES, INTS, INTS, types.uint64)
def put_checksums(
    data: NDArray[np.uint8], bounds: NDArray[np.int64], seeds: NDArray[np.int64], segment_id: np.uint64
) -> None:
    """Write the checksum of each part of some bytes to its first 4 bytes.

    :param bounds: where each part begins, and where the last one ends
    :param seeds: the seed of each checksum, without the offset of the part in these bytes
    :param segment_id: the id of the segment that the bytes are for, with which every seed is XORed
    """
    base = data.ctypes.data
    for k in range(bounds.size - 1):
        part = base + bounds[k]
        word = xxh64(part + 4, bounds[k + 1] - bounds[k] - 4, np.uint64(seeds[k] + bounds[k]) ^ segment_id)
        put_low_bytes(part, word, 4)


@kernel(INT, INTS, INT, INT, INT_ROWS, INTS, INTS, INT_ROWS)
def locate_stored(
    slots: NDArray[np.int64],
    n_frames: int,
    first_segment: int,
    segments: NDArray[np.int64],
    codecs: NDArray[np.int64],
    offsets: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Locate and verify the payloads of slots: of ``n_frames`` payloads each, of whole items, or not written yet.

    :param slots: addresses in the log, ``(n,)``
    :param first_segment: the number of the first segment in ``segments``
    :param segments: the address of each segment in memory, its size in bytes, 0 if it is missing, and the bits of its
        id, ``(m, 3)``
    :param codecs: receives the address in the log of each different codec, ``(at most,)``
    :param offsets: receives the index of the first payload of each slot, and the number of payloads, ``(n + 1,)``
    :param places: receives the address of each payload's bytes, their number, and the number of its codec,
        ``(n * n_frames, 3)``
    :return: the number of different codecs; :data:`TOO_MANY_CODECS` if ``codecs`` has no room for them;
        ``CORRUPT - k`` if slot ``k`` or a payload of it is damaged, or it has another number of payloads
    """
    for k in range(slots.size):  # fetching all at once takes a fraction of waiting for one after the other
        segment = (slots[k] >> 32) - first_segment
        if 0 <= segment < len(segments):
            prefetch(segments[segment, 0] + (slots[k] & OFFSET))
    n_payloads = 0
    for k in range(slots.size):
        offsets[k] = n_payloads
        if slots[k] == 0:
            continue
        segment, offset = (slots[k] >> 32) - first_segment, slots[k] & OFFSET
        if not 0 <= segment < len(segments) or offset + SLOT_HEADER > segments[segment, 1]:
            return CORRUPT - k
        slot = segments[segment, 0] + offset
        n = uint32_at(slot + 4)
        if n != n_frames and n != 1:
            return CORRUPT - k
        if offset + SLOT_HEADER + 4 * n > segments[segment, 1] or not is_whole(
            slot, SLOT_HEADER + 4 * n, np.uint64(offset + SLOT_SEED) ^ np.uint64(segments[segment, 2])
        ):
            return CORRUPT - k
        for frame in range(n):
            begin = uint32_at(slot + SLOT_HEADER + 4 * frame)
            places[n_payloads, 0] = begin
            prefetch(segments[segment, 0] + begin)
            n_payloads += 1
    offsets[slots.size] = n_payloads
    n_codecs = 0
    for k in range(slots.size):
        segment = (slots[k] >> 32) - first_segment
        for index in range(offsets[k], offsets[k + 1]):
            base, size, segment_id = segments[segment, 0], segments[segment, 1], np.uint64(segments[segment, 2])
            place = places[index]
            begin = place[0]
            payload = base + begin
            if begin + PAYLOAD_HEADER > size:
                return CORRUPT - k
            nbytes = uint32_at(payload + 4)
            if begin + PAYLOAD_HEADER + nbytes > size or not is_whole(
                payload, PAYLOAD_HEADER + nbytes, np.uint64(begin) ^ segment_id
            ):
                return CORRUPT - k
            codec = (segment + first_segment) << 32 | uint32_at(payload + 8)
            writer = n_codecs - 1
            while writer >= 0 and codecs[writer] != codec:
                writer -= 1
            if writer < 0:
                if n_codecs == codecs.size:
                    return TOO_MANY_CODECS
                writer = n_codecs
                codecs[writer] = codec
                n_codecs += 1
            place[0] = payload + PAYLOAD_HEADER
            place[1] = nbytes
            place[2] = writer
    return n_codecs

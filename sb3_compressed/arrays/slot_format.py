"""The sizes of slots and payloads in a log: constants of kernels, see :mod:`sb3_compressed.kernels.jit`."""

from __future__ import annotations

import numpy as np

__all__ = [
    "APPENDED_ROWS",
    "CHECKSUM_NBYTES",
    "CLAIM",
    "COPIED",
    "DAMAGED_PAYLOAD",
    "DAMAGED_SLOT",
    "ELSEWHERE",
    "INVALID_SLOT",
    "NO_CODEC",
    "NO_ROOM",
    "NO_SEGMENT",
    "OFFSET",
    "OFFSET_NBYTES",
    "PAYLOAD_HEADER",
    "REFERENCE_NBYTES",
    "SEGMENT",
    "SLOT_HEADER",
    "SLOT_SEED",
    "TOO_MANY_PAYLOADS",
]

OFFSET = 0xFFFFFFFF
"""The lower bits of an address, which are an offset in a segment."""
CHECKSUM_NBYTES = 4
"""Bytes of the checksum with which slots and payloads on disk begin."""
SLOT_HEADER = 4
"""Bytes of a slot before the offsets of its payloads, without a checksum: their number."""
OFFSET_NBYTES = 4
"""Bytes of the offset of a payload in a slot."""
REFERENCE_NBYTES = 8
"""Bytes of an address of a slot in a table."""
PAYLOAD_HEADER = 8
"""Bytes before a payload, without a checksum: its size in bytes, and the offset of its codec."""
SLOT_SEED = 1 << 32
"""Added to the seed of a slot's checksum, so that no payload is mistaken for a slot."""
SEGMENT = np.dtype(
    [
        ("address", np.int64),  # of its bytes in memory
        ("nbytes", np.int64),
        ("id", np.uint64),
        ("number", np.int64),
        ("checksum_nbytes", np.int64),  # of the checksum before each slot and payload, 0 for none
    ],
    align=True,
)
"""A segment as kernels read it."""
CLAIM = np.dtype(
    [
        ("segment", SEGMENT),  # the segment that is appended to
        ("offset", np.int64),  # where the memory begins in it
        ("address", np.int64),  # of the memory
        ("nbytes", np.int64),
    ],
    align=True,
)
"""Memory for the next slots and payloads of a segment, as kernels write to it."""
APPENDED_ROWS = np.dtype(
    [
        ("segment", SEGMENT),  # the segment that is appended to
        ("codec", np.int64),  # what payloads refer to as their codec
        ("n_frames", np.int64),  # frames of an item
        ("newest_first", np.int64),  # 1 if the newest frame of an item is its first one, else 0
    ],
    align=True,
)
"""What all items have in common that :func:`~.slot_kernels.append_rows` writes."""
TOO_MANY_PAYLOADS, NO_SEGMENT, INVALID_SLOT, DAMAGED_SLOT, DAMAGED_PAYLOAD = -1, -2, -3, -4, -5
"""What :func:`~.slot_kernels.locate_stored` returns instead of a number of codecs."""
ELSEWHERE = -1
"""What :func:`~.slot_kernels.append_rows` returns if slots that its items continue are not in the segment."""
COPIED, NO_ROOM, NO_CODEC = 0, 1, 2
"""Why :func:`~.slot_copying_kernels.copy_slots` returned: all slots are copied, or it needs something to continue."""

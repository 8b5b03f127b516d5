"""The sizes of records, and of the slots in them: constants of kernels, see :mod:`sb3_compressed.kernels.jit`."""

from __future__ import annotations

import struct

__all__ = [
    "DAMAGED_PAYLOAD",
    "DAMAGED_SLOT",
    "HEADER_CHECKED_NBYTES",
    "HEADER_NBYTES",
    "INVALID_SLOT",
    "LAST",
    "NO_SEGMENT",
    "PAYLOAD_HEADER",
    "RECORD_HEADER",
    "SLOT_HEADER",
    "SLOT_SEED",
    "TOO_MANY_PAYLOADS",
]

#: The header of a record: checksum of the content, its number of bytes, kind, checksum of these.
RECORD_HEADER = struct.Struct("<QIB3s")
HEADER_NBYTES = RECORD_HEADER.size
#: The bytes of the header that its own checksum covers.
HEADER_CHECKED_NBYTES = HEADER_NBYTES - 3
#: The last byte of every record.
LAST = b"\xff"

SLOT_HEADER = 8
"""Bytes of a slot before the offsets of its payloads: a checksum and their number."""
PAYLOAD_HEADER = 12
"""Bytes before a payload: a checksum, its size in bytes, and the offset of its codec."""
SLOT_SEED = 1 << 32
"""Added to the seed of a slot's checksum, so that no payload is mistaken for a slot."""
TOO_MANY_PAYLOADS, NO_SEGMENT, INVALID_SLOT, DAMAGED_SLOT, DAMAGED_PAYLOAD = -1, -2, -3, -4, -5
"""What :func:`~.log_slot_kernels.locate_stored` returns instead of a number of codecs."""

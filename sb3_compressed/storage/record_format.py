"""The sizes of records, and of the slots in them, which kernels compiled by :mod:`sb3_compressed.jit` contain."""

from __future__ import annotations

import struct

__all__ = [
    "CORRUPT",
    "HEADER_CHECKED_NBYTES",
    "HEADER_NBYTES",
    "LAST",
    "PAYLOAD_HEADER",
    "RECORD_HEADER",
    "SLOT_HEADER",
    "SLOT_SEED",
    "TOO_MANY_CODECS",
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
TOO_MANY_CODECS, CORRUPT = -1, -2

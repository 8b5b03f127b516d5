"""The sizes of records: constants of kernels, see :mod:`sb3_compressed.kernels.jit`."""

from __future__ import annotations

import struct

__all__ = [
    "HEADER_CHECKED_NBYTES",
    "HEADER_NBYTES",
    "LAST",
    "RECORD_HEADER",
]

#: The header of a record: checksum of the content, its number of bytes, kind, checksum of these.
RECORD_HEADER = struct.Struct("<QIB3s")
HEADER_NBYTES = RECORD_HEADER.size
#: The bytes of the header that its own checksum covers.
HEADER_CHECKED_NBYTES = HEADER_NBYTES - 3
#: The last byte of every record.
LAST = b"\xff"

r"""The header of a segment.

It is written twice, so that one damaged copy does no harm: ``b"SB3CMPR\n"``, the version of the format and the number
of the segment (both uint32), the identity of the log and the random id of the segment (both uint64), the id of the
segment before it (uint64), where that one ends (uint32), flags (uint32; 1 for a snapshot) and the XXH64 of these
(uint64). Numbers are little-endian.
"""

from __future__ import annotations

import secrets
import struct
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from sb3_compressed.errors import CorruptStorage, StorageError, old_file
from sb3_compressed.kernels.checksum import checksum

__all__ = ["FORMAT_VERSION", "HEADERS_NBYTES", "Header", "new_header", "read_header"]

MAGIC = b"SB3CMPR\n"
FORMAT_VERSION = 3
SEGMENT_HEADER = struct.Struct("<8sIIQQQIIQ")
#: The bytes of both copies of the header, after which the first record begins.
HEADERS_NBYTES = 2 * SEGMENT_HEADER.size
IS_SNAPSHOT = 1


class Header(NamedTuple):
    """The fields of a segment's header.

    :ivar number: the number of the segment in its log
    :ivar identity: that of the log
    :ivar id: the random id of the segment
    :ivar previous_id: the id of the segment before it, 0 if there is none
    :ivar previous_end: where that one ends
    :ivar is_snapshot: whether the state can be read from here on, without the segments before
    """

    number: int
    identity: int
    id: int
    previous_id: int
    previous_end: int
    is_snapshot: bool


def new_header(number: int, identity: int, previous_id: int, previous_end: int, *, is_snapshot: bool) -> bytes:
    """Return both copies of the header of a new segment, with a random id other than 0."""
    own_id = secrets.randbelow((1 << 64) - 1) + 1
    flags = IS_SNAPSHOT if is_snapshot else 0
    fields = SEGMENT_HEADER.pack(MAGIC, FORMAT_VERSION, number, identity, own_id, previous_id, previous_end, flags, 0)[
        :-8
    ]
    return 2 * (fields + checksum(fields).to_bytes(8, "little"))


def read_header(file: FileIO, path: Path) -> Header:
    """Return a segment's header.

    :raises CorruptStorage: if both copies are damaged, or the file is not a segment
    :raises StorageError: if another version of this package has written it
    """
    data = file.read(HEADERS_NBYTES)
    copies = [data[: SEGMENT_HEADER.size], data[SEGMENT_HEADER.size :]]
    intact = [copy for copy in copies if len(copy) == SEGMENT_HEADER.size and _is_intact(copy)]
    if not intact:
        what = "is damaged at byte 0, in its header" if data.startswith(MAGIC) else "is not a file of this package"
        raise CorruptStorage(f"{path} {what}")
    _, version, number, identity, own_id, previous_id, previous_end, flags, _ = SEGMENT_HEADER.unpack(intact[0])
    if version < FORMAT_VERSION:
        raise old_file(str(path))
    if version > FORMAT_VERSION:
        raise StorageError(f"{path} has version {version} of the format; supported is {FORMAT_VERSION}")
    return Header(number, identity, own_id, previous_id, previous_end, bool(flags & IS_SNAPSHOT))


def _is_intact(header: bytes) -> bool:
    return header.startswith(MAGIC) and checksum(header[:-8]) == int.from_bytes(header[-8:], "little")

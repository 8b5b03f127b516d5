r"""The header of a segment, and how to read version 1 of it.

It is written twice, so that one damaged copy does no harm: ``b"SB3CMPR\n"``, the version of the format and the number
of the segment (both uint32), the identity of the log and the random id of the segment (both uint64), the id of the
segment before it (uint64), where that one ends (uint32), flags (uint32; 1 for a snapshot) and the XXH64 of these
(uint64). Numbers are little-endian.

Version 1 has a single header of 32 bytes without id, previous segment and flags; its id counts as 0, and each of its
segments begins with a snapshot.
"""

from __future__ import annotations

import secrets
import struct
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.kernels.checksum import checksum

__all__ = ["FORMAT_VERSION", "Header", "new_header", "read_header"]

MAGIC = b"SB3CMPR\n"
FORMAT_VERSION = 2
SEGMENT_HEADER = struct.Struct("<8sIIQQQIIQ")
SEGMENT_HEADER_V1 = struct.Struct("<8sIIQQ")
IS_SNAPSHOT = 1


class Header(NamedTuple):
    """The fields of a segment's header.

    :ivar number: the number of the segment in its log
    :ivar identity: that of the log
    :ivar id: the random id of the segment, 0 in version 1
    :ivar previous_id: the id of the segment before it, 0 if there is none
    :ivar previous_end: where that one ends
    :ivar is_snapshot: whether the state can be read from here on, without the segments before
    :ivar start: where the first record begins
    """

    number: int
    identity: int
    id: int
    previous_id: int
    previous_end: int
    is_snapshot: bool
    start: int


def new_header(number: int, identity: int, previous_id: int, previous_end: int, *, is_snapshot: bool) -> bytes:
    """Return both copies of the header of a new segment, with a random id other than 0."""
    own_id = secrets.randbelow((1 << 64) - 1) + 1
    flags = IS_SNAPSHOT if is_snapshot else 0
    fields = SEGMENT_HEADER.pack(MAGIC, FORMAT_VERSION, number, identity, own_id, previous_id, previous_end, flags, 0)[
        :-8
    ]
    return 2 * (fields + checksum(fields).to_bytes(8, "little"))


def read_header(file: FileIO, path: Path) -> tuple[Header, bool]:
    """Return a segment's header, and whether one of its two copies is damaged.

    :raises CorruptStorage: if both are, or the file is not a segment of a known version
    """
    data = file.read(2 * SEGMENT_HEADER.size)
    copies = [data[: SEGMENT_HEADER.size], data[SEGMENT_HEADER.size :]]
    intact = [copy for copy in copies if len(copy) == SEGMENT_HEADER.size and _is_intact(copy)]
    if not intact:
        return _read_header_v1(data[: SEGMENT_HEADER_V1.size], path), False
    _, version, number, identity, own_id, previous_id, previous_end, flags, _ = SEGMENT_HEADER.unpack(intact[0])
    if version != FORMAT_VERSION:
        raise _unknown_version(path, version)
    is_snapshot = bool(flags & IS_SNAPSHOT)
    header = Header(number, identity, own_id, previous_id, previous_end, is_snapshot, 2 * SEGMENT_HEADER.size)
    return header, intact != copies


def _read_header_v1(data: bytes, path: Path) -> Header:
    if len(data) < SEGMENT_HEADER_V1.size or not data.startswith(MAGIC):
        raise CorruptStorage(f"{path} is not a file of this package")
    _, version, number, identity, _ = SEGMENT_HEADER_V1.unpack(data)
    if version == 1 and _is_intact(data):
        return Header(number, identity, 0, 0, 0, True, SEGMENT_HEADER_V1.size)
    if version > FORMAT_VERSION:
        raise _unknown_version(path, version)
    raise CorruptStorage(f"{path} is damaged at byte 0, in its header")


def _unknown_version(path: Path, version: int) -> CorruptStorage:
    return CorruptStorage(f"{path} has version {version} of the format; supported are 1 and {FORMAT_VERSION}")


def _is_intact(header: bytes) -> bool:
    return header.startswith(MAGIC) and checksum(header[:-8]) == int.from_bytes(header[-8:], "little")

"""Segments for the tests of storage: files of a few records, of this version of the format and of the first one."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from sb3_compressed.storage.checksum import checksum
from sb3_compressed.storage.segment import Segment

COPY_NBYTES = 56
HEADER_NBYTES = 2 * COPY_NBYTES
NUMBER, IDENTITY = 7, 2**63 + 5

# What could be taken for something else: nothing, zeros, the byte that ends records, and a record in a record.
CONTENTS = [b"", b"a", bytes(12), b"\xff" * 5, bytes(range(200)), b"", bytes([1, 0, 0, 0]), b"\xff", b"\0"]

Told = list[tuple[int, bytes]]


def kind_of(index: int) -> int:
    return 1 + index % 255


def write_segment(path: Path, contents: list[bytes]) -> Told:
    """Write records to a file that is then as long as they are; return their kinds and contents."""
    segment = Segment.create(path, NUMBER, IDENTITY)
    told = [(kind_of(index), content) for index, content in enumerate(contents)]
    for kind, content in told:
        segment.append(kind, content)
    segment.seal()
    return told


def told_by(segment: Segment, **options: Any) -> Told:
    return [(record.kind, record.content.tobytes()) for record in segment.records(**options)]


def put(path: Path, content: bytes | bytearray) -> None:
    """Make a file what it is to be, in place: ext4 takes its time for those that were emptied before."""
    with open(path, "r+b") as file:
        file.write(content)
        file.truncate()


def read_segment(path: Path) -> Told:
    segment = Segment(path)
    try:
        return told_by(segment)
    finally:
        segment.close()


def damages_of(path: Path) -> list[str]:
    segment = Segment(path)
    try:
        return [*segment.damages()]
    finally:
        segment.close()


def version_1_record(kind: int, content: bytes) -> bytes:
    """Return a record as version 1 of the format has it."""
    fields = struct.pack("<QIB", checksum(content, kind << 32 | len(content)), len(content), kind)
    return fields + checksum(fields, len(fields)).to_bytes(8, "little")[:3] + content + b"\xff"


def version_1_segment(told: Told) -> bytes:
    """Return a file as version 1 of the format has it."""
    fields = struct.pack("<8sIIQ", b"SB3CMPR\n", 1, NUMBER, IDENTITY)
    return fields + checksum(fields).to_bytes(8, "little") + b"".join(version_1_record(*record) for record in told)

"""Helpers for segments: small files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sb3_compressed.storage.segment import Segment

COPY_NBYTES = 56
HEADER_NBYTES = 2 * COPY_NBYTES
NUMBER, IDENTITY = 7, 2**63 + 5

# Ambiguous contents: nothing, zeros, the last byte of records, and a record in a record.
CONTENTS = [b"", b"a", bytes(12), b"\xff" * 5, bytes(range(200)), b"", bytes([1, 0, 0, 0]), b"\xff", b"\0"]

Records = list[tuple[int, bytes]]


def record_nbytes(content_nbytes: int) -> int:
    """Return the size of a record: header, content and the byte 255."""
    return 16 + content_nbytes + 1


def kind_of(index: int) -> int:
    return 1 + index % 255


def write_segment(path: Path, contents: list[bytes]) -> Records:
    """Write records to a file that ends with them; return their kinds and contents."""
    segment = Segment.create(path, NUMBER, IDENTITY)
    records = [(kind_of(index), content) for index, content in enumerate(contents)]
    for kind, content in records:
        segment.append(kind, content)
    segment.truncate_tail()
    segment.close()
    return records


def records_of(segment: Segment, **options: Any) -> Records:
    return [(record.kind, record.content.tobytes()) for record in segment.records(**options)]


def put(path: Path, content: bytes | bytearray) -> None:
    """Replace the content of a file in place, because ext4 syncs files that are truncated to zero first."""
    with open(path, "r+b") as file:
        file.write(content)
        file.truncate()


def read_segment(path: Path) -> Records:
    segment = Segment(path)
    try:
        return records_of(segment)
    finally:
        segment.close()

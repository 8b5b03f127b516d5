"""Segment: records round-trip, a truncated record is the end, and a full disk loses one record."""

from __future__ import annotations

import os
from pathlib import Path

import programs
import pytest
from lines import interrupts

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import files as files_module
from sb3_compressed.storage import segment as segment_module
from sb3_compressed.storage.segment import Segment
from storage.segments import (
    CONTENTS,
    HEADER_NBYTES,
    IDENTITY,
    NUMBER,
    put,
    read_segment,
    record_nbytes,
    records_of,
    write_segment,
)

# -- reading back --------------------------------------------------------------------------------------------


def test_appended_records_are_read_back(tmp_path: Path) -> None:
    written = write_segment(tmp_path / "segment", CONTENTS)
    segment = Segment(tmp_path / "segment")
    assert (segment.number, segment.identity) == (NUMBER, IDENTITY)
    assert records_of(segment) == written
    assert (
        segment.end
        == (tmp_path / "segment").stat().st_size
        == HEADER_NBYTES + sum(record_nbytes(len(content)) for content in CONTENTS)
    )
    assert records_of(segment) == written, "twice"
    with pytest.raises(ValueError, match="read-only"):
        segment.bytes[0] = 0
    with pytest.raises(CorruptStorage, match="but must have"):
        records_of(segment, limit=segment.end - 1)
    segment.close()


def test_record_at_requires_the_start_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    written = write_segment(path, CONTENTS)
    segment = Segment(path)
    offsets = {record.offset: (record.kind, record.content.tobytes()) for record in segment.records()}
    assert [*offsets.values()] == written
    for offset in range(segment.end + 20):
        for kind in range(1, len(CONTENTS) + 2):
            if offset in offsets and offsets[offset][0] == kind:
                assert segment.record_at(offset, kind).tobytes() == offsets[offset][1]
            else:
                with pytest.raises(CorruptStorage, match=str(path)):
                    segment.record_at(offset, kind)
    segment.close()


def test_segment_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "MAX_NBYTES", 2_000_000)
    segment = Segment.create(tmp_path / "segment", NUMBER, IDENTITY)
    segment.append(1, b"content")
    with pytest.raises(StorageError, match="2000000"):
        segment.append(1, bytes(2_000_000))
    segment.append(2, b"more")
    segment.append(3, bytes(1_500_000))  # for which the file cannot double
    segment.truncate_tail()
    segment.close()
    assert read_segment(tmp_path / "segment") == [(1, b"content"), (2, b"more"), (3, bytes(1_500_000))]


# -- truncated records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_zeros", [0, 5000])
@pytest.mark.parametrize(
    "last", [b"", bytes([1, 0, 0, 0]), bytes(range(256)) + bytes(50)], ids=lambda last: f"{len(last)} bytes"
)
def test_truncated_last_record_is_the_end(last: bytes, n_zeros: int, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    written = write_segment(path, [*CONTENTS, last])
    original = path.read_bytes()
    start = len(original) - record_nbytes(len(last))
    for cut in range(start, len(original)):
        put(path, original[:cut] + bytes(n_zeros))
        assert read_segment(path) == written[:-1], f"cut after {cut - start} bytes"
        segment = Segment(path, writable=True)
        assert records_of(segment) == written[:-1]
        assert segment.end == start
        segment.truncate_tail()
        segment.append(9, b"!")
        segment.truncate_tail()
        segment.close()
        assert read_segment(path) == [*written[:-1], (9, b"!")]


@pytest.mark.parametrize("n_bytes", [0, 15, 16, 215])
def test_reader_retries_a_record_that_is_being_written(n_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    written = write_segment(path, [b"first", bytes(range(1, 200))])
    original = path.read_bytes()
    cut = len(original) - record_nbytes(199) + n_bytes
    put(path, original[:cut] + bytes(1000))
    reader = Segment(path)
    assert records_of(reader, is_growing=True) == written[:1]
    put(path, original)
    assert records_of(reader, start=reader.end, is_growing=True) == written[1:]
    reader.close()


# -- pieces --------------------------------------------------------------------------------------------------


READ_BEHIND_THE_END = """
import sys
from pathlib import Path
from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.segment import Segment

for state in ("closed", "open", "of another"):
    path = Path(sys.argv[1]) / state
    segment = Segment.create(path, 0, 1)
    offset = segment.append(1, b"content")
    writer = segment
    if state == "of another":
        segment = Segment(path)
    writer.truncate_tail()
    if state != "open":
        writer.close_file()
    for place in [*range(0, 8192, 5), *range(8192, 1_100_000, 4093)]:
        try:
            segment.record_at(place, 2)
        except CorruptStorage:
            continue
        print(f"found a record at {place}")
    print(state, segment.record_at(offset, 1).tobytes())
"""


def test_reading_beyond_the_end_does_not_crash(tmp_path: Path) -> None:
    """Reading mapped memory beyond the end of a truncated file would crash the process."""
    printed = programs.run(READ_BEHIND_THE_END, tmp_path).splitlines()
    assert printed == ["closed b'content'", "open b'content'", "of another b'content'"]


# -- what goes wrong while writing ---------------------------------------------------------------------------


def test_sparse_files_beyond_the_maximum_are_rejected(tmp_path: Path) -> None:
    write_segment(tmp_path / "segment", CONTENTS)
    os.truncate(tmp_path / "segment", segment_module.MAX_NBYTES + 1)
    with pytest.raises(CorruptStorage, match="maximum"):
        Segment(tmp_path / "segment")


def test_interrupt_leaves_the_complete_record_or_none(tmp_path: Path) -> None:
    interrupted = (2, bytes(range(100)))
    for interrupt in interrupts(segment_module, files_module):
        path = tmp_path / f"{interrupt.n_lines}"
        segment = Segment.create(path, NUMBER, IDENTITY)
        segment.append(1, b"first")
        with interrupt:
            segment.append(*interrupted)
        segment.append(3, b"!")
        segment.close()  # without truncating the tail
        assert [each for each in read_segment(path) if each != interrupted] == [(1, b"first"), (3, b"!")]
    assert interrupt.n_lines > 5

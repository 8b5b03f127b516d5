"""Segment: records round-trip, a truncated record is the end, and a full disk loses one record."""

from __future__ import annotations

import os
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import programs
import pytest
from lines import interrupts

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.storage import files as files_module
from sb3_compressed.storage import segment as segment_module
from sb3_compressed.storage.segment import Record, Segment
from storage.folders import damage
from storage.segments import (
    CONTENTS,
    COPY_NBYTES,
    HEADER_NBYTES,
    IDENTITY,
    NUMBER,
    damages_of,
    kind_of,
    put,
    read_segment,
    record_nbytes,
    records_of,
    version_1_segment,
    write_segment,
)


def set_id(path: Path, own_id: int) -> None:
    """Set the id of an empty segment."""
    fields = path.read_bytes()[: COPY_NBYTES - 8]
    fields = fields[:24] + own_id.to_bytes(8, "little") + fields[32:]
    put(path, 2 * (fields + checksum(fields).to_bytes(8, "little")))


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
    segment.close()


def test_segment_without_records_is_valid(tmp_path: Path) -> None:
    assert write_segment(tmp_path / "segment", []) == read_segment(tmp_path / "segment") == []
    assert (tmp_path / "segment").stat().st_size == HEADER_NBYTES


def test_contents_are_read_only(tmp_path: Path) -> None:
    write_segment(tmp_path / "segment", [b"content"])
    segment = Segment(tmp_path / "segment")
    [record] = segment.records()
    for data in (record.content, segment.bytes):
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 0
    segment.close()


def test_next_offset_predicts_the_offset_of_a_record(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path / "segment", NUMBER, IDENTITY)
    for index, content in enumerate(CONTENTS):
        expected = segment.next_offset
        offset = segment.append(kind_of(index), bytearray(content))
        assert offset == expected
        assert segment.record_at(offset, kind_of(index)).tobytes() == content
        assert segment.bytes[offset : offset + len(content)].tobytes() == content
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


def test_reopened_segment_can_be_appended_to(tmp_path: Path) -> None:
    written = write_segment(tmp_path / "segment", CONTENTS)
    for kind in range(1, 4):
        segment = Segment(tmp_path / "segment", writable=True)
        assert records_of(segment) == written
        content = b"more" * kind
        segment.append(kind, content)
        segment.close()  # without removing reserved room
        written.append((kind, content))
    assert read_segment(tmp_path / "segment") == written


def test_making_room_keeps_earlier_contents_valid(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path / "segment", NUMBER, IDENTITY)
    offset = segment.append(1, bytes(range(200)))
    views = [segment.bytes[offset : offset + 200], segment.record_at(offset, 1)]
    size = len(segment.bytes)
    segment.make_room(size)
    assert segment.room >= size
    segment.make_room(10)
    assert segment.room >= size, "room never shrinks"
    segment.append(2, b"\xff" * size)
    segment.seal()
    views += [segment.bytes[offset : offset + 200]]
    for view in views:
        assert view.tobytes() == bytes(range(200))


def test_shrink_to_fit_truncates_to_the_records(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    segment = Segment.create(path, NUMBER, IDENTITY)
    segment.make_room(1_000_000)
    segment.append(1, b"content")
    assert path.stat().st_size >= 1_000_000
    segment.shrink_to_fit()
    assert path.stat().st_size == segment.end
    segment.append(2, b"more")
    segment.seal()
    assert path.stat().st_size == segment.end
    assert read_segment(path) == [(1, b"content"), (2, b"more")]


def test_segment_size_is_limited_to_32_bits(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path / "segment", NUMBER, IDENTITY)
    segment.append(1, b"content")
    with pytest.raises(StorageError, match=r"cannot have more than 4294967295 bytes"):
        segment.make_room(2**32)
    segment.append(2, b"more")
    segment.seal()
    assert read_segment(tmp_path / "segment") == [(1, b"content"), (2, b"more")]


# -- growing -------------------------------------------------------------------------------------------------


def test_reader_follows_a_growing_segment(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    writer = Segment.create(path, NUMBER, IDENTITY)
    reader = Segment(path)
    assert records_of(reader, is_growing=True) == []
    for index in range(100):
        content = bytes([index]) * (1 if index % 7 else 300_000)
        offset = writer.append(kind_of(index), content)
        assert records_of(reader, start=reader.end, is_growing=True) == [(kind_of(index), content)]
        assert reader.bytes[offset : offset + len(content)].tobytes() == content
    assert len(records_of(reader, is_growing=True)) == 100
    writer.seal()
    assert records_of(reader, start=reader.end, is_growing=True) == []
    assert len(records_of(reader)) == 100
    reader.close()


WRITE_MANY = """
import sys
from pathlib import Path
from sb3_compressed.storage.segment import Segment

segment = Segment(Path(sys.argv[1]), writable=True)
for index in range(int(sys.argv[2])):
    segment.append(1 + index % 255, index.to_bytes(4, "little") * (index % 3000))
    if not index % 500:
        segment.make_room(segment.room + 1_000_000)
segment.seal()
"""


def test_other_process_reads_a_growing_segment(tmp_path: Path) -> None:
    path, n_records = tmp_path / "segment", 6000
    Segment.create(path, NUMBER, IDENTITY).close()
    reader, count, end = Segment(path), 0, HEADER_NBYTES
    with programs.start(WRITE_MANY, path, n_records) as writer:
        is_last_look = False
        while not is_last_look:
            is_last_look = writer.poll() is not None
            for record in reader.records(end, is_growing=not is_last_look):
                assert record.kind == kind_of(count)
                assert record.content.tobytes() == count.to_bytes(4, "little") * (count % 3000)
                count += 1
            end = reader.end
    assert (writer.returncode, count) == (0, n_records)
    reader.close()


def test_one_thread_reads_while_another_appends(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    segment = Segment.create(path, NUMBER, IDENTITY)
    first = segment.append(1, b"the first")
    written, read, stop = [(1, b"the first")], set(), threading.Event()

    def keep_reading() -> None:
        try:
            while not stop.is_set():
                read.add(segment.record_at(first, 1).tobytes())
        except CorruptStorage as error:
            read.add(str(error).encode())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=keep_reading)
    thread.start()
    try:
        for index in range(3000):
            written.append((kind_of(index), b"%d" % index))
            segment.append(*written[-1])
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    segment.seal()
    assert read == {b"the first"}
    assert read_segment(path) == written


# -- truncated records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_zeros", [0, 1, 17, 5000])
@pytest.mark.parametrize(
    "last", [*dict.fromkeys(CONTENTS), bytes(range(256)) + bytes(50)], ids=lambda last: f"{len(last)} bytes"
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
        segment.seal()
        assert read_segment(path) == [*written[:-1], (9, b"!")]


@pytest.mark.parametrize("n_bytes", [0, 3, 15, 16, 20, 215])
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


# -- segments that are alike ---------------------------------------------------------------------------------


def test_segments_have_unique_ids_and_store_their_predecessor(tmp_path: Path) -> None:
    first = Segment.create(tmp_path / "first", 3, IDENTITY, is_snapshot=True)
    first.append(1, b"content")
    second = Segment.create(tmp_path / "second", 4, IDENTITY, previous=first)
    third = Segment.create(tmp_path / "third", 4, IDENTITY, previous=first)
    found = [Segment(tmp_path / name) for name in ("first", "second", "third")]
    assert len({segment.id for segment in found} | {0}) == 4
    assert [segment.number for segment in found] == [3, 4, 4]
    assert [segment.is_snapshot for segment in found] == [True, False, False]
    assert [(segment.previous_id, segment.previous_end) for segment in found] == [
        (0, 0),
        (first.id, first.end),
        (first.id, first.end),
    ]
    for segment in (first, second, third, *found):
        segment.close()


def test_checksums_depend_on_the_segment_id(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    for own_id in (1, 2**64 - 1, 0x123456789ABCDEF0):
        path.unlink(missing_ok=True)
        Segment.create(path, NUMBER, IDENTITY).close()
        set_id(path, own_id)
        segment = Segment(path, writable=True)
        segment.append(9, b"content")
        segment.seal()
        fields = struct.pack("<QIB", checksum(b"content", (9 << 32 | 7) ^ own_id), 7, 9)
        header = fields + checksum(fields, 13 ^ own_id).to_bytes(8, "little")[:3]
        assert path.read_bytes()[HEADER_NBYTES:] == header + b"content\xff"


# -- version 1 -----------------------------------------------------------------------------------------------


def test_segment_of_version_1_is_read_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    written = [(kind_of(index), content) for index, content in enumerate(CONTENTS)]
    path.write_bytes(version_1_segment(written))
    segment = Segment(path, writable=True)
    assert (segment.number, segment.identity, segment.id) == (NUMBER, IDENTITY, 0)
    assert segment.is_snapshot, "all segments of version 1 are"
    assert records_of(segment) == written
    segment.append(6, b"sealed")
    segment.seal()
    assert path.read_bytes() == version_1_segment([*written, (6, b"sealed")])
    assert damages_of(path) == []


# -- pieces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("min_chunk", "chunk"), [(1, 4), (4, 16), (5, 300), (64, 1 << 20)])
def test_chunk_sizes_do_not_affect_reading(
    min_chunk: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "MIN_BLOCK_NBYTES", min_chunk)
    monkeypatch.setattr(segment_module, "BLOCK_NBYTES", chunk)
    path = tmp_path / "segment"
    written = write_segment(path, [*CONTENTS * 3, bytes(range(256)) * 20, *CONTENTS * 20])
    assert read_segment(path) == written
    segment = Segment(path)
    ends = [record.end for record in segment.records()]
    for index in (0, 1, 30, len(ends) - 1):
        assert records_of(segment, limit=ends[index]) == written[: index + 1]
        assert segment.end == ends[index]
        assert records_of(segment, start=ends[index]) == written[index + 1 :]
    segment.close()


def test_limit_ends_the_records(tmp_path: Path) -> None:
    """What follows the limit is ignored, and may be damaged."""
    path = tmp_path / "segment"
    written = write_segment(path, [bytes([k]) * k for k in range(10)])
    segment = Segment(path)
    ends = [segment.start, *(record.end for record in segment.records())]
    for n_records, end in enumerate(ends):
        assert records_of(segment, limit=end) == written[:n_records]
    for limit in {*range(segment.start, ends[-1] + 50)} - {*ends}:
        with pytest.raises(CorruptStorage, match=str(path)):
            records_of(segment, limit=limit)
    segment.close()
    put(path, path.read_bytes()[: ends[4]] + b"damaged" * 9)
    segment = Segment(path)
    assert records_of(segment, limit=ends[4]) == written[:4]
    assert all(isinstance(part, Record) for part in segment.undamaged_records(ends[4]))
    assert len([*segment.problems()]) == 1
    segment.close()


def test_truncate_removes_records(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    segment = Segment.create(path, NUMBER, IDENTITY)
    segment.append(1, b"first")
    end = segment.end
    for content in (b"second", bytes(100_000)):
        segment.append(2, content)
    segment.truncate(end)
    assert segment.end == end
    assert read_segment(path) == [(1, b"first")]
    segment.append(3, b"other")
    segment.seal()
    assert read_segment(path) == [(1, b"first"), (3, b"other")]


READ_BEHIND_THE_END = """
import sys
from pathlib import Path
from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.segment import Segment

path, state = Path(sys.argv[1]), sys.argv[2]
segment = Segment.create(path, 0, 1)
segment.make_room(10_000_000)
offset = segment.append(1, b"content")
if state == "sealed":
    segment.seal()
elif state == "given back":
    segment.shrink_to_fit()
else:
    writer, segment = segment, Segment(path)
    writer.seal()
for place in [*range(0, 8192, 5), *range(8192, 10_000_500, 4093)]:
    try:
        segment.record_at(place, 2)
    except CorruptStorage:
        print("refused")
print(segment.record_at(offset, 1).tobytes())
"""


@pytest.mark.parametrize("state", ["sealed", "given back", "of another"])
def test_reading_beyond_the_end_does_not_crash(state: str, tmp_path: Path) -> None:
    """Reading mapped memory beyond the end of a truncated file would crash the process."""
    printed = programs.run(READ_BEHIND_THE_END, tmp_path / "segment", state).splitlines()
    assert {*printed[:-1]} == {"refused"}
    assert printed[-1] == "b'content'"


# -- what goes wrong while writing ---------------------------------------------------------------------------


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.segment import Segment

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
UNLIMITED = resource.RLIM_INFINITY
before, after = [(1, b"first"), (2, b"second" * 100)], [(4, b"!"), (5, b"later" * 7), (6, bytes(100))]

def contains(path, written):
    reader = Segment(path)
    try:
        return written == [(record.kind, record.content.tobytes()) for record in reader.records()]
    except CorruptStorage as error:
        return error

for free in map(int, sys.argv[2:]):
    path = Path(sys.argv[1]) / str(free)
    segment = Segment.create(path, 0, 1)
    if free:
        segment.make_room(1_000_000)  # sparse: nothing is allocated yet
    for record in before:
        segment.append(*record)
    resource.setrlimit(resource.RLIMIT_FSIZE, (segment.end + free, UNLIMITED))
    for _ in range(2):
        try:
            segment.append(3, bytes(range(256)) * (400 if free else 100_000))
            print(free, "appended")
        except OSError as error:
            print(free, "refused")
    resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    print(free, contains(path, before))
    for index, record in enumerate(after):
        segment.append(*record)
        print(free, contains(path, before + after[: index + 1]))
    segment.seal()
    print(free, contains(path, before + after))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_full_disk_loses_only_the_new_record(tmp_path: Path) -> None:
    """There is no room at all, or room for a part of the record."""
    room = [0, 1, 15, 16, 100, 5000, 100_000]
    expected = [f"{free} {what}" for free in room for what in ["refused"] * 2 + ["True"] * 5]
    assert programs.run(FULL_DISK, tmp_path, *room).splitlines() == expected


def test_interrupt_leaves_the_complete_record_or_none(tmp_path: Path) -> None:
    for interrupt in interrupts(segment_module, files_module):
        path = tmp_path / f"{interrupt.n_lines}"
        segment = Segment.create(path, NUMBER, IDENTITY)
        segment.append(1, b"first")
        with interrupt:
            segment.append(2, bytes(range(100)))
        follower = Segment(path)
        followed = [(record.kind, record.content.tobytes()) for record in follower.records(is_growing=True)]
        follower.close()
        segment.append(3, b"!")
        segment.close()  # without truncating the tail
        written = read_segment(path)
        assert written == [*followed, (3, b"!")], "records that others have read are kept"
        assert [record for record in written if record != (2, bytes(range(100)))] == [(1, b"first"), (3, b"!")]
    assert interrupt.n_lines > 5


def test_unclosed_segment_is_closed_on_deletion(tmp_path: Path) -> None:
    """A ResourceWarning would fail this test."""
    content = bytes(range(100))
    write_segment(tmp_path / "segment", [content])
    segment = Segment(tmp_path / "segment")
    view = np.concatenate([record.content for record in segment.records()])
    del segment
    assert view.tobytes() == content


def test_damage_of_an_interrupted_record_loses_only_it(tmp_path: Path) -> None:
    n_damaged = 0
    for interrupt in interrupts(segment_module, files_module):
        path = tmp_path / f"{interrupt.n_lines}"
        segment = Segment.create(path, NUMBER, IDENTITY)
        segment.append(1, b"first")
        with interrupt:
            segment.append(2, bytes(range(100)))
        is_interrupted = path.stat().st_size > segment.end and any(path.read_bytes()[segment.end :])
        if is_interrupted:
            damage(path, segment.end)
            n_damaged += 1
        segment.append(3, b"!")
        segment.close()
        written = read_segment(path)
        assert [record for record in written if record[0] != 2] == [(1, b"first"), (3, b"!")]
        assert not (is_interrupted and len(written) > 2)
    assert n_damaged


def test_sparse_files_beyond_the_maximum_are_rejected(tmp_path: Path) -> None:
    write_segment(tmp_path / "segment", CONTENTS)
    os.truncate(tmp_path / "segment", segment_module.MAX_NBYTES + 1)
    with pytest.raises(CorruptStorage, match="more than the maximum of"):
        Segment(tmp_path / "segment")


def test_a_segment_is_replaced_by_another_file_but_not_by_none(tmp_path: Path) -> None:
    write_segment(tmp_path / "segment", CONTENTS)
    segment = Segment(tmp_path / "segment")
    assert not segment.is_replaced()
    (tmp_path / "segment").unlink()
    assert not segment.is_replaced()
    write_segment(tmp_path / "segment", CONTENTS)
    assert segment.is_replaced()
    segment.close()

"""Segments: what is appended is read back, what was cut short is told apart from damage, a full disk costs nothing."""

from __future__ import annotations

import struct
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lines import interrupts

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import segment as segment_module
from sb3_compressed.storage.checksum import checksum
from sb3_compressed.storage.segment import FORMAT_VERSION, Record, Segment, find_record, record_nbytes

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


def set_id(path: Path, own_id: int) -> None:
    """Give an empty segment a certain id."""
    fields = path.read_bytes()[: COPY_NBYTES - 8]
    fields = fields[:24] + own_id.to_bytes(8, "little") + fields[32:]
    put(path, 2 * (fields + checksum(fields).to_bytes(8, "little")))


def version_1_record(kind: int, content: bytes) -> bytes:
    """Return a record as version 1 of the format has it."""
    fields = struct.pack("<QIB", checksum(content, kind << 32 | len(content)), len(content), kind)
    return fields + checksum(fields, len(fields)).to_bytes(8, "little")[:3] + content + b"\xff"


def version_1_segment(told: Told) -> bytes:
    """Return a file as version 1 of the format has it."""
    fields = struct.pack("<8sIIQ", b"SB3CMPR\n", 1, NUMBER, IDENTITY)
    return fields + checksum(fields).to_bytes(8, "little") + b"".join(version_1_record(*record) for record in told)


# -- reading back --------------------------------------------------------------------------------------------


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    told = write_segment(tmp_path / "segment", CONTENTS)
    segment = Segment(tmp_path / "segment")
    assert (segment.number, segment.identity) == (NUMBER, IDENTITY)
    assert told_by(segment) == told
    assert (
        segment.end
        == (tmp_path / "segment").stat().st_size
        == HEADER_NBYTES + sum(record_nbytes(len(content)) for content in CONTENTS)
    )
    assert told_by(segment) == told, "and again"
    segment.close()


def test_a_segment_without_records_is_one(tmp_path: Path) -> None:
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


def test_one_knows_before_where_a_record_will_be(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path / "segment", NUMBER, IDENTITY)
    for index, content in enumerate(CONTENTS):
        expected = segment.next_offset
        offset = segment.append(kind_of(index), bytearray(content))
        assert offset == expected
        assert segment.record_at(offset, kind_of(index)).tobytes() == content
        assert segment.bytes[offset : offset + len(content)].tobytes() == content
    segment.close()


def test_there_is_a_record_only_where_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    told = write_segment(path, CONTENTS)
    segment = Segment(path)
    offsets = {record.offset: (record.kind, record.content.tobytes()) for record in segment.records()}
    assert [*offsets.values()] == told
    for offset in range(segment.end + 20):
        for kind in range(1, len(CONTENTS) + 2):
            if offset in offsets and offsets[offset][0] == kind:
                assert segment.record_at(offset, kind).tobytes() == offsets[offset][1]
            else:
                with pytest.raises(CorruptStorage, match=str(path)):
                    segment.record_at(offset, kind)
    segment.close()


def test_a_segment_can_be_gone_on_with(tmp_path: Path) -> None:
    told = write_segment(tmp_path / "segment", CONTENTS)
    for kind in range(1, 4):
        segment = Segment(tmp_path / "segment", writable=True)
        assert told_by(segment) == told
        content = b"more" * kind
        segment.append(kind, content)
        segment.close()  # not as short as it could be
        told.append((kind, content))
    assert read_segment(tmp_path / "segment") == told


def test_making_room_keeps_what_was_read(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path / "segment", NUMBER, IDENTITY)
    offset = segment.append(1, bytes(range(200)))
    views = [segment.bytes[offset : offset + 200], segment.record_at(offset, 1)]
    size = len(segment.bytes)
    segment.make_room(size)
    assert segment.room >= size
    segment.make_room(10)
    assert segment.room >= size, "no room is given up"
    segment.append(2, b"\xff" * size)
    segment.seal()
    views += [segment.bytes[offset : offset + 200]]
    for view in views:
        assert view.tobytes() == bytes(range(200))


def test_a_segment_is_as_short_as_its_records_when_room_is_given_back(tmp_path: Path) -> None:
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


def test_offsets_have_32_bits(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path / "segment", NUMBER, IDENTITY)
    segment.append(1, b"content")
    with pytest.raises(StorageError, match=r"cannot have more than 4294967295 bytes"):
        segment.make_room(2**32)
    segment.append(2, b"more")
    segment.seal()
    assert read_segment(tmp_path / "segment") == [(1, b"content"), (2, b"more")]


# -- growing -------------------------------------------------------------------------------------------------


def test_another_reads_it_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    writer = Segment.create(path, NUMBER, IDENTITY)
    reader = Segment(path)
    assert told_by(reader, is_growing=True) == []
    for index in range(100):
        content = bytes([index]) * (1 if index % 7 else 300_000)
        offset = writer.append(kind_of(index), content)
        assert told_by(reader, start=reader.end, is_growing=True) == [(kind_of(index), content)]
        assert reader.bytes[offset : offset + len(content)].tobytes() == content
    assert len(told_by(reader, is_growing=True)) == 100
    writer.seal()
    assert told_by(reader, start=reader.end, is_growing=True) == []
    assert len(told_by(reader)) == 100
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


def test_another_process_reads_it_while_it_grows(tmp_path: Path) -> None:
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


def test_one_thread_may_read_while_another_appends(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    segment = Segment.create(path, NUMBER, IDENTITY)
    first = segment.append(1, b"the first")
    told, read, stop = [(1, b"the first")], set(), threading.Event()

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
            told.append((kind_of(index), b"%d" % index))
            segment.append(*told[-1])
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    segment.seal()
    assert read == {b"the first"}
    assert read_segment(path) == told


# -- cut short -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_zeros", [0, 1, 17, 5000])
@pytest.mark.parametrize(
    "last", [*dict.fromkeys(CONTENTS), bytes(range(256)) + bytes(50)], ids=lambda last: f"{len(last)} bytes"
)
def test_a_last_record_that_was_cut_short_is_the_end(last: bytes, n_zeros: int, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    told = write_segment(path, [*CONTENTS, last])
    whole = path.read_bytes()
    start = len(whole) - record_nbytes(len(last))
    for cut in range(start, len(whole)):
        put(path, whole[:cut] + bytes(n_zeros))
        assert read_segment(path) == told[:-1], f"cut after {cut - start} bytes"
        segment = Segment(path, writable=True)
        assert told_by(segment) == told[:-1]
        assert segment.end == start
        segment.truncate_tail()
        segment.append(9, b"!")
        segment.seal()
        assert read_segment(path) == [*told[:-1], (9, b"!")]


@pytest.mark.parametrize("n_bytes", [0, 3, 15, 16, 20, 215])
def test_a_reader_waits_for_what_is_being_written(n_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    told = write_segment(path, [b"first", bytes(range(1, 200))])
    whole = path.read_bytes()
    cut = len(whole) - record_nbytes(199) + n_bytes
    put(path, whole[:cut] + bytes(1000))
    reader = Segment(path)
    assert told_by(reader, is_growing=True) == told[:1]
    put(path, whole)
    assert told_by(reader, start=reader.end, is_growing=True) == told[1:]
    reader.close()


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_zeros", [0, 100], ids=["as short as can be", "with room"])
def test_every_flipped_bit_is_seen(n_zeros: int, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    told = write_segment(path, [b"", b"a", bytes(12), bytes(range(30)), b"\xff"])
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole + bytes(n_zeros))
        damaged[bit // 8] ^= 1 << bit % 8
        put(path, damaged)
        if bit // 8 < HEADER_NBYTES:
            assert read_segment(path) == told, "the other copy of the header is whole"
            assert damages_of(path) == [f"{path} is damaged in one of the two copies of its header"]
        else:
            with pytest.raises(CorruptStorage, match=str(path)):
                read_segment(path)
            assert len(damages_of(path)) == 1


def test_damage_is_seen_while_it_grows_too(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    write_segment(path, [b"first", b"second", b"third"])
    whole = path.read_bytes()
    second = HEADER_NBYTES + record_nbytes(5)
    for position in range(second, second + record_nbytes(6)):
        damaged = bytearray(whole + bytes(100))
        damaged[position] ^= 16
        put(path, damaged)
        reader = Segment(path)
        with pytest.raises(CorruptStorage, match=str(path)):
            told_by(reader, is_growing=True)
        assert reader.end == second
        reader.close()


@pytest.mark.parametrize("nbytes", [1, 8, 300])
def test_zeros_in_the_middle_are_seen(nbytes: int, tmp_path: Path) -> None:
    """As a disk leaves them that lost a page."""
    path = tmp_path / "segment"
    told = write_segment(path, [bytes(range(200))] * 5)
    whole = path.read_bytes()
    for start in range(len(whole) - nbytes):
        damaged = whole[:start] + bytes(nbytes) + whole[start + nbytes :]
        if damaged != whole:
            put(path, damaged)
            # Of a header, one copy may be lost.
            is_harmless = start + nbytes <= HEADER_NBYTES and not start < COPY_NBYTES < start + nbytes
            if is_harmless:
                assert read_segment(path) == told
                assert len(damages_of(path)) == 1
            else:
                with pytest.raises(CorruptStorage, match=str(path)):
                    read_segment(path)


@pytest.mark.parametrize(
    "content", [b"", b"SB3CMPR\n", b"SB3CMPR\n" + bytes(23), bytes(100), b"PK\3\4" + bytes(100), b"\n" * 32]
)
@pytest.mark.parametrize("writable", [False, True])
def test_other_files_are_refused_and_left_alone(content: bytes, writable: bool, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(content)
    with pytest.raises(CorruptStorage, match=f"{path} does not begin as a file of this package"):
        Segment(path, writable=writable)
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, 2**32 - 1])
@pytest.mark.parametrize("copies", [{0, 1}, {0}, {1}])
def test_another_version_is_refused_by_its_number(copies: set[int], version: int, tmp_path: Path) -> None:
    """Where one copy of the header is damaged, by the other one."""
    path = tmp_path / "segment"
    write_segment(path, [b"content"])
    whole = path.read_bytes()
    fields = whole[:8] + version.to_bytes(4, "little") + whole[12 : COPY_NBYTES - 8]
    header = fields + checksum(fields).to_bytes(8, "little")
    put(path, b"".join(header if k in copies else bytes(COPY_NBYTES) for k in range(2)) + whole[HEADER_NBYTES:])
    expected = f"{path} has version {version} of the format, known here are 1 and {FORMAT_VERSION}"
    with pytest.raises(CorruptStorage, match=expected):
        Segment(path)


def test_a_header_of_which_both_copies_are_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    write_segment(path, [b"content"])
    whole = path.read_bytes()
    for position in range(COPY_NBYTES):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        damaged[COPY_NBYTES + (position * 5 + 3) % COPY_NBYTES] ^= 1
        for content in (damaged, whole[: COPY_NBYTES - 1], whole[:position]):
            put(path, content)
            with pytest.raises(CorruptStorage, match=str(path)):
                Segment(path)


# -- segments that are alike ---------------------------------------------------------------------------------


def test_each_segment_has_an_id_of_its_own_and_knows_the_one_before(tmp_path: Path) -> None:
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


def test_a_record_of_one_segment_does_not_pass_for_one_of_another(tmp_path: Path) -> None:
    """Though number, identity, offsets and content are the same."""
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        write_segment(path, [b"first", b"second", b"third"])
    ours, theirs = (path.read_bytes() for path in paths)
    start = HEADER_NBYTES
    for index, content in enumerate([b"first", b"second", b"third"]):
        end = start + record_nbytes(len(content))
        put(paths[0], ours[:start] + theirs[start:end] + ours[end:])
        with pytest.raises(CorruptStorage, match=f"{paths[0]} is damaged at byte {start}"):
            read_segment(paths[0])
        segment = Segment(paths[0])
        kinds = [part.kind for part in segment.undamaged_records() if isinstance(part, Record)]
        assert kinds == [kind_of(k) for k in range(3) if k != index]
        segment.close()
        start = end


def test_ids_are_in_the_checksums_of_headers_and_contents(tmp_path: Path) -> None:
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


def test_a_segment_of_version_1_is_read_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    told = [(kind_of(index), content) for index, content in enumerate(CONTENTS)]
    path.write_bytes(version_1_segment(told))
    segment = Segment(path, writable=True)
    assert (segment.number, segment.identity, segment.id) == (NUMBER, IDENTITY, 0)
    assert segment.is_snapshot, "each of its segments begins with one"
    assert told_by(segment) == told
    segment.append(6, b"sealed")
    segment.seal()
    assert path.read_bytes() == version_1_segment([*told, (6, b"sealed")])
    assert damages_of(path) == []


def test_every_flipped_bit_of_version_1_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    whole = version_1_segment([(1, b""), (2, b"content"), (3, bytes(5))])
    path.write_bytes(whole)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        put(path, damaged)
        with pytest.raises(CorruptStorage, match=str(path)):
            read_segment(path)


# -- behind damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_zeros", [0, 100], ids=["as short as can be", "with room"])
def test_every_flipped_bit_costs_one_record(n_zeros: int, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    told = write_segment(path, [b"", b"a", bytes(12), bytes(range(30)), b"\xff", b"\xff" * 20])
    whole = path.read_bytes()
    position = HEADER_NBYTES
    for lost, (_, content) in enumerate(told):
        for bit in range(8 * record_nbytes(len(content))):
            damaged = bytearray(whole + bytes(n_zeros))
            damaged[position + bit // 8] ^= 1 << bit % 8
            put(path, damaged)
            segment = Segment(path)
            parts = [*segment.undamaged_records()]
            segment.close()
            found = [(part.kind, part.content.tobytes()) for part in parts if isinstance(part, Record)]
            assert found == [record for k, record in enumerate(told) if k != lost]
            [error] = [part for part in parts if isinstance(part, CorruptStorage)]
            assert parts.index(error) == lost
            assert str(path) in str(error)
        position += record_nbytes(len(content))


def test_what_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    told = write_segment(path, [b"first", bytes(range(1, 100))])
    whole = path.read_bytes()
    for n_zeros in (0, 100):
        put(path, whole[:-7] + bytes(n_zeros))
        segment = Segment(path)
        assert [
            (part.kind, part.content.tobytes()) for part in segment.undamaged_records() if isinstance(part, Record)
        ] == told[:1]
        segment.close()
        assert damages_of(path) == []


def test_several_damaged_parts_are_all_told(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    told = write_segment(path, [bytes([k]) * 50 for k in range(20)])
    damaged = bytearray(path.read_bytes())
    for k in (0, 5, 6, 19):
        damaged[HEADER_NBYTES + k * record_nbytes(50) + 30] ^= 1
    put(path, damaged)
    segment = Segment(path)
    parts = [*segment.undamaged_records()]
    found = [(part.kind, part.content.tobytes()) for part in parts if isinstance(part, Record)]
    assert found == [record for k, record in enumerate(told) if k not in (0, 5, 6, 19)]
    assert len(parts) - len(found) >= 3, "two that are side by side may be one"
    segment.close()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.binary(max_size=80), content=st.binary(max_size=60), behind=st.binary(max_size=40))
def test_a_record_is_found_behind_anything(before: bytes, content: bytes, behind: bytes) -> None:
    data = np.frombuffer(before + version_1_record(5, content) + behind, np.uint8)
    assert find_record(data, np.uint64(0)) == len(before)
    assert find_record(data, np.uint64(1)) == -1, "of another segment"
    assert find_record(data[: len(before) + record_nbytes(len(content)) - 1], np.uint64(0)) == -1


# -- pieces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("min_chunk", "chunk"), [(1, 4), (4, 16), (5, 300), (64, 1 << 20)])
def test_it_does_not_matter_in_what_pieces_a_file_is_read(
    min_chunk: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "MIN_CHUNK", min_chunk)
    monkeypatch.setattr(segment_module, "CHUNK", chunk)
    path = tmp_path / "segment"
    told = write_segment(path, [*CONTENTS * 3, bytes(range(256)) * 20, *CONTENTS * 20])
    assert read_segment(path) == told
    segment = Segment(path)
    ends = [record.end for record in segment.records()]
    for index in (0, 1, 30, len(ends) - 1):
        assert told_by(segment, limit=ends[index]) == told[: index + 1]
        assert segment.end == ends[index]
        assert told_by(segment, start=ends[index]) == told[index + 1 :]
    segment.close()


def test_where_the_last_record_ends_can_be_stated(tmp_path: Path) -> None:
    """What is behind that is of no concern, and may be damaged."""
    path = tmp_path / "segment"
    told = write_segment(path, [bytes([k]) * k for k in range(10)])
    segment = Segment(path)
    ends = [segment.start, *(record.end for record in segment.records())]
    for n_records, end in enumerate(ends):
        assert told_by(segment, limit=end) == told[:n_records]
    for limit in {*range(segment.start, ends[-1] + 50)} - {*ends}:
        with pytest.raises(CorruptStorage, match=str(path)):
            told_by(segment, limit=limit)
    segment.close()
    put(path, path.read_bytes()[: ends[4]] + b"damaged" * 9)
    segment = Segment(path)
    assert told_by(segment, limit=ends[4]) == told[:4]
    assert [*segment.damages(ends[4])] == []
    assert len([*segment.damages()]) == 1
    segment.close()


def test_records_can_be_taken_back(tmp_path: Path) -> None:
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


LOOK_BEHIND_THE_END = """
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
def test_looking_behind_the_end_is_no_crash(state: str, tmp_path: Path) -> None:
    """A file that is shorter than what was mapped of it ends a process that looks there."""
    printed = programs.run(LOOK_BEHIND_THE_END, tmp_path / "segment", state).splitlines()
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

def tells(path, told):
    reader = Segment(path)
    try:
        return told == [(record.kind, record.content.tobytes()) for record in reader.records()]
    except CorruptStorage as error:
        return error

for free in map(int, sys.argv[2:]):
    path = Path(sys.argv[1]) / str(free)
    segment = Segment.create(path, 0, 1)
    if free:
        segment.make_room(1_000_000)  # of which the disk holds nothing yet
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
    print(free, tells(path, before))
    for index, record in enumerate(after):
        segment.append(*record)
        print(free, tells(path, before + after[: index + 1]))
    segment.seal()
    print(free, tells(path, before + after))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_a_full_disk_costs_nothing_but_the_record(tmp_path: Path) -> None:
    """With no room at all, or with some so that a part of the record is written."""
    room = [0, 1, 15, 16, 100, 5000, 100_000]
    expected = [f"{free} {what}" for free in room for what in ["refused"] * 2 + ["True"] * 5]
    assert programs.run(FULL_DISK, tmp_path, *room).splitlines() == expected


def test_an_interrupt_leaves_the_record_or_none(tmp_path: Path) -> None:
    for interrupt in interrupts(segment_module):
        path = tmp_path / f"{interrupt.n_lines}"
        segment = Segment.create(path, NUMBER, IDENTITY)
        segment.append(1, b"first")
        with interrupt:
            segment.append(2, bytes(range(100)))
        follower = Segment(path)
        followed = [(record.kind, record.content.tobytes()) for record in follower.records(is_growing=True)]
        follower.close()
        segment.append(3, b"!")
        segment.close()  # with whatever is behind
        told = read_segment(path)
        assert told == [*followed, (3, b"!")], "what others have read stays"
        assert [record for record in told if record != (2, bytes(range(100)))] == [(1, b"first"), (3, b"!")]
    assert interrupt.n_lines > 5


def test_nobody_needs_to_close_it(tmp_path: Path) -> None:
    """A warning of a file that was left open would fail this test."""
    content = bytes(range(100))
    write_segment(tmp_path / "segment", [content])
    segment = Segment(tmp_path / "segment")
    view = np.concatenate([record.content for record in segment.records()])
    del segment
    assert view.tobytes() == content

"""Segments: what is appended is read back, what was cut short is told apart from damage, a full disk costs nothing."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from lines import interrupts

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import segment as segment_module
from sb3_compressed.storage.checksum import checksum
from sb3_compressed.storage.segment import FORMAT_VERSION, Segment, record_nbytes

HEADER_NBYTES = 32
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
    segment.give_back_room()
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
        segment.forget_the_rest()
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
    write_segment(path, [b"", b"a", bytes(12), bytes(range(30)), b"\xff"])
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole + bytes(n_zeros))
        damaged[bit // 8] ^= 1 << bit % 8
        put(path, damaged)
        with pytest.raises(CorruptStorage, match=str(path)):
            read_segment(path)


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
    write_segment(path, [bytes(range(200))] * 5)
    whole = path.read_bytes()
    for start in range(len(whole) - nbytes):
        damaged = whole[:start] + bytes(nbytes) + whole[start + nbytes :]
        if damaged != whole:
            put(path, damaged)
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


def test_another_version_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    write_segment(path, [b"content"])
    whole = path.read_bytes()
    start = whole[:8] + (FORMAT_VERSION + 1).to_bytes(4, "little") + whole[12:24]
    put(path, start + checksum(start).to_bytes(8, "little") + whole[32:])
    expected = f"{path} has version {FORMAT_VERSION + 1} of the format, known here is {FORMAT_VERSION}"
    with pytest.raises(CorruptStorage, match=expected):
        Segment(path)


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
    segment.give_back_room()
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

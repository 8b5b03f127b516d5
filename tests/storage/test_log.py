"""The log in a folder: there is a whole state at any moment, and only what this package put there is touched."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from lines import before_lines, interrupts
from programs import outcome, run, start

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import log as log_module
from sb3_compressed.storage import segment as segment_module
from sb3_compressed.storage.log import SEALED, Log, holds_log, place_in_log
from sb3_compressed.storage.segment import Segment, record_nbytes

Told = list[tuple[int, bytes]]

#: The kind of records that a segment which is no snapshot begins with.
DESCRIPTION = 9


@pytest.fixture(autouse=True)
def modest_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be no longer than what is read in no time."""
    monkeypatch.setattr(segment_module, "MIN_GROWTH", 10_000)


def told_by(segment: Segment) -> Told:
    return [(record.kind, record.content.tobytes()) for record in segment.records()]


def read_chain(log: Log) -> list[tuple[int, Told]]:
    """Open a log by its newest snapshot and read what follows; return the number and the records of each segment."""
    chain, told = log.open_chain(), []
    for segment, after in zip_longest(chain, chain[1:]):
        limit = None if after is None else after.previous_end
        records = [(record.kind, record.content.tobytes()) for record in segment.records(limit=limit)]
        told.append((segment.number, records))
    return told


def opened(folder: Path, *, writable: bool = False) -> Log:
    """Open a log; all that its state is made of is read, so that it can be written behind."""
    log = Log.open(folder, writable=writable)
    log.describe = describe
    try:
        read_chain(log)
    except BaseException:
        log.close()
        raise
    return log


def describe() -> tuple[int, bytes]:
    return DESCRIPTION, b"description"


def read_state(folder: Path) -> Told:
    """Return the records of a snapshot and all that follows, but for descriptions."""
    log = Log.open(folder)
    try:
        return [record for _, told in read_chain(log) for record in told if record[0] != DESCRIPTION]
    finally:
        log.close()


def told_in(folder: Path, number: int) -> Told:
    """Return the records of a segment, read from its file."""
    segment = Segment(folder / f"{number:08}.log")
    try:
        return told_by(segment)
    finally:
        segment.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def contents(folder: Path) -> dict[str, bytes]:
    """Return what is in the segments, without the zeros behind."""
    return {name: (folder / name).read_bytes().rstrip(b"\0") for name in names(folder)}


def new_log(folder: Path, n_snapshots: int = 1) -> Log:
    """Return a log of snapshots, with a segment of one record behind each."""
    log = Log.create(folder)
    log.describe = describe
    for number in range(n_snapshots):
        log.write_snapshot([(1, b"snapshot %d" % number)])
        log.segment_to_write().append(2, b"content %d" % number)
    return log


def state_of(number: int) -> Told:
    return [(1, b"snapshot %d" % number), (2, b"content %d" % number)]


def told_of(number: int, *, is_last: bool = False) -> Told:
    """Return the records of a segment of such a log."""
    snapshot, content = state_of(number // 2)
    told = [describe(), content] if number % 2 else [snapshot]
    return told if is_last else [*told, (SEALED, b"")]


# -- making and opening --------------------------------------------------------------------------------------


def test_a_log_is_there_with_its_first_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert not holds_log(folder)
    log = Log.create(folder)
    log.describe = describe
    assert log.is_writable
    assert not holds_log(folder)
    log.write_snapshot([(1, b"snapshot"), (2, b"")])
    assert holds_log(folder)
    assert names(folder) == ["00000000.log"]
    offset = log.segment_to_write().append(3, b"more")
    assert log.last.record_at(offset, 3).tobytes() == b"more"
    log.close()
    assert names(folder) == ["00000000.log", "00000001.log"]
    assert read_state(folder) == [(1, b"snapshot"), (2, b""), (3, b"more")]


def test_segments_have_the_room_that_is_asked_for(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.begin_segment(100_000)
    assert log.last.room >= 100_000
    log.write_snapshot([(1, b"snapshot")])
    assert log.segment_to_write().room >= 100_000, "and those that come later"
    log.close()


def test_a_log_is_opened_by_its_newest_snapshot_and_what_follows(tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    for number in range(2):
        log.begin_segment()
        log.segment_to_write().append(3, b"more %d" % number)
    log.close()
    log = Log.open(tmp_path)
    assert not log.is_writable
    assert log.numbers() == [*range(8)]
    assert read_chain(log) == [
        (4, told_of(4, is_last=True)),
        (5, told_of(5, is_last=True)),
        (6, [describe(), (3, b"more 0")]),
        (7, [describe(), (3, b"more 1")]),
    ]
    assert sorted(log.segments) == [4, 5, 6, 7]
    assert log.last is log.segment(7)
    assert log.segment(5) is log.segment(5)
    log.close()
    assert [told_in(tmp_path, n) for n in range(6)] == [told_of(n) for n in range(6)]


def test_who_opens_it_for_writing_begins_a_segment_and_changes_no_other(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    for index in range(3):
        before = contents(tmp_path)
        log = opened(tmp_path, writable=True)
        assert contents(tmp_path) == before, "nothing was written yet"
        log.segment_to_write().append(3, b"more %d" % index)
        log.segment_to_write().append(3, b"again")
        log.close()
        after = contents(tmp_path)
        [new] = after.keys() - before.keys()
        assert new == f"{4 + index:08}.log"
        sealed = f"{3 + index:08}.log"
        assert {name: content for name, content in before.items() if name != sealed}.items() <= after.items()
        assert after[sealed].startswith(before[sealed])
        assert told_in(tmp_path, 3 + index)[-1] == (SEALED, b"")
    more = [(3, content) for index in range(3) for content in (b"more %d" % index, b"again")]
    assert read_state(tmp_path) == [*state_of(1), *more]
    log = opened(tmp_path)
    assert len({log.open_segment(number).identity for number in range(7)}) == 1
    assert len({log.open_segment(number).id for number in range(7)}) == 7
    log.close()


@pytest.mark.parametrize("writable", [False, True])
def test_missing_folders_and_folders_without_a_log_are_told_apart(writable: bool, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"there is no folder {tmp_path / 'missing'}"):
        Log.open(tmp_path / "missing", writable=writable)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "file").write_bytes(b"")
    assert not holds_log(tmp_path / "file")
    with pytest.raises(StorageError, match="there is no folder"):
        Log.open(tmp_path / "file", writable=writable)
    for name in ("1.log", "00000000.log.bak", "00000000.unfinished", "000000000.log"):
        (tmp_path / name).write_bytes(b"")
    assert not holds_log(tmp_path)
    with pytest.raises(StorageError, match=f"{tmp_path} holds no buffer"):
        Log.open(tmp_path, writable=writable)
    assert len([*tmp_path.iterdir()]) == 5, "nothing was made, nothing taken away"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "00000000.log.bak", "1.log", "lock2", "folder/"])
def test_folders_with_other_files_are_refused_and_left_alone(name: str, overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.write_text("content")
    with pytest.raises(StorageError, match=rf"holds other files, as {re.escape(path.name)}; name an empty or a new"):
        Log.create(tmp_path, overwrite=overwrite)
    assert [*tmp_path.iterdir()] == [path]


def test_a_log_that_is_there_is_not_replaced_unasked(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    before = contents(tmp_path)
    with pytest.raises(StorageError, match=f"{tmp_path} holds a buffer already; do something else"):
        Log.create(tmp_path, advice="do something else")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_a_log_is_there_until_the_one_that_replaces_it_is(ending: str, tmp_path: Path) -> None:
    new_log(tmp_path, 3).close()
    before = contents(tmp_path)
    if ending == "killed":
        code = "import os, sys; from pathlib import Path; from sb3_compressed.storage.log import Log"
        outcome(f"{code}\nlog = Log.create(Path(sys.argv[1]), overwrite=True)\nos.kill(os.getpid(), 9)", tmp_path)
    else:
        Log.create(tmp_path, overwrite=True).close()
    assert contents(tmp_path) == before
    log = Log.create(tmp_path, overwrite=True)
    assert read_state(tmp_path) == state_of(2)
    log.write_snapshot([(1, b"another")])
    assert names(tmp_path) == ["00000006.log"]
    assert read_state(tmp_path) == [(1, b"another")]
    log.close()


def test_two_logs_have_different_identities(tmp_path: Path) -> None:
    logs = [new_log(tmp_path / name) for name in "ab"]
    assert logs[0].last.identity != logs[1].last.identity
    for log in logs:
        log.close()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_log_that_is_written_to_is_read_and_not_written_by_others(overwrite: bool, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert read_state(tmp_path) == state_of(0)
    with pytest.raises(StorageError, match="written to by another buffer of this process"):
        Log.open(tmp_path, writable=True)
    with pytest.raises(StorageError, match=r"written to by another|holds a buffer already"):
        Log.create(tmp_path, overwrite=overwrite)
    log.segment_to_write().append(3, b"more")
    log.close()
    assert read_state(tmp_path) == [*state_of(0), (3, b"more")]


def test_a_log_that_was_opened_and_not_written_to_is_as_it_was(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    before = contents(tmp_path)
    Log.open(tmp_path, writable=True).close()
    log = Log.open(tmp_path, writable=True)
    log.open_chain()
    log.close()
    assert contents(tmp_path) == before
    for n_records in range(3):
        log = Log.open(tmp_path, writable=True)
        for segment in log.open_chain():
            for _ in zip(range(n_records), segment.records()):  # of the longer one, some
                pass
        log.close()
        assert contents(tmp_path) == before, f"after {n_records} records were read"


def test_a_flush_begins_no_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.flush()
    log.write_snapshot([(1, b"snapshot")])
    log.flush()
    log.close()
    before = contents(tmp_path)
    log = opened(tmp_path, writable=True)
    log.flush()
    log.close()
    assert contents(tmp_path) == before
    assert names(tmp_path) == ["00000000.log", "00000001.log", "00000002.log"]


def test_what_is_left_unfinished_is_cleaned_up(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    (tmp_path / "00000009.unfinished").write_bytes(b"left by a crash")
    before = names(tmp_path)
    log = opened(tmp_path, writable=True)
    assert names(tmp_path) == before
    log.clean_up()
    assert names(tmp_path) == [name for name in before if name.endswith(".log")]
    log.close()


def test_the_place_in_a_log_tells_whether_it_was_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    assert place_in_log(folder) is None
    folder.mkdir()
    assert place_in_log(folder) is None
    new_log(folder).close()
    places = [place_in_log(folder)]
    opened(folder).close()
    opened(folder, writable=True).close()
    assert place_in_log(folder) == places[0] is not None
    for change in (append, write_snapshot, replace):
        change(folder)
        places.append(place_in_log(folder))
    assert len({*places}) == 4
    newest = max(folder.glob("*.log"))
    newest.write_bytes(b"damaged")
    assert place_in_log(folder) is None


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("writable", [False, True])
def test_a_damaged_header_is_refused_and_the_folder_let_go_of(writable: bool, number: int, tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    path = tmp_path / f"{number:08}.log"
    whole = path.read_bytes()
    for position in range(0, 56, 3):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        damaged[56 + position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(CorruptStorage, match=path.name):
            opened(tmp_path, writable=writable)
        assert path.read_bytes() == damaged
    path.write_bytes(whole)
    opened(tmp_path, writable=True).close()


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("copy", [0, 1])
def test_one_damaged_copy_of_a_header_is_harmless(copy: int, number: int, tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    path = tmp_path / f"{number:08}.log"
    whole = bytearray(path.read_bytes())
    whole[56 * copy : 56 * copy + 56] = os.urandom(56)
    path.write_bytes(whole)
    assert read_state(tmp_path) == state_of(1)
    append(tmp_path)
    assert read_state(tmp_path) == [*state_of(1), *APPENDED]


def test_segments_of_other_places_are_refused(tmp_path: Path) -> None:
    for name in "abc":
        new_log(tmp_path / name, 2).close()
    (tmp_path / "a" / "00000003.log").rename(tmp_path / "a" / "00000004.log")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=r"00000004\.log does not belong here, it is number 3 of its buffer"):
            opened(tmp_path / "a", writable=writable)
    (tmp_path / "a" / "00000001.log").rename(tmp_path / "b" / "00000001.log")
    log = opened(tmp_path / "b")
    log.ids[0] = log.open_segment(0).id
    with pytest.raises(CorruptStorage, match=r"00000001\.log does not belong here, it is of another buffer"):
        log.segment(1)
    assert told_by(log.segment(0)) == told_of(0)
    log.close()
    (tmp_path / "c" / "00000003.log").rename(tmp_path / "b" / "00000003.log")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=r"00000003\.log does not belong here, it is of another buffer"):
            opened(tmp_path / "b", writable=writable)


def test_segments_of_a_copy_that_went_its_own_way_are_refused(tmp_path: Path) -> None:
    new_log(tmp_path / "a", 2).close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        for _ in range(2):
            append(tmp_path / name)
    (tmp_path / "a" / "00000005.log").rename(tmp_path / "b" / "00000005.log")
    for writable in (False, True):
        expected = r"00000005\.log does not follow .*00000004\.log: they are of two copies of one buffer"
        with pytest.raises(CorruptStorage, match=expected):
            opened(tmp_path / "b", writable=writable)
    (tmp_path / "a" / "00000004.log").rename(tmp_path / "b" / "00000004.log")
    assert read_state(tmp_path / "b") == [*state_of(1), *APPENDED, *APPENDED], "all of the other copy"


def test_a_segment_that_a_state_refers_to_is_that_of_the_same_copy(tmp_path: Path) -> None:
    new_log(tmp_path / "a").close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        append(tmp_path / name)
        write_snapshot(tmp_path / name)
    log = opened(tmp_path / "a")
    log.ids[2] = log.open_segment(2).id  # as a snapshot lists it
    (tmp_path / "b" / "00000002.log").rename(tmp_path / "a" / "00000002.log")
    with pytest.raises(CorruptStorage, match=r"00000002\.log does not belong here, it is of a copy of this buffer"):
        log.segment(2)
    log.close()


@pytest.mark.parametrize("number", [4, 3, 2**31, -1])
def test_a_segment_that_is_not_there_is_missing(number: int, tmp_path: Path) -> None:
    new_log(tmp_path, 3).close()
    (tmp_path / "00000003.log").unlink()
    log = opened(tmp_path)
    if number == 4:
        assert told_by(log.segment(4))[:1] == [(1, b"snapshot 2")]
    else:
        with pytest.raises(CorruptStorage, match=r"\.log is missing"):
            log.segment(number)
    assert log.last.number == 5
    log.close()


@pytest.mark.parametrize("writable", [False, True])
def test_a_chain_with_a_hole_is_refused(writable: bool, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(3):
        log.begin_segment()
    log.close()
    for number in (3, 2, 1):
        (tmp_path / f"{number:08}.log").unlink()
        with pytest.raises(CorruptStorage, match=rf"{3:08}\.log is missing"):
            opened(tmp_path, writable=writable)
    (tmp_path / "00000000.log").unlink()
    with pytest.raises(CorruptStorage, match=f"{tmp_path} has no snapshot"):
        opened(tmp_path, writable=writable)


# -- new segments --------------------------------------------------------------------------------------------


def test_a_snapshot_that_fails_leaves_the_segments_before(tmp_path: Path) -> None:
    log = new_log(tmp_path)

    def snapshot() -> Iterator[tuple[int, bytes]]:
        yield 1, b"snapshot"
        raise ArithmeticError

    for _ in range(2):
        with pytest.raises(ArithmeticError):
            log.write_snapshot(snapshot())
        assert names(tmp_path) == ["00000000.log", "00000001.log"]
        assert log.last.number == 1
    log.segment_to_write().append(3, b"more")
    assert read_state(tmp_path) == [*state_of(0), (3, b"more")]
    log.write_snapshot([(1, b"snapshot 1")])
    log.close()
    assert read_state(tmp_path) == [(1, b"snapshot 1")]


KILL_IN_A_SNAPSHOT = """
import os, signal, sys
from pathlib import Path
from storage.test_log import opened

log = opened(Path(sys.argv[1]), writable=True)
log.segment_to_write().append(3, b"more")

def snapshot():
    yield 1, b"snapshot"
    os.kill(os.getpid(), signal.SIGKILL)

log.write_snapshot(snapshot())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_process_killed_in_a_snapshot_leaves_the_segments_before(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    assert outcome(KILL_IN_A_SNAPSHOT, tmp_path).returncode == -9
    before = names(tmp_path)
    assert before[-2:] == ["00000004.log", "00000005.unfinished"]
    assert read_state(tmp_path) == [*state_of(1), (3, b"more")]
    assert names(tmp_path) == before, "a reader takes nothing away"
    log = opened(tmp_path, writable=True)
    log.clean_up()
    assert names(tmp_path) == before[:-1]
    log.write_snapshot([(1, b"snapshot 2")])
    log.close()
    assert read_state(tmp_path) == [(1, b"snapshot 2")]


def test_what_is_left_of_another_does_not_get_into_a_new_segment(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number:08}.unfinished").write_bytes(bytes(range(256)) * 100)
    new_log(tmp_path).close()
    assert read_state(tmp_path) == state_of(0)
    assert names(tmp_path) == ["00000000.log", "00000001.log"]


@pytest.mark.parametrize("kind", ["snapshot", "segment"])
def test_an_interrupt_leaves_the_segments_before_or_the_new_one(kind: str, tmp_path: Path) -> None:
    """And what is written next is in the one that the folder is opened by."""
    states: list[Told] = []
    for interrupt in interrupts(log_module):
        folder = tmp_path / f"{interrupt.n_lines}"
        log = new_log(folder)
        with interrupt:
            if kind == "snapshot":
                log.write_snapshot([(1, b"snapshot 1")])
            else:
                log.begin_segment(1000)
        log.segment_to_write().append(3, b"more")
        told = read_state(folder)
        expected = [[*state_of(0), (3, b"more")]]
        if kind == "snapshot":
            expected.append([(1, b"snapshot 1"), (3, b"more")])
        assert told in expected, f"interrupted after {interrupt.n_lines} lines"
        states += [told] if told not in states else []
        log.write_snapshot([(1, b"next")])
        log.close()
        assert read_state(folder) == [(1, b"next")]
    assert interrupt.n_lines > 10
    assert states == expected


def test_who_reads_in_the_middle_leaves_a_beginning_segment_alone(tmp_path: Path) -> None:
    log = new_log(tmp_path)

    def read() -> None:
        """As another thread might."""
        assert next(iter(log.segment(0).records())).content.tobytes() == b"snapshot 0"
        assert log.last.number in (1, 2, 3)

    with before_lines(range(sys.maxsize), read, log_module):
        log.begin_segment(1000)
        log.write_snapshot([(1, b"snapshot 1")])
    assert log.segment_to_write().append(3, b"more")
    log.close()
    assert read_state(tmp_path) == [(1, b"snapshot 1"), (3, b"more")]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from storage.test_log import opened, read_state

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
log = opened(folder, writable=True)
log.segment_to_write().append(3, bytes(range(256)) * 80_000)
UNLIMITED = resource.RLIM_INFINITY
for limit in (10, 2000, 20_000_000):
    for begin in (
        lambda: log.write_snapshot([(1, bytes(range(256)))] * (10 if limit < 10_000 else 1_000_000)),
        lambda: log.begin_segment(30_000_000),
        lambda: log.begin_segment(0),  # for which there is room at last, but none to end the one before
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, UNLIMITED))
        try:
            begin()
        except OSError:
            print("refused")
        else:
            print("begun")
        resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        log.segment_to_write().append(4, b"%d" % limit)
        state = read_state(folder)
        print("found" if state[-1] == (4, b"%d" % limit) else "lost", len(state))
print([path.name for path in folder.glob("*.unfinished")])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_a_full_disk_leaves_the_segments_before(tmp_path: Path) -> None:
    """And what is written next is in the one that the folder is opened by."""
    new_log(tmp_path).close()
    printed = run(FULL_DISK, tmp_path).splitlines()
    outcomes = ["refused"] * 5 + ["begun"] + ["refused"] * 2 + ["begun"]
    assert printed == [*[line for k, word in enumerate(outcomes) for line in (word, f"found {4 + k}")], "[]"]


# -- keeping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [set(), {0}, {1, 3}, {4}, {0, 1, 2, 3}, {99}])
def test_what_is_not_kept_is_deleted_and_the_state_never(kept: set[int], tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    log.begin_segment()
    log.keep(kept)
    left = [number for number in range(7) if number in {*kept, 4, 5, 6}]
    assert names(tmp_path) == [f"{number:08}.log" for number in left]
    assert [told_in(tmp_path, n) for n in left[:-1]] == [told_of(n) for n in left[:-1]]
    assert sorted(log.ids) == left
    reader = opened(tmp_path)
    for number in {*range(4)} - kept:
        with pytest.raises(CorruptStorage, match="is missing"):
            reader.segment(number)
    reader.close()
    log.segment_to_write().append(3, b"more")
    log.close()
    assert read_state(tmp_path) == [*state_of(2), (3, b"more")]


def test_who_reads_deleted_segments_can_go_on(tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    reader = opened(tmp_path)
    reader.ids = {**log.ids}
    views = [reader.segment(number).bytes for number in (0, 3)]
    log.keep([])
    for number in (0, 3):
        assert told_by(reader.segment(number)) == told_of(number)
    with pytest.raises(CorruptStorage, match=r"00000001\.log is missing"):
        reader.segment(1)
    log.write_snapshot([(1, b"next")])
    log.keep([])
    assert names(tmp_path) == ["00000006.log"]
    assert told_by(reader.segment(3)) == told_of(3)
    assert read_chain(reader) == [(6, [(1, b"next")])]
    assert reader.last.number == 6
    reader.close()
    log.close()
    assert [b"snapshot 0" in views[0].tobytes(), b"content 1" in views[1].tobytes()] == [True, True]


def test_who_reads_lets_go_of_what_it_needs_no_more(tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    reader = opened(tmp_path)
    reader.ids = {**log.ids}
    for number in range(6):
        reader.segment(number)
    reader.close_others([2, 3])
    assert sorted(reader.segments) == [2, 3, 5]
    assert told_by(reader.segment(2)) == told_of(2)
    reader.close()
    log.close()


# -- who may write -------------------------------------------------------------------------------------------


def assert_nothing_can_be_written(log: Log, folder: Path, message: str) -> None:
    before = contents(folder)
    assert not log.is_writable
    for write in (
        lambda: log.segment_to_write().append(3, b"more"),
        lambda: log.write_snapshot([(1, b"next")]),
        log.begin_segment,
        lambda: log.keep([]),
        log.clean_up,
        log.flush,
    ):
        with pytest.raises(StorageError, match=message):
            write()
    assert contents(folder) == before


def test_who_reads_cannot_write(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    log = opened(tmp_path)
    assert_nothing_can_be_written(log, tmp_path, "is open for reading only")
    log.release()  # which there is nothing of
    log.close()


def test_what_is_closed_can_be_read_and_not_written(tmp_path: Path) -> None:
    log = new_log(tmp_path, 2)
    offset = log.segment_to_write().append(3, b"more")
    view = log.last.bytes[offset : offset + 4]
    log.flush()
    log.close()
    log.close()
    assert_nothing_can_be_written(log, tmp_path, r"reading only|closed")
    assert log.last.record_at(offset, 3).tobytes() == b"more"
    assert view.tobytes() == log.last.bytes[offset : offset + 4].tobytes() == b"more"


FORK = """
import os, sys
from pathlib import Path
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.log import Log

log = Log.create(Path(sys.argv[1]))
log.write_snapshot([(1, b"snapshot")])
log.segment_to_write().append(2, b"content")
if not os.fork():
    assert not log.is_writable
    ways = [
        lambda: log.segment_to_write().append(3, b"more"),
        lambda: log.write_snapshot([]),
        lambda: log.keep([]),
        log.flush,
    ]
    for write in ways:
        try:
            write()
        except StorageError as error:
            print(error)
    print([record.content.tobytes() for record in log.last.records()])
    log.close()
    sys.exit()
os.wait()
log.segment_to_write().append(3, b"more")
print(log.is_writable, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process is forked there")
def test_a_forked_process_can_read_and_not_write(tmp_path: Path) -> None:
    printed = outcome(FORK, tmp_path).stdout.splitlines()
    assert [line for line in printed if "was opened by the process that this one was forked from" in line] == printed[
        :4
    ]
    assert printed[4:] == ["[b'content']", "True"]
    assert read_state(tmp_path) == [(1, b"snapshot"), (2, b"content"), (3, b"more")]


# -- releasing -----------------------------------------------------------------------------------------------


def test_what_is_released_can_be_read_and_taken_again(tmp_path: Path) -> None:
    log = new_log(tmp_path, 2)
    for index in range(3):
        log.release()
        log.release()
        assert (tmp_path / "00000003.log").stat().st_size == log.last.end
        assert_nothing_can_be_written(log, tmp_path, "is open for reading only")
        assert read_state(tmp_path)[2:] == [(3, b"%d" % i) for i in range(index)]
        log.acquire(3)
        log.acquire(3)
        assert log.is_writable
        log.segment_to_write().append(3, b"%d" % index)
    assert len(names(tmp_path)) == 4, "it goes on with the segment that it began"
    log.write_snapshot([(1, b"next")])
    log.release()
    log.acquire(3)
    log.segment_to_write().append(3, b"more")
    log.close()
    assert read_state(tmp_path) == [(1, b"next"), (3, b"more")]


def test_what_others_only_looked_at_can_be_taken_again(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for index in range(2):
        log.release()
        assert read_state(tmp_path) == [*state_of(0), (3, b"more")][: 2 + index]
        other = opened(tmp_path, writable=True)
        other.clean_up()
        other.close()
        Log.open(tmp_path, writable=True).close()
        log.acquire(3)
        log.segment_to_write().append(3, b"more")
    log.close()
    assert read_state(tmp_path) == [*state_of(0), (3, b"more"), (3, b"more")]
    assert len(names(tmp_path)) == 2


CUT_SHORT = """
import os, sys
from pathlib import Path
from storage.test_log import new_log

log = new_log(Path(sys.argv[1]))
log.segment_to_write().append(3, b"more")
log.segment_to_write().append(3, b"cut short")
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("n_lost", [1, 10, 20])
def test_what_a_killed_process_left_is_gone_on_behind(n_lost: int, tmp_path: Path) -> None:
    outcome(CUT_SHORT, tmp_path)
    path = tmp_path / "00000001.log"
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")) - n_lost)
    assert read_state(tmp_path) == [*state_of(0), (3, b"more")]
    for _ in range(2):
        append(tmp_path)
    assert told_in(tmp_path, 1) == [describe(), (2, b"content 0"), (3, b"more"), (SEALED, b"")]
    assert read_state(tmp_path) == [*state_of(0), (3, b"more"), *APPENDED, *APPENDED]


APPENDED: Told = [(2, b"of another"), (3, b"of another")]


def append(folder: Path) -> None:
    log = opened(folder, writable=True)
    for record in APPENDED:
        log.segment_to_write().append(*record)
    log.close()


def write_snapshot(folder: Path) -> None:
    log = opened(folder, writable=True)
    log.write_snapshot([(1, b"of another")])
    log.close()


def replace(folder: Path) -> None:
    log = Log.create(folder, overwrite=True)
    log.write_snapshot([(1, b"of another")])
    log.close()


def replace_the_files(folder: Path) -> None:
    for path in folder.glob("*.log"):
        path.unlink()
    new_log(folder).close()


def go_back(folder: Path) -> None:
    """As who copies a backup over it."""
    (folder / "00000001.log").unlink()


def delete(folder: Path) -> None:
    for path in folder.glob("*.log"):
        path.unlink()


def lose_the_end(folder: Path) -> None:
    os.truncate(folder / "00000001.log", (folder / "00000001.log").stat().st_size - 5)


@pytest.mark.parametrize("is_begun", [False, True], ids=["opened", "written to"])
@pytest.mark.parametrize("change", [append, write_snapshot, replace, replace_the_files, go_back, delete, lose_the_end])
def test_what_others_changed_cannot_be_taken_again(change: Any, is_begun: bool, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    if not is_begun:
        log.close()
        log = opened(tmp_path, writable=True)
    log.release()
    change(tmp_path)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"{tmp_path} (was written to by another buffer meanwhile|is gone)"):
            log.acquire(3)
        assert not log.is_writable
    assert contents(tmp_path) == before
    if before:
        opened(tmp_path, writable=True).close()  # nobody holds it
    log.close()


def test_what_others_write_to_cannot_be_taken(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.release()
    other = opened(tmp_path, writable=True)
    for _ in range(2):
        with pytest.raises(StorageError, match="is written to by another buffer of this process"):
            log.acquire(3)
        assert not log.is_writable
    other.segment_to_write().append(3, b"more")
    other.close()
    log.close()
    assert read_state(tmp_path) == [*state_of(0), (3, b"more")]


# -- following -----------------------------------------------------------------------------------------------


def test_who_follows_goes_from_segment_to_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    reader = opened(tmp_path)
    assert reader.following() is None
    for index in range(4):
        last = log.last
        if index % 2:
            log.write_snapshot([(1, b"snapshot")])
        else:
            log.begin_segment()
        following = reader.following()
        assert following is not None
        assert (following.number, following.is_snapshot) == (2 + index, index % 2 == 1)
        assert (following.previous_id, following.previous_end) == (last.id, last.end - record_nbytes(0))
        reader.advance(following)
        assert reader.last is reader.segment(following.number) is following
        assert reader.following() is None
    reader.close()
    log.close()


def test_who_follows_is_told_of_a_segment_that_does_not_follow(tmp_path: Path) -> None:
    new_log(tmp_path / "a").close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    reader = opened(tmp_path / "a")
    for name in "ab":
        append(tmp_path / name)
        append(tmp_path / name)
    following = reader.following()
    assert following is not None
    reader.advance(following)
    (tmp_path / "b" / "00000003.log").rename(tmp_path / "a" / "00000003.log")
    with pytest.raises(CorruptStorage, match=r"00000003\.log does not follow .*00000002\.log"):
        reader.following()
    assert reader.last is following
    reader.close()


@pytest.mark.parametrize("change", [append, write_snapshot])
def test_a_folder_that_is_written_to_is_not_replaced(change: Any, tmp_path: Path) -> None:
    new_log(tmp_path).close()
    reader = opened(tmp_path)
    assert not reader.is_replaced()
    change(tmp_path)
    assert not reader.is_replaced()
    log = opened(tmp_path, writable=True)
    log.write_snapshot([(1, b"snapshot")])
    log.keep([])
    log.close()
    assert not reader.is_replaced(), "though what it reads was deleted"
    reader.close()


@pytest.mark.parametrize("change", [replace_the_files, go_back, delete])
def test_who_follows_notices_that_the_files_are_others(change: Any, tmp_path: Path) -> None:
    new_log(tmp_path).close()
    reader = opened(tmp_path)
    change(tmp_path)
    assert reader.is_replaced()
    reader.close()


def test_who_adopts_another_log_keeps_open_what_both_have(tmp_path: Path) -> None:
    log = new_log(tmp_path, 2)
    ours = opened(tmp_path)
    ours.ids = {**log.ids}
    kept, given_up = ours.segment(1), ours.segment(0)
    log.write_snapshot([(1, b"next")])
    log.keep([1])
    log.segment_to_write().append(3, b"more")
    theirs = opened(tmp_path)
    theirs.ids[1] = log.ids[1]
    ours.adopt(theirs)
    assert ours.segment(1) is kept
    assert given_up not in ours.segments.values()
    assert ours.last is theirs.last
    assert sorted(ours.segments) == [1, 4, 5]
    assert told_by(ours.last) == [describe(), (3, b"more")]
    ours.close()
    log.close()


WRITE_SEGMENTS = """
import sys
from pathlib import Path
from storage.test_log import describe
from sb3_compressed.storage.log import Log

log = Log.create(Path(sys.argv[1]))
log.describe = describe
for number in range(int(sys.argv[2])):
    log.write_snapshot([(1, b"snapshot %d" % number)])
    log.segment_to_write().append(2, b"content %d" % number)
    log.keep([])
    if not number:
        print("ready", flush=True)
log.close()
"""


def test_there_is_a_log_to_read_at_any_moment(tmp_path: Path) -> None:
    with start(WRITE_SEGMENTS, tmp_path, 300) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        log, found = Log.open(tmp_path), []
        while writer.poll() is None:
            before = log.numbers()
            try:
                chain = log.open_chain()
                told = [
                    (record.kind, record.content.tobytes())
                    for segment in chain
                    for record in segment.records(is_growing=True)
                    if record.kind not in (SEALED, DESCRIPTION)
                ]
            except CorruptStorage:
                assert log.numbers() != before, "what was deleted meanwhile may be missing, nothing else"
                continue
            number = int(told[0][1].split()[1])
            assert told == state_of(number)[: len(told)] != []
            found.append(number)
    assert writer.returncode == 0
    assert read_state(tmp_path) == state_of(299)
    log.close()
    assert found == sorted(found)
    assert len({*found}) > 2


def test_numbers_in_the_folder_are_those_of_the_log(tmp_path: Path) -> None:
    log = new_log(tmp_path, 6)
    log.keep([3, 7])
    assert sorted(log.segments) == [3, 7, 10, 11]
    assert log.numbers() == [3, 7, 10, 11]
    assert os.listdir(tmp_path).count("lock") == 1
    log.close()

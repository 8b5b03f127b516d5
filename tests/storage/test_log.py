"""The log in a folder: there is a whole state at any moment, and only what this package put there is touched."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from lines import before_lines, interrupts
from programs import outcome, run, start

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import log as log_module
from sb3_compressed.storage import segment as segment_module
from sb3_compressed.storage.log import SEALED, Log, holds_log, place_in_log
from sb3_compressed.storage.segment import Segment

Told = list[tuple[int, bytes]]

#: The kind of records of which the tests say that with them, those before count.
COMMITTING = 3


@pytest.fixture(autouse=True)
def modest_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be no longer than what is read in no time."""
    monkeypatch.setattr(segment_module, "MIN_GROWTH", 10_000)


def told_by(segment: Segment) -> Told:
    return [(record.kind, record.content.tobytes()) for record in segment.records()]


def opened(folder: Path, *, writable: bool = False) -> Log:
    """Open a log by its last segment; what that tells is read, so that it can be written behind."""
    log = Log.open(folder, writable=writable)
    try:
        told_by(log.open_last(log.numbers()[-1]))
    except BaseException:
        log.close()
        raise
    return log


def read_last(folder: Path) -> tuple[int, Told]:
    """Return the number of the last segment of a folder, and its records."""
    log = opened(folder)
    try:
        return log.last.number, told_by(log.last)
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


def new_log(folder: Path, n_segments: int = 1) -> Log:
    """Return a log of segments with a snapshot and a record each."""
    log = Log.create(folder)
    for number in range(n_segments):
        log.start_segment([(1, b"snapshot %d" % number)], 1000)
        log.segment_to_write().append(2, b"content %d" % number)
    return log


def told_of(number: int, *, is_last: bool = True) -> Told:
    told = [(1, b"snapshot %d" % number), (2, b"content %d" % number)]
    return told if is_last else [*told, (SEALED, b"")]


# -- making and opening --------------------------------------------------------------------------------------


def test_a_log_is_there_with_its_first_segment(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert not holds_log(folder)
    log = Log.create(folder)
    assert log.is_writable
    assert not holds_log(folder)
    log.start_segment([(1, b"snapshot"), (2, b"")], 1000)
    assert holds_log(folder)
    assert log.last.room >= 1000
    offset = log.segment_to_write().append(3, b"more")
    assert log.last.record_at(offset, 3).tobytes() == b"more"
    log.close()
    assert names(folder) == ["00000000.log"]
    assert read_last(folder) == (0, [(1, b"snapshot"), (2, b""), (3, b"more")])


def test_a_log_is_opened_by_its_last_segment(tmp_path: Path) -> None:
    new_log(tmp_path, 3).close()
    assert read_last(tmp_path) == (2, told_of(2))
    log = Log.open(tmp_path)
    assert not log.is_writable
    assert log.numbers() == [0, 1, 2]
    assert log.open_last(2) is log.last is log.segment(2)
    assert [told_by(log.segment(n)) for n in range(3)] == [told_of(n, is_last=n == 2) for n in range(3)]
    assert log.segment(1) is log.segment(1)
    assert log.last.number == 2
    log.close()


def test_writing_goes_on_where_it_ended(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    log = opened(tmp_path, writable=True)
    log.segment_to_write().append(3, b"more")
    log.start_segment([(1, b"next")], 0)
    log.close()
    assert names(tmp_path) == ["00000000.log", "00000001.log", "00000002.log"]
    log = opened(tmp_path)
    assert told_by(log.segment(1)) == [*told_of(1), (3, b"more"), (SEALED, b"")]
    assert told_by(log.last) == [(1, b"next")]
    assert len({log.segment(number).identity for number in range(3)}) == 1
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
    assert read_last(tmp_path) == (2, told_of(2))
    log.start_segment([(1, b"another")], 0)
    assert names(tmp_path) == ["00000003.log"]
    assert read_last(tmp_path) == (3, [(1, b"another")])
    log.close()


def test_two_logs_have_different_identities(tmp_path: Path) -> None:
    logs = [new_log(tmp_path / name) for name in "ab"]
    assert logs[0].last.identity != logs[1].last.identity
    for log in logs:
        log.close()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_log_that_is_written_to_is_read_and_not_written_by_others(overwrite: bool, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert read_last(tmp_path) == (0, told_of(0))
    with pytest.raises(StorageError, match="written to by another buffer of this process"):
        Log.open(tmp_path, writable=True)
    with pytest.raises(StorageError, match=r"written to by another|holds a buffer already"):
        Log.create(tmp_path, overwrite=overwrite)
    log.segment_to_write().append(3, b"more")
    log.close()
    assert read_last(tmp_path) == (0, [*told_of(0), (3, b"more")])


def test_a_log_that_was_opened_and_not_read_is_as_it_was(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    before = contents(tmp_path)
    Log.open(tmp_path, writable=True).close()
    for n_records in range(2):
        log = Log.open(tmp_path, writable=True)
        records = log.open_last(1).records()
        for _ in range(n_records):
            next(records)
        log.close()
        assert contents(tmp_path) == before, f"after {n_records} records were read"


def test_a_log_can_be_opened_by_an_earlier_segment(tmp_path: Path) -> None:
    """As for a repair; those after it are given up when it is written to."""
    new_log(tmp_path, 4).close()
    (tmp_path / "00000009.unfinished").write_bytes(b"left by a crash")
    before = names(tmp_path)
    log = Log.open(tmp_path, writable=True)
    for number in (3, 1):
        told = told_by(log.open_last(number))
        assert told == told_of(number, is_last=number == 3)
        assert log.last.number == number
    assert told_by(log.segment(0)) == told_of(0, is_last=False)
    assert names(tmp_path) == before
    log.clean_up()
    assert names(tmp_path) == ["00000000.log", "00000001.log"]
    log.segment_to_write().append(3, b"more")
    log.start_segment([(1, b"next")], 0)
    log.close()
    assert read_last(tmp_path) == (2, [(1, b"next")])


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
    for change in (append, start_segment, replace):
        change(folder)
        places.append(place_in_log(folder))
    assert len({*places}) == 4
    (folder / "00000002.log").write_bytes(b"damaged")
    assert place_in_log(folder) is None


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writable", [False, True])
def test_a_damaged_header_is_refused_and_the_folder_let_go_of(writable: bool, tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    whole = (tmp_path / "00000001.log").read_bytes()
    for position in range(32):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        (tmp_path / "00000001.log").write_bytes(damaged)
        with pytest.raises(CorruptStorage, match=r"00000001\.log"):
            opened(tmp_path, writable=writable)
        assert (tmp_path / "00000001.log").read_bytes() == damaged
    (tmp_path / "00000001.log").write_bytes(whole)
    opened(tmp_path, writable=True).close()


def test_segments_of_other_places_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        new_log(tmp_path / name, 3).close()
    (tmp_path / "a" / "00000002.log").rename(tmp_path / "a" / "00000005.log")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=r"00000005\.log does not belong here, it is number 2 of its buffer"):
            opened(tmp_path / "a", writable=writable)
    (tmp_path / "a" / "00000001.log").rename(tmp_path / "b" / "00000001.log")
    log = opened(tmp_path / "b")
    with pytest.raises(CorruptStorage, match=r"00000001\.log does not belong here"):
        log.segment(1)
    assert told_by(log.segment(0)) == told_of(0, is_last=False)
    log.close()


@pytest.mark.parametrize("number", [1, 3, 2**31, -1])
def test_a_segment_that_is_not_there_is_missing(number: int, tmp_path: Path) -> None:
    new_log(tmp_path, 3).close()
    (tmp_path / "00000001.log").unlink()
    log = opened(tmp_path)
    with pytest.raises(CorruptStorage, match=r"\.log is missing"):
        log.segment(number)
    assert log.last.number == 2
    log.close()


# -- new segments --------------------------------------------------------------------------------------------


def test_a_snapshot_that_fails_leaves_the_segment_before(tmp_path: Path) -> None:
    log = new_log(tmp_path)

    def snapshot() -> Iterator[tuple[int, bytes]]:
        yield 1, b"snapshot"
        raise ArithmeticError

    for _ in range(2):
        with pytest.raises(ArithmeticError):
            log.start_segment(snapshot(), 1000)
        assert names(tmp_path) == ["00000000.log"]
        assert log.last.number == 0
    log.segment_to_write().append(3, b"more")
    assert read_last(tmp_path) == (0, [*told_of(0), (3, b"more")])
    log.start_segment([(1, b"snapshot 1")], 0)
    log.close()
    assert read_last(tmp_path) == (1, [(1, b"snapshot 1")])


KILL_IN_A_SNAPSHOT = """
import os, signal, sys
from pathlib import Path
from sb3_compressed.storage.log import Log

log = Log.open(Path(sys.argv[1]), writable=True)
assert len([*log.open_last(log.numbers()[-1]).records()]) == 2
log.segment_to_write().append(3, b"more")

def snapshot():
    yield 1, b"snapshot"
    os.kill(os.getpid(), signal.SIGKILL)

log.start_segment(snapshot(), 1000)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_process_killed_in_a_snapshot_leaves_the_segment_before(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    assert outcome(KILL_IN_A_SNAPSHOT, tmp_path).returncode == -9
    assert names(tmp_path) == ["00000000.log", "00000001.log", "00000002.unfinished"]
    assert read_last(tmp_path) == (1, [*told_of(1), (3, b"more")])
    assert "00000002.unfinished" in names(tmp_path), "a reader takes nothing away"
    log = opened(tmp_path, writable=True)
    log.clean_up()
    assert names(tmp_path) == ["00000000.log", "00000001.log"]
    log.start_segment([(1, b"snapshot 2")], 0)
    log.close()
    assert read_last(tmp_path) == (2, [(1, b"snapshot 2")])


def test_what_is_left_of_another_does_not_get_into_a_new_segment(tmp_path: Path) -> None:
    (tmp_path / "00000000.unfinished").write_bytes(bytes(range(256)) * 100)
    log = Log.create(tmp_path)
    log.start_segment([(1, b"snapshot")], 0)
    log.close()
    assert read_last(tmp_path) == (0, [(1, b"snapshot")])


def test_an_interrupt_leaves_one_of_the_two_segments(tmp_path: Path) -> None:
    """And what is written next is in the one that the folder is opened by."""
    for interrupt in interrupts(log_module):
        folder = tmp_path / f"{interrupt.n_lines}"
        log = new_log(folder)
        with interrupt:
            log.start_segment([(1, b"snapshot 1"), (2, b"content 1")], 1000)
        log.segment_to_write().append(3, b"more")
        number, told = read_last(folder)
        assert told == [*told_of(number), (3, b"more")], f"interrupted after {interrupt.n_lines} lines"
        log.start_segment([(1, b"next")], 0)
        log.close()
        assert read_last(folder)[1] == [(1, b"next")]
    assert interrupt.n_lines > 10


def test_who_reads_in_the_middle_leaves_a_beginning_segment_alone(tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    log.start_segment([(1, b"snapshot 0")], 1000)

    def read() -> None:
        """As another thread might."""
        assert next(iter(log.segment(0).records())).content.tobytes() == b"snapshot 0"
        assert log.last.number in (0, 1)

    with before_lines(range(sys.maxsize), read, log_module):
        log.start_segment([(1, b"snapshot 1")], 1000)
    assert log.segment_to_write().append(3, b"more")
    log.close()
    assert read_last(tmp_path) == (1, [(1, b"snapshot 1"), (3, b"more")])


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from sb3_compressed.storage.log import Log

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = Log.open(Path(sys.argv[1]), writable=True)
assert len([*log.open_last(0).records()]) == 2
log.segment_to_write().append(3, bytes(range(256)) * 80_000)
UNLIMITED = resource.RLIM_INFINITY
for limit, capacity in [(10, 0), (2000, 0), (20_000_000, 30_000_000), (20_000_000, 0)]:
    # At last there is room for a new segment, and none for another record in the one before.
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, UNLIMITED))
    try:
        log.start_segment([(1, bytes(range(256)))] * 10, capacity)
    except OSError:
        print("refused")
    resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    log.segment_to_write().append(4, b"%d" % limit)
    reader = Log.open(Path(sys.argv[1]))
    last = [*reader.open_last(reader.numbers()[-1]).records()][-1]
    print("found" if last.content.tobytes() == b"%d" % limit else "lost")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_a_full_disk_leaves_one_of_the_two_segments(tmp_path: Path) -> None:
    """And what is written next is in the one that the folder is opened by."""
    new_log(tmp_path).close()
    printed = run(FULL_DISK, tmp_path).split()
    assert printed[:6] == ["refused", "found"] * 3
    assert printed[6:] in (["refused", "found"], ["found"])
    assert not [name for name in names(tmp_path) if name.endswith("unfinished")]


# -- keeping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [set(), {0}, {1, 3}, {4}, {0, 1, 2, 3}, {99}])
def test_what_is_not_kept_is_deleted_and_the_last_one_never(kept: set[int], tmp_path: Path) -> None:
    log = new_log(tmp_path, 5)
    log.keep(kept)
    left = [number for number in range(5) if number in {*kept, 4}]
    assert names(tmp_path) == [f"{number:08}.log" for number in left]
    assert [told_in(tmp_path, n) for n in left] == [told_of(n, is_last=n == 4) for n in left]
    reader = opened(tmp_path)
    for number in {*range(4)} - kept:
        with pytest.raises(CorruptStorage, match="is missing"):
            reader.segment(number)
    reader.close()
    log.segment_to_write().append(3, b"more")
    log.close()
    assert read_last(tmp_path) == (4, [*told_of(4), (3, b"more")])


def test_who_reads_deleted_segments_can_go_on(tmp_path: Path) -> None:
    log = new_log(tmp_path, 4)
    reader = opened(tmp_path)
    views = [reader.segment(number).bytes for number in (0, 2)]
    log.keep([])
    for number in (0, 2):
        assert told_by(reader.segment(number)) == told_of(number, is_last=False)
    with pytest.raises(CorruptStorage, match=r"00000001\.log is missing"):
        reader.segment(1)
    log.start_segment([(1, b"next")], 0)
    log.keep([])
    assert told_by(reader.segment(3)) == told_of(3, is_last=False)
    assert told_by(reader.newest()) == [(1, b"next")]
    assert reader.last.number == 4
    reader.let_go_of_others([2])
    assert sorted(reader.segments) == [2, 4]
    assert told_by(reader.segment(2)) == told_of(2, is_last=False)
    reader.close()
    log.close()
    assert [b"content 0" in views[0].tobytes(), b"content 2" in views[1].tobytes()] == [True, True]


# -- who may write -------------------------------------------------------------------------------------------


def assert_nothing_can_be_written(log: Log, folder: Path, message: str) -> None:
    before = contents(folder)
    assert not log.is_writable
    for write in (
        lambda: log.segment_to_write().append(3, b"more"),
        lambda: log.start_segment([(1, b"next")], 0),
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
log.start_segment([(1, b"snapshot")], 100_000)
if not os.fork():
    assert not log.is_writable
    ways = [
        lambda: log.segment_to_write().append(3, b"more"),
        lambda: log.start_segment([], 0),
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
log.segment_to_write().append(2, b"content")
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
    assert printed[4:] == ["[b'snapshot']", "True"]
    assert read_last(tmp_path) == (0, [(1, b"snapshot"), (2, b"content"), (3, b"more")])


# -- releasing -----------------------------------------------------------------------------------------------


def test_what_is_released_can_be_read_and_taken_again(tmp_path: Path) -> None:
    log = new_log(tmp_path, 2)
    for index in range(3):
        log.release()
        log.release()
        assert (tmp_path / "00000001.log").stat().st_size == log.last.end
        assert_nothing_can_be_written(log, tmp_path, "is open for reading only")
        assert read_last(tmp_path)[1][2:] == [(3, b"%d" % i) for i in range(index)]
        log.acquire(COMMITTING)
        log.acquire(COMMITTING)
        assert log.is_writable
        log.segment_to_write().append(3, b"%d" % index)
    log.start_segment([(1, b"next")], 0)
    log.close()
    assert read_last(tmp_path) == (2, [(1, b"next")])


def test_what_others_only_looked_at_can_be_taken_again(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.release()
    assert read_last(tmp_path) == (0, told_of(0))
    opened(tmp_path, writable=True).close()
    Log.open(tmp_path, writable=True).close()
    log.acquire(COMMITTING)
    log.segment_to_write().append(3, b"more")
    log.close()
    assert read_last(tmp_path) == (0, [*told_of(0), (3, b"more")])


DIE = """
import os, sys
from pathlib import Path
from sb3_compressed.storage.log import Log

log = Log.open(Path(sys.argv[1]), writable=True)
assert [*log.open_last(0).records()]
log.segment_to_write().append(2, b"of another" * 10)
log.segment_to_write().append(2, b"of another")
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("n_lost", [0, 3])
def test_what_others_began_and_did_not_commit_can_be_taken_again(n_lost: int, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.release()
    path, end = tmp_path / "00000000.log", log.last.end
    outcome(DIE, tmp_path)
    written = len(path.read_bytes().rstrip(b"\0"))
    os.truncate(path, written - n_lost)
    assert written > end
    log.acquire(COMMITTING)
    log.segment_to_write().append(COMMITTING, b"more")
    log.close()
    assert read_last(tmp_path) == (0, [*told_of(0), (COMMITTING, b"more")])


def append(folder: Path) -> None:
    log = opened(folder, writable=True)
    log.segment_to_write().append(2, b"of another")
    log.segment_to_write().append(COMMITTING, b"of another")
    log.close()


def start_segment(folder: Path) -> None:
    log = opened(folder, writable=True)
    log.start_segment([(1, b"of another")], 0)
    log.close()


def replace(folder: Path) -> None:
    log = Log.create(folder, overwrite=True)
    log.start_segment([(1, b"of another")], 0)
    log.close()


def replace_the_file(folder: Path) -> None:
    (folder / "00000000.log").unlink()
    replace(folder)


def delete(folder: Path) -> None:
    (folder / "00000000.log").unlink()


def repair(folder: Path, content: bytes = b"short") -> None:
    """Give up the last record, as for damage, and write another one that is shorter."""
    log = Log.open(folder, writable=True)
    next(log.open_last(0).records())
    log.last.forget_the_rest()
    log.segment_to_write().append(COMMITTING, content)
    log.close()


def repair_and_write_more(folder: Path) -> None:
    """Give up the last record, and write another one that ends behind it."""
    repair(folder, b"long" * 100)


def repair_and_write_as_much(folder: Path) -> None:
    """Give up the last record, and write another one that ends where it did."""
    repair(folder, b"content 9")


@pytest.mark.parametrize(
    "change",
    [append, start_segment, replace, replace_the_file, delete, repair, repair_and_write_more, repair_and_write_as_much],
)
def test_what_others_changed_cannot_be_taken_again(change: Any, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.release()
    change(tmp_path)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"{tmp_path} (was written to by another buffer meanwhile|is gone)"):
            log.acquire(COMMITTING)
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
            log.acquire(COMMITTING)
        assert not log.is_writable
    other.segment_to_write().append(3, b"more")
    other.close()
    log.close()
    assert read_last(tmp_path) == (0, [*told_of(0), (3, b"more")])


# -- following -----------------------------------------------------------------------------------------------

WRITE_SEGMENTS = """
import sys
from pathlib import Path
from sb3_compressed.storage.log import Log

log = Log.create(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    log.start_segment([(1, b"snapshot %d" % number)], 1000)
    log.segment_to_write().append(2, b"content %d" % number)
    log.keep([])
    if not number:
        print("ready", flush=True)
log.close()
"""


def test_there_is_a_log_to_follow_at_any_moment(tmp_path: Path) -> None:
    with start(WRITE_SEGMENTS, tmp_path, 300) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        log = Log.open(tmp_path)
        while True:
            with suppress(CorruptStorage):  # deleted meanwhile
                log.open_last(log.numbers()[-1])
                break
        found = []
        while writer.poll() is None:
            last = log.newest()
            told = [(record.kind, record.content.tobytes()) for record in last.records(is_growing=True)]
            assert told == told_of(last.number, is_last=False)[: len(told)] != []
            found.append(last.number)
            log.let_go_of_others([])
    assert writer.returncode == 0
    assert told_by(log.newest()) == told_of(299)
    log.close()
    assert found == sorted(found)
    assert len({*found}) > 2


def test_numbers_in_the_folder_are_those_of_the_log(tmp_path: Path) -> None:
    log = new_log(tmp_path, 12)
    log.keep([3, 7])
    assert sorted(log.segments) == [3, 7, 11]
    assert os.listdir(tmp_path).count("lock") == 1
    log.close()

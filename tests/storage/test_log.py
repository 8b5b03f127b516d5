"""Log: a folder always contains a complete state, has one writer, and foreign files are never touched."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import outcome

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.log import Log, has_log, log_fingerprint, segment_numbers
from sb3_compressed.storage.record_kinds import SEALED
from storage.folders import contents, names
from storage.logs import (
    append,
    begin_segment,
    delete,
    describe,
    expected_records,
    new_log,
    opened,
    read_chain,
    read_state,
    records_in,
    replace_files,
    restore_older_files,
    state_of,
    write_snapshot,
)
from storage.segments import records_of

pytestmark = pytest.mark.usefixtures("small_files")


# -- making and opening --------------------------------------------------------------------------------------


def test_log_exists_from_its_first_snapshot_on(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert not has_log(folder)
    log = Log.create(folder)
    log.first_record = describe
    assert log.is_writable
    assert not has_log(folder)
    log.write_snapshot([(1, b"snapshot"), (2, b"")])
    assert has_log(folder)
    assert names(folder) == ["00000000.log"]
    offset = log.segment_to_write().append(3, b"more")
    assert log.last.record_at(offset, 3).tobytes() == b"more"
    log.close()
    assert names(folder) == ["00000000.log", "00000001.log"]
    assert read_state(folder) == [(1, b"snapshot"), (2, b""), (3, b"more")]


def test_new_segments_reserve_the_requested_room(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    begin_segment(log, 100_000)
    assert log.last.room >= 100_000
    log.write_snapshot([(1, b"snapshot")])
    assert log.segment_to_write().room >= 100_000, "later segments reserve as much"
    log.close()


def test_open_reads_newest_snapshot_and_following_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    for number in range(2):
        log.begin_segment()
        log.segment_to_write().append(3, b"more %d" % number)
    log.close()
    log = Log.open(tmp_path)
    assert not log.is_writable
    assert segment_numbers(tmp_path) == [*range(8)]
    assert read_chain(log) == [
        (4, expected_records(4, is_last=True)),
        (5, expected_records(5, is_last=True)),
        (6, [describe(), (3, b"more 0")]),
        (7, [describe(), (3, b"more 1")]),
    ]
    assert sorted(log.segments) == [4, 5, 6, 7]
    assert log.last is log.segment(7)
    assert log.segment(5) is log.segment(5)
    log.close()
    assert [records_in(tmp_path, n) for n in range(6)] == [expected_records(n) for n in range(6)]


def test_new_writer_begins_a_segment_and_only_seals_the_previous_one(tmp_path: Path) -> None:
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
        assert records_in(tmp_path, 3 + index)[-1] == (SEALED, b"")
    more = [(3, content) for index in range(3) for content in (b"more %d" % index, b"again")]
    assert read_state(tmp_path) == [*state_of(1), *more]
    log = opened(tmp_path)
    assert len({log.open_segment(number).identity for number in range(7)}) == 1
    assert len({log.open_segment(number).id for number in range(7)}) == 7
    log.close()


@pytest.mark.parametrize("writable", [False, True])
def test_missing_folder_and_missing_log_have_different_errors(writable: bool, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"there is no folder {tmp_path / 'missing'}"):
        Log.open(tmp_path / "missing", writable=writable)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "file").write_bytes(b"")
    assert not has_log(tmp_path / "file")
    with pytest.raises(StorageError, match="there is no folder"):
        Log.open(tmp_path / "file", writable=writable)
    for name in ("1.log", "00000000.log.bak", "00000000.unfinished", "000000000.log"):
        (tmp_path / name).write_bytes(b"")
    assert not has_log(tmp_path)
    with pytest.raises(StorageError, match=f"{tmp_path} contains no"):
        Log.open(tmp_path, writable=writable)
    assert len([*tmp_path.iterdir()]) == 5, "no file was created or deleted"
    (tmp_path / "buffer").mkdir()
    (tmp_path / "buffer" / "00000000.log").write_bytes(b"")
    with pytest.raises(StorageError, match=f"checkpoint of a model and its buffer.* {tmp_path / 'buffer'}$"):
        Log.open(tmp_path, writable=writable)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "00000000.log.bak", "1.log", "lock2", "folder/"])
def test_folders_with_other_files_are_rejected_unchanged(name: str, overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.write_text("content")
    with pytest.raises(
        StorageError, match=rf"contains other files, such as {re.escape(path.name)}; pass an empty or a new"
    ):
        Log.create(tmp_path, overwrite=overwrite)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_replaced_log_stays_until_the_new_one_is_complete(ending: str, tmp_path: Path) -> None:
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
    log.drop_segments([])
    assert names(tmp_path) == ["00000006.log"]
    assert read_state(tmp_path) == [(1, b"another")]
    log.close()


def test_fingerprint_changes_when_the_log_is_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    assert log_fingerprint(folder) is None
    folder.mkdir()
    assert log_fingerprint(folder) is None
    new_log(folder).close()
    places = [log_fingerprint(folder)]
    opened(folder).close()
    opened(folder, writable=True).close()
    assert log_fingerprint(folder) == places[0] is not None
    for change in (append, write_snapshot, replace):
        change(folder)
        places.append(log_fingerprint(folder))
    assert len({*places}) == 4
    newest = max(folder.glob("*.log"))
    newest.write_bytes(b"damaged")
    assert log_fingerprint(folder) is None


# -- keeping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [set(), {0}, {1, 3}, {4}, {0, 1, 2, 3}, {99}])
def test_drop_segments_keeps_the_state_and_the_named_segments(kept: set[int], tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    log.begin_segment()
    log.drop_segments(kept)
    left = [number for number in range(7) if number in {*kept, 4, 5, 6}]
    assert names(tmp_path) == [f"{number:08}.log" for number in left]
    assert [records_in(tmp_path, n) for n in left[:-1]] == [expected_records(n) for n in left[:-1]]
    assert sorted(log.ids) == left
    reader = opened(tmp_path)
    for number in {*range(4)} - kept:
        with pytest.raises(CorruptStorage, match="is missing"):
            reader.segment(number)
    reader.close()
    log.segment_to_write().append(3, b"more")
    log.close()
    assert read_state(tmp_path) == [*state_of(2), (3, b"more")]


def test_reader_of_deleted_segments_can_continue(tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    reader = opened(tmp_path)
    reader.ids = {**log.ids}
    views = [reader.segment(number).bytes for number in (0, 3)]
    log.drop_segments([])
    for number in (0, 3):
        assert records_of(reader.segment(number)) == expected_records(number)
    with pytest.raises(CorruptStorage, match=r"00000001\.log is missing"):
        reader.segment(1)
    log.write_snapshot([(1, b"next")])
    log.drop_segments([])
    assert names(tmp_path) == ["00000006.log"]
    assert records_of(reader.segment(3)) == expected_records(3)
    assert read_chain(reader) == [(6, [(1, b"next")])]
    assert reader.last.number == 6
    reader.close()
    log.close()
    assert [b"snapshot 0" in views[0].tobytes(), b"content 1" in views[1].tobytes()] == [True, True]


# -- write access -------------------------------------------------------------------------------------------


def assert_nothing_can_be_written(log: Log, folder: Path, message: str) -> None:
    before = contents(folder)
    assert not log.is_writable
    for write in (
        lambda: log.segment_to_write().append(3, b"more"),
        lambda: log.write_snapshot([(1, b"next")]),
        log.begin_segment,
        lambda: log.drop_segments([]),
        log.clean_up,
        log.flush,
    ):
        with pytest.raises(StorageError, match=message):
            write()
    assert contents(folder) == before


def test_closed_log_can_be_read_but_not_written(tmp_path: Path) -> None:
    log = new_log(tmp_path, 2)
    reader = opened(tmp_path)
    assert_nothing_can_be_written(reader, tmp_path, "is open for reading only")
    reader.release()  # does nothing
    reader.check_lock()  # which it has not
    reader.close()
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
        lambda: log.drop_segments([]),
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
def test_forked_process_can_read_but_not_write(tmp_path: Path) -> None:
    printed = outcome(FORK, tmp_path).stdout.splitlines()
    assert [line for line in printed if "was opened before this process was forked" in line] == printed[:4]
    assert printed[4:] == ["[b'content']", "True"]
    assert read_state(tmp_path) == [(1, b"snapshot"), (2, b"content"), (3, b"more")]


# -- releasing -----------------------------------------------------------------------------------------------


def test_released_log_can_be_read_and_acquired_again(tmp_path: Path) -> None:
    log = new_log(tmp_path, 2)
    for index in range(3):
        log.release()
        log.release()
        assert (tmp_path / "00000003.log").stat().st_size == log.last.end
        assert_nothing_can_be_written(log, tmp_path, "is open for reading only")
        assert read_state(tmp_path)[2:] == [(3, b"%d" % i) for i in range(index)]
        log.acquire()
        log.acquire()
        assert log.is_writable
        log.segment_to_write().append(3, b"%d" % index)
    assert len(names(tmp_path)) == 4, "it continues its own segment"
    log.write_snapshot([(1, b"next")])
    log.release()
    log.acquire()
    log.segment_to_write().append(3, b"more")
    log.close()
    assert read_state(tmp_path) == [(1, b"next"), (3, b"more")]


def test_acquire_succeeds_after_others_only_opened_the_log(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for index in range(2):
        log.release()
        assert read_state(tmp_path) == [*state_of(0), (3, b"more")][: 2 + index]
        other = opened(tmp_path, writable=True)
        other.clean_up()
        other.close()
        Log.open(tmp_path, writable=True).close()
        log.acquire()
        log.segment_to_write().append(3, b"more")
    log.close()
    assert read_state(tmp_path) == [*state_of(0), (3, b"more"), (3, b"more")]
    assert len(names(tmp_path)) == 2


def replace(folder: Path) -> None:
    log = Log.create(folder, overwrite=True)
    log.write_snapshot([(1, b"of another")])
    log.close()


def truncate_end(folder: Path) -> None:
    os.truncate(folder / "00000001.log", (folder / "00000001.log").stat().st_size - 5)


@pytest.mark.parametrize("has_own_segment", [False, True], ids=["opened", "written to"])
@pytest.mark.parametrize(
    "change", [append, write_snapshot, replace, replace_files, restore_older_files, delete, truncate_end]
)
def test_acquire_fails_after_others_changed_the_log(change: Any, has_own_segment: bool, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    if not has_own_segment:
        log.close()
        log = opened(tmp_path, writable=True)
    log.release()
    change(tmp_path)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"{tmp_path} (was written to by another buffer since|was deleted)"):
            log.acquire()
        assert not log.is_writable
    assert contents(tmp_path) == before
    if before:
        opened(tmp_path, writable=True).close()  # it is not locked
    log.close()


def test_acquire_fails_after_a_backup_of_the_growing_segment_was_restored(tmp_path: Path) -> None:
    """The backup is as long as the segment, because it has room, but lacks its last record."""
    log, path = new_log(tmp_path), tmp_path / "00000001.log"
    backup = path.read_bytes()
    log.segment_to_write().append(3, b"more")
    log.release()
    assert len(backup) > path.stat().st_size
    path.write_bytes(backup)
    with pytest.raises(StorageError, match="since"):
        log.acquire()
    log.close()


def test_acquire_fails_while_another_log_writes(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.release()
    other = opened(tmp_path, writable=True)
    for _ in range(2):
        with pytest.raises(StorageError, match="another buffer"):
            log.acquire()
        assert not log.is_writable
    other.segment_to_write().append(3, b"more")
    other.close()
    log.close()
    assert read_state(tmp_path) == [*state_of(0), (3, b"more")]

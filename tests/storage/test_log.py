"""Log: a folder always contains a complete state, has one writer, and foreign files are never touched."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import outcome

from sb3_compressed.errors import StorageError
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_files import has_log
from storage.folders import contents
from storage.logs import (
    append,
    delete,
    new_log,
    opened,
    read_chain,
    read_state,
    replace_files,
    restore_older_files,
    state_of,
    write_snapshot,
)

pytestmark = pytest.mark.usefixtures("small_files")


# -- making and opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize("writable", [False, True])
def test_missing_folder_and_missing_log_have_different_errors(writable: bool, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"there is no folder {tmp_path / 'missing'}"):
        Log.open(tmp_path / "missing", FolderLock(tmp_path / "missing") if writable else None)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "file").write_bytes(b"")
    assert not has_log(tmp_path / "file")
    with pytest.raises(StorageError, match="there is no folder"):
        Log.open(tmp_path / "file", FolderLock(tmp_path / "file") if writable else None)
    for name in ("1.log", "00000000.log.bak", "00000000.unfinished", "000000000.log"):
        (tmp_path / name).write_bytes(b"")
    assert not has_log(tmp_path)
    with pytest.raises(StorageError, match=f"{tmp_path} contains no"):
        Log.open(tmp_path, FolderLock(tmp_path) if writable else None)
    assert len([*tmp_path.iterdir()]) == 5, "no file was created or deleted"
    (tmp_path / "buffer").mkdir()
    (tmp_path / "buffer" / "00000000.log").write_bytes(b"")
    with pytest.raises(StorageError, match=f"checkpoint of a model and its buffer.* {tmp_path / 'buffer'}$"):
        Log.open(tmp_path, FolderLock(tmp_path) if writable else None)


@pytest.mark.parametrize(("name", "overwrite"), [("notes.txt", False), ("00000000.log.bak", True), ("folder/", True)])
def test_folders_with_other_files_are_rejected_unchanged(name: str, overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.write_text("content")
    with pytest.raises(StorageError, match=re.escape(path.name)):
        Log.create(tmp_path, overwrite=overwrite)
    assert [*tmp_path.iterdir()] == [path]


# -- write access -------------------------------------------------------------------------------------------


def test_log_that_is_open_for_reading_cannot_be_written(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.acquire(FolderLock(tmp_path))  # it has access already
    reader = opened(tmp_path)
    before = contents(tmp_path)
    for write in (reader.begin_segment, reader.clean_up, reader.flush):
        with pytest.raises(StorageError, match="reading only"):
            write()
    assert contents(tmp_path) == before
    assert [number for number, _ in read_chain(reader)] == [0, 1]
    reader.close()
    log.close()


FORK = """
import os, sys
from pathlib import Path
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.log import Log

log = Log.create(Path(sys.argv[1]))
log.begin_segment([(1, b"snapshot")])
log.segment_to_write().append(2, b"content")
if not os.fork():
    assert not log.is_writable
    ways = [
        lambda: log.segment_to_write().append(3, b"more"),
        lambda: log.begin_segment([]),
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


def replace(folder: Path) -> None:
    log = Log.create(folder, overwrite=True)
    log.begin_segment([(1, b"of another")])
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
    log.close()
    change(tmp_path)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"{tmp_path} (was written to by another buffer since|was deleted)"):
            log.acquire(lock := FolderLock(tmp_path))
        lock.release()
        assert not log.is_writable
    assert contents(tmp_path) == before
    if before:
        opened(tmp_path, writable=True).close()  # it is not locked
    log.close()


def test_acquire_fails_while_another_log_writes(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.close()
    other = opened(tmp_path, writable=True)
    for _ in range(2):
        with pytest.raises(StorageError, match="another buffer"):
            log.acquire(FolderLock(tmp_path))
        assert not log.is_writable
    other.segment_to_write().append(3, b"more")
    other.close()
    log.close()
    assert read_state(tmp_path) == [*state_of(0), (3, b"more")]

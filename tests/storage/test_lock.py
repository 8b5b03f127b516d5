"""FolderLock: one owner at a time, no forked processes, and no stale locks of dead processes."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from programs import Process, run, start

from sb3_compressed.errors import StorageError
from sb3_compressed.storage.files import open_regular_file
from sb3_compressed.storage.lock import FolderInUse, FolderLock

NEEDS_LINKS = pytest.mark.skipif(sys.platform == "win32", reason="links need privileges")

LOCK = """
import sys
from pathlib import Path
from sb3_compressed.storage.lock import FolderLock

lock = FolderLock(Path(sys.argv[1])).acquire()
print("locked", flush=True)
sys.stdin.read()
"""

TRY = """
import sys
from pathlib import Path
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.lock import FolderLock

folder = Path(sys.argv[1])
print(FolderLock.is_locked(folder))
try:
    FolderLock(folder).acquire()
    print("locked")
except StorageError as error:
    print(error)
"""


@contextmanager
def lock_in_other_process(folder: Path, code: str = LOCK) -> Iterator[Process]:
    """Start a process that has the lock until its standard input is closed."""
    with start(code, folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.kill()


TRY_EACH_LINE = f"""
import sys
for line in sys.stdin:
    sys.argv[1:] = [line[:-1]]
    exec({TRY!r}, {{}})
    sys.stdout.flush()
"""

TryLock = Callable[[Path], list[str]]


@pytest.fixture(scope="module")
def try_in_other_process() -> Iterator[TryLock]:
    """Return whether another process finds a folder locked, and the result of its attempt to lock it."""
    with start(TRY_EACH_LINE) as process:

        def try_lock(folder: Path) -> list[str]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(folder, file=process.stdin, flush=True)
            return [process.stdout.readline().rstrip("\n") for _ in range(2)]

        yield try_lock


def test_other_process_cannot_lock_and_learns_the_owner(tmp_path: Path, try_in_other_process: TryLock) -> None:
    lock = FolderLock(tmp_path).acquire()
    assert lock.is_owned
    [is_held, message] = try_in_other_process(tmp_path)
    assert is_held == "True"
    assert message.startswith(f"{tmp_path} is written to by the process {os.getpid()};")
    lock.release()
    assert not lock.is_owned
    assert try_in_other_process(tmp_path) == ["False", "locked"]


@pytest.mark.parametrize("name", ["folder", "folder/../folder", pytest.param("link", marks=NEEDS_LINKS), "."])
def test_one_process_cannot_lock_a_folder_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_in_other_process: TryLock
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if name == "link":
        (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    same = Path(".") if name == "." else tmp_path / name
    lock = FolderLock(folder).acquire()
    assert FolderLock.is_locked(same)
    second = FolderLock(same)
    with pytest.raises(StorageError, match=rf"^{re.escape(str(same))} is written to by another buffer of this process"):
        second.acquire()
    assert lock.is_owned
    assert not second.is_owned
    assert name != "link" or try_in_other_process(same)[0] == "True", "the failed attempt did not release it"
    lock.release()
    again = FolderLock(same).acquire()
    assert not lock.is_owned
    again.release()


def test_a_lock_of_a_relative_folder_is_found_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    lock = FolderLock(Path("folder")).acquire()
    monkeypatch.chdir("folder")
    lock.ensure_held()
    lock.release()


def test_a_folder_that_nobody_has_written_to_is_not_locked(tmp_path: Path) -> None:
    assert not FolderLock.is_locked(tmp_path)


# -- readers that check whether the folder is locked -----------------------------------------------------------------


@contextmanager
def shared_lock(folder: Path) -> Iterator[FileIO]:
    """Hold the lock that another reader takes for a moment, until the file is closed."""
    fcntl = pytest.importorskip("fcntl", reason="Windows has no shared locks")
    (folder / "lock").touch()
    with open_regular_file(folder / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield file


def test_readers_do_not_take_each_other_for_writers(tmp_path: Path) -> None:
    with shared_lock(tmp_path):
        assert not FolderLock.is_locked(tmp_path)


def test_a_writer_waits_for_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_lock(tmp_path) as reader:
        monkeypatch.setattr("time.sleep", lambda seconds: reader.close())
        lock = FolderLock(tmp_path).acquire()
    assert lock.is_owned
    lock.release()


# -- forked processes ------------------------------------------------------------------------------------------------


FORK = """
import os, sys
from pathlib import Path
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.lock import FolderLock

folder = Path(sys.argv[1])
lock = FolderLock(folder).acquire()
ready, tell_ready = os.pipe()
child = os.fork()
if not child:
    print("child", lock.is_owned, FolderLock.is_locked(folder))
    try:
        FolderLock(folder).acquire()
    except StorageError as error:
        print(f"process {os.getppid()};" in str(error))
    lock.release()
    sys.exit()
os.waitpid(child, 0)
print("parent", lock.is_owned, FolderLock.is_locked(folder))
sys.stdout.flush()
os.system(f"{sys.executable} -c '{sys.argv[2]}' {folder}")
lock.release()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process is forked there")
def test_forked_process_neither_owns_nor_releases_the_lock(tmp_path: Path) -> None:
    printed = run(FORK, tmp_path, TRY).splitlines()
    assert printed[:4] == ["child False True", "True", "parent True True", "True"]
    assert "is written to by the process" in printed[4]
    FolderLock(tmp_path).acquire().release()


FORK_AND_DIE = """
import os, sys
from pathlib import Path
from sb3_compressed.storage.lock import FolderLock

lock = FolderLock(Path(sys.argv[1])).acquire()
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    print("locked", flush=True)
    sys.stdin.read()  # until the test is over
    print(lock.is_owned, FolderLock.is_locked(Path(sys.argv[1])), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process is forked there")
def test_surviving_forked_process_does_not_keep_the_lock(tmp_path: Path, try_in_other_process: TryLock) -> None:
    with lock_in_other_process(tmp_path, FORK_AND_DIE) as process:
        process.kill()
        process.wait()
        lock = FolderLock(tmp_path).acquire()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.stdout.readline() == "False True\n"
        assert lock.is_owned
        [is_held, _] = try_in_other_process(tmp_path)
        assert is_held == "True"
        lock.release()


# -- a lock file that is deleted -------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="no locked file is deleted there")
def test_check_raises_while_another_process_has_the_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path).acquire()
    (tmp_path / "lock").unlink()
    with lock_in_other_process(tmp_path):
        with pytest.raises(StorageError, match="deleted or replaced"):
            lock.ensure_held()
        assert not lock.is_owned
        assert FolderLock.is_locked(tmp_path), "the lock of the other process is unchanged"


@pytest.mark.skipif(sys.platform == "win32", reason="no locked file is deleted there")
def test_check_raises_if_the_lock_is_missing(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path).acquire()
    (tmp_path / "lock").unlink()
    with pytest.raises(StorageError, match="deleted or replaced"):
        lock.ensure_held()
    assert not lock.is_owned


@pytest.mark.skipif(sys.platform == "win32", reason="no locked file is deleted there")
def test_a_lock_that_is_replaced_while_it_is_acquired_is_acquired_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_in_other_process: TryLock
) -> None:
    n_opened = 0

    def replaced_once(path: Path, mode: Any) -> FileIO:
        nonlocal n_opened
        n_opened += 1
        file = open_regular_file(path, mode)
        if n_opened == 1:
            path.unlink()
        return file

    monkeypatch.setattr("sb3_compressed.storage.lock.open_regular_file", replaced_once)
    lock = FolderLock(tmp_path).acquire()
    assert n_opened == 2
    lock.ensure_held()
    assert try_in_other_process(tmp_path)[0] == "True"
    lock.release()


# -- the process id in the file --------------------------------------------------------------------------------------


def test_the_id_of_an_earlier_writer_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1" * 20)
    lock = FolderLock(tmp_path).acquire()
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    lock.release()


def test_other_hard_links_of_a_lock_are_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("content")
    (tmp_path / "lock").hardlink_to(tmp_path / "mine")
    lock = FolderLock(tmp_path).acquire()
    with pytest.raises(FolderInUse, match="the process unknown;"):
        FolderLock(tmp_path).acquire()
    lock.release()
    assert (tmp_path / "mine").read_text() == "content"


def test_a_folder_on_a_full_disk_is_locked(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits the size of files")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        lock = FolderLock(tmp_path).acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert FolderLock.is_locked(tmp_path)
    with pytest.raises(FolderInUse, match="the process unknown;"):
        FolderLock(tmp_path).acquire()
    lock.release()


# -- file systems without locks --------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="locks of Windows are others")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOLCK, "has no file locks"),
        (errno.ENOTSUP, "has no file locks"),
        (errno.ENOSYS, "has no file locks"),
        (errno.EINVAL, "has no file locks"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_errors_of_locking_are_reported(
    code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems without locks are not available in tests, so the system call is replaced."""

    def flock(file: object, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(OSError if code == errno.EIO else StorageError, match=message):
        FolderLock(tmp_path).acquire()
    assert code == errno.EIO or not FolderLock.is_locked(tmp_path), "without locks, reading is allowed"

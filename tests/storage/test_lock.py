"""One process at a time may write to a folder: not two, no forked one, not one twice; a dead one blocks nobody."""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import Process, run, start

from sb3_compressed.errors import StorageError
from sb3_compressed.storage.lock import FolderLock

HOLD = """
import sys
from pathlib import Path
from sb3_compressed.storage.lock import FolderLock

lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""

TRY = """
import sys
from pathlib import Path
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.lock import FolderLock

folder = Path(sys.argv[1])
print(FolderLock.is_held(folder))
try:
    FolderLock(folder)
    print("held")
except StorageError as error:
    print(error)
"""


@contextmanager
def holder(folder: Path, code: str = HOLD) -> Iterator[Process]:
    """Start a process that holds the lock until its standard input is closed."""
    with start(code, folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def try_elsewhere(folder: Path) -> list[str]:
    """Return whether a process finds the folder written to, and what it is told when it wants to."""
    return run(TRY, folder).splitlines()


def test_another_process_is_refused_and_told_whose_it_is(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert lock.is_ours
    [is_held, message] = try_elsewhere(tmp_path)
    assert is_held == "True"
    assert message.startswith(f"{tmp_path} is written to by the process {os.getpid()};")
    lock.release()
    assert not lock.is_ours
    assert try_elsewhere(tmp_path) == ["False", "held"]


def test_this_process_is_refused_where_another_one_writes(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        for _ in range(3):  # having tried changes nothing
            assert FolderLock.is_held(tmp_path)
            with pytest.raises(StorageError, match=f"is written to by the process {process.pid};"):
                FolderLock(tmp_path)
        process.communicate()
    assert not FolderLock.is_held(tmp_path)
    FolderLock(tmp_path).release()


def test_a_killed_process_blocks_nobody(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
        assert not FolderLock.is_held(tmp_path)
        lock = FolderLock(tmp_path)
        assert lock.is_ours
        lock.release()


@pytest.mark.parametrize("name", ["folder", "folder/../folder", "link", "."])
def test_one_process_cannot_have_it_twice(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    same = Path(".") if name == "." else tmp_path / name
    lock = FolderLock(folder)
    assert FolderLock.is_held(same)
    with pytest.raises(StorageError, match=rf"^{re.escape(str(same))} is written to by another buffer of this process"):
        FolderLock(same)
    assert lock.is_ours
    assert name != "link" or try_elsewhere(same)[0] == "True", "having tried did not let go of it"
    lock.release()
    again = FolderLock(same)
    assert not lock.is_ours
    again.release()


def test_one_process_can_have_several_folders(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    locks = [FolderLock(folder) for folder in folders]
    locks[1].release()
    assert [FolderLock.is_held(folder) for folder in folders] == [True, False, True]
    assert [lock.is_ours for lock in locks] == [True, False, True]
    for lock in locks:
        lock.release()


def test_releasing_twice_is_releasing_once(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.release()
    again = FolderLock(tmp_path)
    lock.release()
    assert again.is_ours
    assert FolderLock.is_held(tmp_path)
    again.release()


def test_it_is_free_when_nobody_refers_to_it(tmp_path: Path) -> None:
    lock: FolderLock | None = FolderLock(tmp_path)
    assert lock is not None
    del lock
    gc.collect()
    FolderLock(tmp_path).release()


def test_what_is_left_of_others_does_no_harm(tmp_path: Path) -> None:
    for content in (b"", b"999999", b"\xff" * 100):
        (tmp_path / "lock").write_bytes(content)
        assert not FolderLock.is_held(tmp_path)
        lock = FolderLock(tmp_path)
        assert FolderLock.is_held(tmp_path)
        lock.release()
        assert int((tmp_path / "lock").read_text()) == os.getpid()


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert not FolderLock.is_held(tmp_path)
    assert not FolderLock.is_held(tmp_path / "missing")
    assert not [*tmp_path.iterdir()]


LOOK = """
import sys, threading
from pathlib import Path
from sb3_compressed.storage.lock import FolderLock

threading.Thread(target=sys.stdin.read, daemon=True).start()
print("held", flush=True)
while threading.active_count() > 1:
    FolderLock.is_held(Path(sys.argv[1]))
"""


def test_looking_holds_nobody_back(tmp_path: Path) -> None:
    with holder(tmp_path, LOOK) as process:
        for _ in range(1000):
            FolderLock(tmp_path).release()
        process.communicate()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from sb3_compressed.storage.lock import FolderLock

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    lock = FolderLock(folder)
    print(FolderLock.is_held(folder))
    lock.release()
except OSError:
    print(not FolderLock.is_held(folder))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(FolderLock(folder).is_ours)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_a_full_disk_holds_nothing_back(tmp_path: Path) -> None:
    assert run(FULL_DISK, tmp_path).split() == ["True", "True"]


FORK = """
import os, sys
from pathlib import Path
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.lock import FolderLock

folder = Path(sys.argv[1])
lock = FolderLock(folder)
ready, tell_ready = os.pipe()
child = os.fork()
if not child:
    print("child", lock.is_ours, FolderLock.is_held(folder))
    try:
        FolderLock(folder)
    except StorageError as error:
        print(f"process {os.getppid()};" in str(error))
    lock.release()
    sys.exit()
os.waitpid(child, 0)
print("parent", lock.is_ours, FolderLock.is_held(folder))
sys.stdout.flush()
os.system(f"{sys.executable} -c '{sys.argv[2]}' {folder}")
lock.release()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process is forked there")
def test_a_forked_process_has_it_not_and_does_not_let_go_of_it(tmp_path: Path) -> None:
    printed = run(FORK, tmp_path, TRY).splitlines()
    assert printed[:4] == ["child False True", "True", "parent True True", "True"]
    assert "is written to by the process" in printed[4]
    FolderLock(tmp_path).release()


FORK_AND_DIE = """
import os, sys
from pathlib import Path
from sb3_compressed.storage.lock import FolderLock

lock = FolderLock(Path(sys.argv[1]))
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    print("held", flush=True)
    sys.stdin.read()  # until the test is over
    print(lock.is_ours, FolderLock.is_held(Path(sys.argv[1])), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process is forked there")
def test_a_forked_process_that_lives_on_holds_nobody_back(tmp_path: Path) -> None:
    with holder(tmp_path, FORK_AND_DIE) as process:
        process.kill()
        process.wait()
        lock = FolderLock(tmp_path)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.stdout.readline() == "False True\n"
        assert lock.is_ours
        [is_held, _] = try_elsewhere(tmp_path)
        assert is_held == "True"
        lock.release()


# -- what is in the place of the lock file ---------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="links need privileges there")
def test_a_linked_lock_file_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("content")
    (tmp_path / "lock").symlink_to("target")
    for attempt in (FolderLock, FolderLock.is_held):
        with pytest.raises(StorageError, match=f"^{re.escape(str(tmp_path / 'lock'))} is a symbolic link"):
            attempt(tmp_path)
    assert (tmp_path / "target").read_text() == "content"


@pytest.mark.skipif(sys.platform == "win32", reason="links need privileges there")
def test_no_file_is_created_through_a_dangling_lock_file(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("target")
    with pytest.raises(StorageError, match="is a symbolic link"):
        FolderLock(tmp_path)
    assert not (tmp_path / "target").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no FIFOs")
def test_a_fifo_in_the_place_of_the_lock_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    for attempt in (FolderLock, FolderLock.is_held):
        with pytest.raises(StorageError, match="is a FIFO"):
            attempt(tmp_path)


def test_a_lock_file_with_another_name_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    os.link(tmp_path / "precious", tmp_path / "lock")
    lock = FolderLock(tmp_path)
    assert FolderLock.is_held(tmp_path)
    assert (tmp_path / "precious").read_text() == "content"
    lock.release()


# -- a lock file that is deleted -------------------------------------------------------------------------------------


def test_a_deleted_lock_file_is_noticed_and_made_again(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.check()
    assert lock.is_still_held
    (tmp_path / "lock").unlink()
    assert not lock.is_still_held
    assert lock.is_ours
    lock.check()
    assert lock.is_still_held
    assert try_elsewhere(tmp_path)[0] == "True"
    assert int((tmp_path / "lock").read_text()) == os.getpid()
    lock.release()
    assert try_elsewhere(tmp_path) == ["False", "held"]


def test_a_holder_notices_that_another_process_took_the_folder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    (tmp_path / "lock").unlink()
    with holder(tmp_path):
        assert not lock.is_still_held
        with pytest.raises(StorageError, match="was deleted or replaced while this process was writing"):
            lock.check()
        assert not lock.is_ours
        assert FolderLock.is_held(tmp_path), "the other one's is untouched"


def test_a_holder_notices_another_one_that_is_gone_already(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    (tmp_path / "lock").unlink()
    FolderLock(tmp_path).release()
    with pytest.raises(StorageError, match="was deleted or replaced"):
        lock.check()


def test_a_released_lock_does_not_pass_the_check(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.release()
    with pytest.raises(StorageError, match="is not locked by this process"):
        lock.check()
    assert not lock.is_still_held


DELETE = """
import sys, threading
from pathlib import Path

threading.Thread(target=sys.stdin.read, daemon=True).start()
print("held", flush=True)
while threading.active_count() > 1:
    (Path(sys.argv[1]) / "lock").unlink(missing_ok=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be deleted there")
def test_a_lock_file_that_is_deleted_meanwhile_is_no_lock(tmp_path: Path) -> None:
    with holder(tmp_path, DELETE) as process:
        n_held = 0
        while n_held < 200:
            try:
                lock = FolderLock(tmp_path)
            except StorageError as error:  # it may be deleted each time
                assert "again and again" in str(error)  # noqa: PT017
                continue
            n_held += 1
            lock.release()
        process.communicate()


# -- file systems without locks --------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="locks of Windows are others")
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_named(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be had here, so the system call is replaced."""

    def flock(file: object, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(
        StorageError, match=rf"the file system of {re.escape(str(tmp_path))} has no file locks .* local"
    ):
        FolderLock(tmp_path)
    assert not FolderLock.is_held(tmp_path), "what nobody can write to can be read"


@pytest.mark.skipif(sys.platform == "win32", reason="locks of Windows are others")
def test_other_errors_are_not_taken_for_another_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(OSError, match="Input/output error"):
        FolderLock(tmp_path)

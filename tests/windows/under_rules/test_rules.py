"""Each rule of Windows refuses what Windows refuses, and nothing else."""

# ruff: noqa: SIM115  # files that are not closed are what is tested
from __future__ import annotations

import contextlib
import errno
import importlib
import io
import mmap
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from windows_rules.open_files import msvcrt

PROGRAM = "import sys, time; {}; print('ready', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def program(code: str) -> Iterator[subprocess.Popen[str]]:
    """Run a line in another process, which then waits."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


@contextlib.contextmanager
def fails(rule: str, kind: type[OSError] = PermissionError, number: int = errno.EACCES) -> Iterator[None]:
    with pytest.raises(kind, match=rf"\[rule of Windows: {rule}\]") as caught:
        yield
    assert caught.value.errno == number


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(bytes(3 * mmap.PAGESIZE))
    return made


# -- platform, missing, spawn --------------------------------------------------------------------------------


def test_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    program: dict[str, Any] = {"__name__": "program", "__file__": "/somewhere/program.py"}
    library: dict[str, Any] = {"__name__": "tempfile", "__file__": tempfile.__file__}
    code = "import os, sys, os.path; from os import name; from sys import platform; from os.path import join"
    for namespace, platform, name in ((program, "win32", "nt"), (library, "linux", "posix")):
        exec(code, namespace)
        assert (
            (namespace["sys"].platform, namespace["os"].name)
            == (namespace["platform"], namespace["name"])
            == (platform, name)
        )
        assert namespace["os"].path is os.path
        assert namespace["sys"].modules is sys.modules
    for name in ("fork", "O_DIRECTORY"):
        assert not hasattr(program["os"], name), name
    monkeypatch.setattr(program["os"], "getcwd", lambda: "replaced")
    assert os.getcwd() == library["os"].getcwd() == "replaced"
    monkeypatch.undo()
    assert os.getcwd() != "replaced"
    monkeypatch.setattr(program["sys"], "platform", "linux")
    assert program["sys"].platform == "linux"


@pytest.mark.parametrize("name", ["fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"])
def test_modules_are_missing_for_programs(name: str) -> None:
    with pytest.raises(ImportError, match="rule of Windows: platform"):
        exec(f"import {name}", {"__name__": "program", "__file__": "/somewhere/program.py"})


def test_modules_are_there_for_libraries() -> None:
    exec("import fcntl", {"__name__": "tempfile", "__file__": tempfile.__file__})
    exec("import mmap, signal", {"__name__": "program", "__file__": "/somewhere/program.py"})


def test_functions_are_missing() -> None:
    for name in ("fork", "pread", "pwrite", "register_at_fork", "sched_getaffinity", "O_NOFOLLOW", "O_DIRECTORY"):
        assert not hasattr(os, name), name
    for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "setitimer", "pthread_kill"):
        assert not hasattr(signal, name), name
    for module, name in ((os, "O_BINARY"), (os, "fsync"), (os, "link"), (signal, "SIGINT")):
        assert hasattr(module, name), name


def test_signals() -> None:
    with pytest.raises(ValueError, match="rule of Windows: missing"):
        signal.signal(10, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))
    with program("pass") as process, pytest.raises(ValueError, match="rule of Windows: missing"):
        process.send_signal(signal.SIGINT)


def test_processes_can_be_ended() -> None:
    with program("pass") as process:
        process.kill()
        assert process.wait() != 0


def _square(number: int) -> int:
    return number * number


def test_processes_are_spawned(tmp_path: Path) -> None:
    assert multiprocessing.get_all_start_methods() == ["spawn"]
    with pytest.raises(ValueError, match="fork"):
        multiprocessing.get_context("fork")
    script = tmp_path / "spawn.py"
    script.write_text(
        "import multiprocessing, os\n"
        "def has_fork(_): return hasattr(os, 'fork')\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.Pool(1) as pool: print(pool.map(has_fork, [0]))\n",
        encoding="ascii",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "[False]\n"


# -- folders, deleting, renaming, existing ---------------------------------------------------------------------------


def test_folders_cannot_be_opened(tmp_path: Path, path: Path) -> None:
    with fails("folders"):
        os.open(tmp_path, os.O_RDONLY)
    with fails("folders"):
        open(tmp_path)
    os.close(os.open(path, os.O_RDONLY))


def deletions(path: Path) -> list[Callable[[], Any]]:
    other = path.with_name("other")
    other.write_bytes(b"")
    return [
        lambda: os.unlink(path),
        lambda: os.remove(path),
        lambda: path.unlink(),
        lambda: os.rename(path, path.with_name("new")),
        lambda: path.rename(path.with_name("new")),
        lambda: os.replace(path, path.with_name("new")),
        lambda: os.replace(other, path),
        lambda: shutil.rmtree(path.parent),
        lambda: shutil.move(path, path.with_name("new")),
    ]


@pytest.mark.parametrize("number", range(9))
def test_open_files_cannot_be_deleted_or_renamed(path: Path, number: int) -> None:
    with open(path, "rb"), fails("moving" if number in (3, 4, 5) else "deleting"):
        deletions(path)[number]()
    deletions(path)[number]()


def test_mapped_files_cannot_be_deleted(path: Path) -> None:
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapped, np.uint8)
    del mapped
    with fails("deleting"):
        path.unlink()
    part = array[10:20]
    del array
    with fails("deleting"):
        path.unlink()
    del part
    path.unlink()


def test_files_that_another_process_has_open(path: Path) -> None:
    with program(f"file = open({str(path)!r}, 'rb')"), fails("deleting"):
        path.unlink()
    path.unlink()


def test_files_that_another_process_has_mapped(path: Path) -> None:
    code = f"import numpy, os; array = numpy.memmap({str(path)!r}, mode='r')"
    with program(code), fails("deleting"):
        path.unlink()
    path.unlink()


def test_hard_links_of_open_files(tmp_path: Path, path: Path) -> None:
    link = tmp_path / "link"
    os.link(path, link)
    with open(path, "rb"), fails("deleting"):
        link.unlink()
    link.unlink()
    assert path.exists()


def test_missing_files() -> None:
    for call in (os.unlink, os.rmdir, lambda name: os.rename(name, "other")):
        with pytest.raises(FileNotFoundError):
            call("/does/not/exist")


def test_folders_with_open_files_cannot_be_renamed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_bytes(b"1")
    with open(folder / "inner" / "file", "rb") as file:
        with fails("renaming"):
            folder.rename(tmp_path / "new")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with fails("renaming"):
        folder.rename(tmp_path / "new")
    mapped.close()
    folder.rename(tmp_path / "new")


def test_current_folders(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with program(f"import os; os.chdir({str(folder)!r})"):
        with fails("deleting"):
            folder.rmdir()
        with fails("renaming"):
            folder.rename(tmp_path / "new")
    folder.rename(tmp_path / "new")
    (tmp_path / "new").rmdir()


def test_existing_targets(tmp_path: Path, path: Path) -> None:
    other, folder, empty = tmp_path / "other", tmp_path / "folder", tmp_path / "empty"
    other.write_bytes(b"")
    folder.mkdir()
    empty.mkdir()
    with fails("existing", FileExistsError, errno.EEXIST):
        os.rename(path, other)
    with fails("existing", FileExistsError, errno.EEXIST):
        os.rename(folder, empty)
    with fails("existing"):
        os.replace(folder, empty)
    with fails("existing"):
        os.unlink(folder)
    os.replace(path, other)
    os.rename(folder, tmp_path / "new")


# -- names, truncate, fsync -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a:b", "a?", "a*", 'a"', "a|b", "<a>", "CON", "nul", "aux.txt", "LPT1", "a.", "a "])
def test_reserved_names(tmp_path: Path, name: str) -> None:
    for call in (
        lambda path: open(path, "w", encoding="ascii"),
        lambda path: os.open(path, os.O_CREAT | os.O_WRONLY),
        os.mkdir,
        lambda path: os.rename(tmp_path, path),
        Path.touch,
    ):
        with fails("names", OSError, errno.EINVAL):
            call(tmp_path / name)


@pytest.mark.parametrize("name", ["a-b", "$a$", "console", "nul1", ".a", "a.b.c", "a b", "..a", "{a}", "step_01.x"])
def test_usual_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"1")
    assert (tmp_path / name).read_bytes() == b"1"


def truncations(path: Path, size: int) -> list[Callable[[], Any]]:
    def of_file(buffering: int) -> None:
        with open(path, "r+b", buffering=buffering) as file:
            file.truncate(size)

    def of_descriptor() -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)

    return [lambda: of_file(0), lambda: of_file(-1), of_descriptor, lambda: os.truncate(path, size)]


@pytest.mark.parametrize("number", range(4))
def test_mapped_files_cannot_become_shorter(path: Path, number: int) -> None:
    whole = 3 * mmap.PAGESIZE
    with open(path, "rb") as file:
        array = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    with fails("truncate"):
        truncations(path, mmap.PAGESIZE)[number]()
    with fails("truncate", OSError, errno.EINVAL):
        open(path, "wb")
    with fails("truncate", OSError, errno.EINVAL):
        os.open(path, os.O_WRONLY | os.O_TRUNC)
    truncations(path, whole - 1)[number]()  # within the last page
    truncations(path, 2 * whole)[number]()
    assert path.stat().st_size == 2 * whole
    truncations(path, whole)[number]()
    del array
    truncations(path, 1)[number]()
    assert path.stat().st_size == 1
    open(path, "wb").close()


def test_files_that_another_process_has_mapped_cannot_become_shorter(path: Path) -> None:
    with program(f"import numpy; array = numpy.memmap({str(path)!r}, mode='r')"), fails("truncate"):
        os.truncate(path, 1)
    os.truncate(path, 1)


def test_syncs_need_permission_to_write(path: Path) -> None:
    with open(path, "rb") as file, fails("fsync", OSError, errno.EBADF):
        os.fsync(file.fileno())
    descriptor = os.open(path, os.O_RDONLY)
    with fails("fsync", OSError, errno.EBADF):
        os.fsync(descriptor)
    os.close(descriptor)
    for mode in ("r+b", "ab", "wb"):
        with open(path, mode) as file:
            os.fsync(file)


# -- locks ------------------------------------------------------------------------------------------------------------


def lock(file: io.FileIO, mode: int = msvcrt.LK_NBLCK, at: int = 0) -> None:
    file.seek(at)
    msvcrt.locking(file.fileno(), mode, 1)


@pytest.mark.parametrize("mode", ["rb", "r+b", "a+b"])
@pytest.mark.parametrize("other_mode", ["rb", "r+b", "a+b"])
def test_locks_exclude_each_other(path: Path, mode: str, other_mode: str) -> None:
    with io.FileIO(path, mode) as file, io.FileIO(path, other_mode) as other:
        lock(file)
        with pytest.raises(PermissionError):
            lock(other)
        lock(other, at=1)
        with pytest.raises(PermissionError):
            lock(file)  # again by the same handle
        lock(file, msvcrt.LK_UNLCK)
        lock(other)
        with pytest.raises(PermissionError):
            lock(file, msvcrt.LK_UNLCK)
    with io.FileIO(path, mode) as file:  # closed files have no locks
        lock(file)


def test_locks_end_with_their_process(path: Path) -> None:
    code = f"import io, msvcrt; file = io.FileIO({str(path)!r}, 'a+b'); file.seek(0); "
    code += "msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)"
    with io.FileIO(path, "a+b") as file, program(code) as process:
        with pytest.raises(PermissionError):
            lock(file)
        process.kill()
        process.wait()
        lock(file)


def test_waiting_for_a_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with io.FileIO(path, "r+b") as file, io.FileIO(path, "r+b") as other:
        lock(file)
        with pytest.raises(OSError, match="deadlock"):
            lock(other, msvcrt.LK_LOCK)


def test_locked_bytes_cannot_be_read_or_written_through_another_handle(path: Path) -> None:
    with io.FileIO(path, "r+b") as file, io.FileIO(path, "r+b") as other, open(path, "rb") as buffered:
        lock(file, at=5)
        for call in (
            lambda: (other.seek(0), other.read(20)),
            lambda: (other.seek(0), other.readall()),
            lambda: (other.seek(0), other.readinto(bytearray(10))),
            lambda: (other.seek(5), other.write(b"1")),
            lambda: (other.seek(0), os.read(other.fileno(), 10)),
            lambda: buffered.read(),
            lambda: path.read_bytes(),
            lambda: shutil.copyfile(path, path.with_name("copy")),
        ):
            with fails("locks"):
                call()
        other.seek(0)
        assert other.read(5) == bytes(5)
        other.seek(6)
        assert other.write(b"2") == 1
        file.seek(0)
        assert len(file.read(20)) == 20  # its own
        file.seek(5)
        assert file.write(b"1") == 1
    assert path.read_bytes()[5:7] == b"12"


def test_locked_bytes_of_another_process(path: Path) -> None:
    code = f"import io, msvcrt; file = io.FileIO({str(path)!r}, 'a+b'); file.seek(0); "
    code += "msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)"
    with program(code), fails("locks"):
        path.read_bytes()
    path.read_bytes()


# -- text, readonly, symlinks ------------------------------------------------------------------------------------------


def test_texts(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("é\n")
    assert path.read_bytes() == b"\xe9\r\n"
    assert path.read_text() == "é\n"
    with pytest.raises(UnicodeEncodeError):
        path.write_text("→")
    path.write_text("→\n", encoding="utf-8", newline="\n")
    assert path.read_bytes() == "→\n".encode()
    with open(path, "w", encoding="utf-8") as file:
        print("→", file=file)
    assert path.read_bytes() == "→\r\n".encode()


def test_texts_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"1")
    monkeypatch.setitem(globals(), "__name__", "sb3_compressed.module")
    for call in (path.read_text, lambda: open(path), lambda: path.open()):
        with pytest.raises(RuntimeError, match="rule of Windows: text"):
            call()
    assert path.read_text(encoding="utf-8") == "1"


def test_standard_streams() -> None:
    done = subprocess.run([sys.executable, "-c", "print('é')"], capture_output=True, check=True)
    assert done.stdout == b"\xe9\n"
    done = subprocess.run([sys.executable, "-c", "print('→')"], capture_output=True, check=False)
    assert b"UnicodeEncodeError" in done.stderr


def test_files_without_permission_to_write(tmp_path: Path, path: Path) -> None:
    path.chmod(0o400)
    with fails("readonly"):
        path.unlink()
    with fails("readonly"):
        open(path, "ab")
    path.chmod(0o600)
    tmp_path.chmod(0)
    assert tmp_path.stat().st_mode & 0o700 == 0o700
    path.unlink()


def test_symbolic_links(tmp_path: Path, path: Path) -> None:
    with fails("symlinks", OSError, errno.EINVAL):
        (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "link")


def test_drawn_integers() -> None:
    for source in (np.random, np.random.RandomState(0)):
        assert (
            source.randint(0, 5, 3).dtype
            == source.randint(5, size=3).dtype
            == source.randint(0, 5, size=3, dtype=int).dtype
            == np.int32
        )
        assert source.randint(0, 2**62, 3, dtype=np.int64).dtype == np.int64
        assert source.randint(0, 2**62, 3, np.int64).dtype == np.int64
        assert isinstance(source.randint(3), int)
        assert source.permutation(3).dtype == source.choice(3, 2).dtype == np.int32
        assert source.permutation(np.arange(3)).dtype == source.choice(np.arange(3), 2).dtype == np.int64
        assert source.random_sample(3).dtype == np.float64
        with pytest.raises(ValueError, match="rule of Windows: long"):
            source.randint(2**40, size=2)
        assert source.randint(2**31, size=2).dtype == np.int32
    assert np.random.default_rng(0).integers(3, size=2).dtype == np.int64


# -- selection -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selection", "is_on"), [("all", True), ("all,-deleting", False), ("deleting", True), ("locks,fsync", False)]
)
def test_selection(path: Path, selection: str, is_on: bool) -> None:
    code = f"import os; file = open({str(path)!r}, 'rb'); os.unlink({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "WINDOWS_RULES": selection}, capture_output=True, text=True
    )
    assert ("rule of Windows: deleting" in done.stderr) == is_on, done.stderr
    assert path.exists() == is_on


def test_libraries_still_work(tmp_path: Path) -> None:
    for name in ("torch", "numba", "gymnasium", "stable_baselines3"):
        importlib.import_module(name)
    np.save(tmp_path / "array.npy", np.arange(3))
    assert np.load(tmp_path / "array.npy").tolist() == [0, 1, 2]
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"1")

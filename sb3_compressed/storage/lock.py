"""One process at a time may write to a folder, and a dead one blocks nobody."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO

from sb3_compressed.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

__all__ = ["FolderLock"]


class FolderLock:
    """The right to write to a folder, until it is released or the process ends, however it ends.

    The operating system keeps it (``flock``), so there is nothing to clean up after a crash. Workers that Python forks
    let go of it at once.

    :param folder: the folder; a file ``lock`` in it names the process
    :raises StorageError: if another process, or another buffer of this one, writes to the folder
    :raises OSError: if the folder cannot be written to
    """

    release: Callable[[], object]
    """Let others write to the folder; it happens anyway when nobody refers to the lock any more."""

    def __init__(self, folder: Path) -> None:
        self._pid = os.getpid()
        self._file: IO[bytes] = open(folder / "lock", "a+b", buffering=0)  # noqa: SIM115  # see release
        self.release = weakref.finalize(self, self._file.close)
        if not _try_lock(self._file):
            gc.collect()  # of buffers that nobody refers to any more
        if not _try_lock_patiently(self._file):
            self._file.seek(0)
            owner = self._file.read(20).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise StorageError(f"{folder} is written to by {_name(owner)}; every writer has a folder of its own")
        try:
            self._file.truncate(0)
            self._file.write(str(self._pid).encode("ascii"))
        except OSError:
            pass  # a full disk; it is the lock that counts, not the name in it
        _all_locks.add(self)

    @classmethod
    def is_held(cls, folder: Path) -> bool:
        """Tell whether somebody writes to a folder at present."""
        try:
            with open(folder / "lock", "rb") as file:
                return not _try_lock(file, shared=True)
        except FileNotFoundError:
            return False

    @property
    def is_ours(self) -> bool:
        """Whether this process has it, not one that was forked from the one that has."""
        return os.getpid() == self._pid and not self._file.closed


#: Whoever looks whether somebody writes holds the lock for a moment. So it is tried again some times.
TRIES, PAUSE = 25, 0.004  # seconds


def _try_lock_patiently(file: IO[bytes]) -> bool:
    for _ in range(TRIES):
        if _try_lock(file):
            return True
        time.sleep(PAUSE)
    return False


def _try_lock(file: IO[bytes], *, shared: bool = False) -> bool:
    try:
        if fcntl:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        else:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    return True


def _name(owner: str) -> str:
    if owner == str(os.getpid()):
        return "another buffer of this process; close that one first"
    return f"the process {owner}; others can read it meanwhile"


#: Locks of this process. A child that is forked has descriptors of the same locks, and must not keep them from others.
_all_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for lock in _all_locks:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)

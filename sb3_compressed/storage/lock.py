"""One process at a time may write to a folder, and a dead one blocks nobody."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import time
import weakref
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from sb3_compressed.errors import StorageError
from sb3_compressed.storage.files import open_regular_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

__all__ = ["FolderInUse", "FolderLock", "NoLocksError"]


class FolderLock:
    """The right to write to a folder, until it is released or the process ends, however it ends.

    The operating system keeps it (``flock``), so there is nothing to clean up after a crash. Workers that Python forks
    let go of it at once.

    :param folder: the folder; a file ``lock`` in it names the process
    :raises FolderInUse: if another process, or another buffer of this one, writes to the folder
    :raises StorageError: if the file system has no locks, or if ``lock`` is a link, a FIFO or anything else but a
        regular file
    :raises OSError: if the folder cannot be written to
    """

    release: Callable[[], object]
    """Let others write to the folder; it happens anyway when nobody refers to the lock any more."""

    def __init__(self, folder: Path) -> None:
        self._pid = os.getpid()
        self._path = folder.absolute() / NAME  # wherever the process goes
        # One file; in a list, since release must close the one of the day and not refer to this object.
        self._files: list[FileIO] = []
        self.release = weakref.finalize(self, _close_all, self._files)
        try:
            self._acquire(folder)
        except BaseException:
            self.release()
            raise
        _all_locks.add(self)

    def _acquire(self, folder: Path) -> None:
        for is_last in (False,) * TRIES + (True,):
            file = open_regular_file(self._path, "a+b")
            self._files[:] = [file]
            if not _try_lock(file, folder):
                gc.collect()  # of buffers that nobody refers to any more
                if not _try_lock_patiently(file, folder):
                    file.seek(0)
                    owner = file.read(20).decode("ascii", "replace").strip() or "unknown"
                    raise FolderInUse(folder, owner)
            if _is_at_path(file, self._path):
                break
            # Deleted or replaced since it was opened: whoever comes next locks another file.
            file.close()
            if is_last:
                raise StorageError(f"{self._path} is deleted or replaced again and again; stop what does that")
        if os.fstat(file.fileno()).st_nlink > 1:
            return  # a file that has other names is not ours to write to
        try:
            file.truncate(0)
            file.write(str(self._pid).encode("ascii"))
        except OSError:
            pass  # a full disk; it is the lock that counts, not the name in it

    def check(self) -> None:
        """Raise if another process may write to the folder, since somebody deleted or replaced the file ``lock``.

        A file that was only deleted is made and locked again. This takes a few microseconds: call it where it is worth
        that, as when a segment begins.

        :raises StorageError: if the lock is lost, with what to do; it is released then
        """
        if not self.is_ours:
            raise StorageError(f"{self._path.parent} is not locked by this process")
        if _is_at_path(self._files[0], self._path):
            return
        try:
            self._make_again()
        except BaseException:
            self.release()
            raise

    def _make_again(self) -> None:
        """Lock a new file in the place of one that was deleted, unless somebody else did."""
        lost = (
            f"{self._path} was deleted or replaced while this process was writing, so that another process may write, "
            "too; nothing is written any more. Open the folder again with resume=True, and never delete that file"
        )
        try:
            file = FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "r+b")
        except OSError as error:
            raise StorageError(lost) from error
        if not _try_lock_patiently(file, self._path.parent) or not _is_at_path(file, self._path):
            file.close()
            raise StorageError(lost)
        with contextlib.suppress(OSError):  # a full disk
            file.write(str(self._pid).encode("ascii"))
        old, self._files[0] = self._files[0], file
        old.close()

    @property
    def is_still_held(self) -> bool:
        """Whether this process has it, and the file ``lock`` is the one that it locked."""
        return self.is_ours and _is_at_path(self._files[0], self._path)

    @classmethod
    def is_held(cls, folder: Path) -> bool:
        """Return whether somebody writes to a folder at present; nobody can where the file system has no locks.

        :raises CorruptStorage: if ``lock`` is a link, a FIFO or anything else but a regular file
        """
        try:
            with open_regular_file(folder / NAME) as file:
                return not _try_lock(file, folder, shared=True)
        except FileNotFoundError:
            return False
        except NoLocksError:
            return False

    @property
    def is_ours(self) -> bool:
        """Whether this process has it, not one that was forked from the one that has."""
        return os.getpid() == self._pid and not self._files[0].closed


class FolderInUse(StorageError):
    """Somebody else writes to a folder.

    :param folder: the folder
    :param owner: the id of the process that writes to it, ``"unknown"`` if the file ``lock`` does not name it
    """

    def __init__(self, folder: Path, owner: str) -> None:
        super().__init__(f"{folder} is written to by {_name(owner)}; every writer has a folder of its own")
        self.owner = owner


class NoLocksError(StorageError):
    """The file system of a folder has no locks."""


NAME = "lock"
#: Whoever looks whether somebody writes holds the lock for a moment. So it is tried again some times.
TRIES, PAUSE = 25, 0.004  # seconds
#: What file systems without locks raise, as NFS without its lock daemon or Lustre mounted without ``flock``.
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
#: What is raised where somebody else has the lock.
BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}


def _close_all(files: list[FileIO]) -> None:
    for file in files:
        file.close()


def _is_at_path(file: FileIO, path: Path) -> bool:
    """Return whether the file at a path is the one that is open."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def _try_lock_patiently(file: FileIO, folder: Path) -> bool:
    for _ in range(TRIES):
        if _try_lock(file, folder):
            return True
        time.sleep(PAUSE)
    return False


def _try_lock(file: FileIO, folder: Path, *, shared: bool = False) -> bool:
    """Lock a file unless somebody else has.

    :raises NoLocksError: if the file system has no locks
    :raises OSError: if it cannot be locked for another reason
    """
    try:
        if fcntl:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        else:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno in BUSY:
            return False
        if error.errno in WITHOUT_LOCKS:
            raise NoLocksError(
                f"the file system of {folder} has no file locks ({error.strerror}), so that nothing could keep a "
                "second process from writing to the same folder; use a folder on a local disk, or mount the file "
                "system with locks (NFS: start its lock service; Lustre: the mount option flock)"
            ) from error
        raise
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

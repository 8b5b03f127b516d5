"""Exclusive write access to a folder, released by the operating system when its process ends."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import time
import weakref
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from sb3_compressed.errors import StorageError
from sb3_compressed.storage.files import is_at_path, open_regular_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LOCK_NAME", "FolderInUse", "FolderLock", "NoLocksError"]

#: The file that is locked.
LOCK_NAME = "lock"
#: :meth:`FolderLock.is_locked` takes a shared lock for a moment, so a failed attempt is repeated.
TRIES, PAUSE = 25, 0.004  # seconds
#: The byte that is locked on Windows, where nobody else can read it: behind the process id.
LOCKED_BYTE = 1 << 30
#: Errors of file systems without locks, such as NFS without its lock daemon or Lustre mounted without ``flock``.
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
#: Errors if another file descriptor has the lock; Windows and some network file systems report the second.
BUSY = {errno.EWOULDBLOCK, errno.EACCES}


class FolderLock:
    """Exclusive write access to a folder, from :meth:`acquire` until it is released or the process ends.

    The operating system manages the lock (``flock``), so a crash leaves nothing to clean up. Forked child processes
    release their inherited descriptor at once. The constructor acquires nothing: the owner stores the object first, and
    so can release the lock wherever Ctrl-C interrupts :meth:`acquire` or later code.

    :param folder: the folder; its file ``lock`` contains the id of the owning process
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder  # as the user wrote it, for messages
        self._path = folder.absolute() / LOCK_NAME  # the working directory may change
        # The locked file, in a list since the finalizer must not refer to this object.
        self._files: list[FileIO] = []
        weakref.finalize(self, _close_all, self._files)
        _all_locks.add(self)

    def acquire(self) -> Self:
        """Acquire the lock, if it is not owned, and return this object.

        :raises FolderInUse: if another process, or another buffer of this one, writes to the folder
        :raises StorageError: if the file system has no locks, or if ``lock`` is not a regular file
        :raises OSError: if the folder cannot be written to
        """
        try:
            if not self.is_owned:
                self._acquire()
        except BaseException:
            self.release()
            raise
        return self

    def release(self) -> None:
        """Release the lock, if it is owned; also done when the object is garbage collected."""
        _close_all(self._files)

    def _acquire(self) -> None:
        while True:
            file = open_regular_file(self._path, "a+b")
            self._files[:] = [file]
            for attempt in range(TRIES):
                if _try_lock(file, self._folder):
                    break
                if not attempt:
                    gc.collect()  # may release the lock of an unreferenced buffer
                time.sleep(PAUSE)
            else:
                file.seek(0)
                owner = file.read(20).decode("ascii", "replace")
                raise FolderInUse(self._folder, owner if owner.isdecimal() else "unknown")
            if is_at_path(file, self._path):
                break
            file.close()  # it was deleted or replaced after it was opened: the next process would lock another file
        if os.fstat(file.fileno()).st_nlink == 1:  # other hard links would see the process id, too
            with contextlib.suppress(OSError):  # a full disk: the process id is only informative
                file.truncate(0)
                file.write(str(os.getpid()).encode("ascii"))

    def ensure_held(self) -> None:
        """Raise if the file of this lock was deleted or replaced, so that another process may write.

        This takes a few microseconds, so call it occasionally, not for each write.

        :raises StorageError: if the lock is lost; it is released then
        """
        if not is_at_path(self._files[0], self._path):
            self.release()
            raise StorageError(
                f"{self._path} was deleted or replaced while this process was writing, so another process may write, "
                "too; nothing more is written. Open the folder again with storage_mode='resume', and never delete that "
                "file"
            )

    @property
    def is_owned(self) -> bool:
        """Whether this process has the lock; false in processes forked from the owner."""
        return bool(self._files) and not self._files[0].closed  # forked processes close it

    @classmethod
    def is_locked(cls, folder: Path) -> bool:
        """Return whether any process writes to a folder; always false where the file system has no locks.

        :raises CorruptStorage: if ``lock`` is not a regular file
        """
        try:
            with open_regular_file(folder / LOCK_NAME) as file:
                return not _try_lock(file, folder, shared=True)
        except (FileNotFoundError, NoLocksError):
            return False


class FolderInUse(StorageError):
    """Another process or buffer writes to a folder.

    :param folder: the folder
    :param owner: the id of the process that writes to it, ``"unknown"`` if the file ``lock`` does not contain it
    """

    def __init__(self, folder: Path, owner: str) -> None:
        if owner == str(os.getpid()):
            writer = "another buffer of this process; close that one first"
        else:
            writer = f"the process {owner}; others can read it meanwhile"
        super().__init__(f"{folder} is written to by {writer}; each writer needs its own folder")
        self.owner = owner


class NoLocksError(StorageError):
    """The file system of a folder has no locks."""


def _close_all(files: list[FileIO]) -> None:
    for file in files:
        file.close()


def _try_lock(file: FileIO, folder: Path, *, shared: bool = False) -> bool:
    """Lock a file and return true, or return false if it is locked already.

    :raises NoLocksError: if the file system has no locks
    :raises OSError: if it cannot be locked for another reason
    """
    try:
        if fcntl:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        else:  # Windows
            file.seek(LOCKED_BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno in BUSY:
            return False
        if error.errno in WITHOUT_LOCKS:
            raise NoLocksError(
                f"the file system of {folder} has no file locks ({error.strerror}), so two processes could write to "
                "the folder at once; use a folder on a local disk, or mount the file system with locks (NFS: start its "
                "lock service; Lustre: the mount option flock). See NoLocksError in the FAQ of the documentation"
            ) from error
        raise
    return True


#: Locks of this process. A forked child inherits their descriptors and must not keep the locks alive.
_all_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in _all_locks:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)

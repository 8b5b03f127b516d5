"""One process at a time may write to a folder, and a dead one blocks nobody."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, ClassVar

from sb3_compressed.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

__all__ = ["FolderLock"]


class FolderLock:
    """The right to write to a folder, until it is released or the process ends, however it ends.

    The operating system keeps it (POSIX record locks), so there is nothing to clean up after a crash. It belongs to the
    process alone: workers that it forks neither have it nor hold it back.

    :param folder: the folder; a file ``lock`` in it names the process
    :raises StorageError: if another process, or another buffer of this one, writes to the folder
    """

    release: Callable[[], object]
    """Let others write to the folder; it happens anyway when nobody refers to the lock any more."""

    #: Record locks do not tell parts of one process apart.
    _held: ClassVar[dict[Path, int]] = {}

    def __init__(self, folder: Path) -> None:
        self._key = folder.resolve()
        self._pid = os.getpid()
        if self._held.get(self._key) == self._pid:
            raise StorageError(f"{folder} is written to by another buffer of this process; close that one first")
        self._file: IO[str] = open(folder / "lock", "a+", encoding="ascii")  # noqa: SIM115  # see release()
        try:
            if fcntl:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                self._file.seek(0)
                msvcrt.locking(self._file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            self._file.seek(0)
            owner = self._file.read(20).strip() or "unknown"
            self._file.close()
            raise StorageError(
                f"{folder} is written to by the process {owner}; readers can open it meanwhile, and every writer "
                "has a folder of its own"
            ) from None
        self._held[self._key] = self._pid
        self.release = weakref.finalize(self, _release, self._file, self._held, self._key, self._pid)
        self._file.truncate(0)
        self._file.write(str(self._pid))
        self._file.flush()

    @classmethod
    def is_held(cls, folder: Path) -> bool:
        """Tell whether a process writes to a folder at present."""
        if cls._held.get(folder.resolve()) == os.getpid():
            return True  # opening the file and closing it again would let go of the lock
        if not fcntl:
            return True  # which cannot be known, and is the safe answer
        try:
            with open(folder / "lock", encoding="ascii") as file:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    @property
    def is_ours(self) -> bool:
        """Whether this process has it, not one that was forked from the one that has."""
        return os.getpid() == self._pid and not self._file.closed


def _release(file: IO[str], held: dict[Path, int], key: Path, pid: int) -> None:
    """Let others write to the folder."""
    if os.getpid() == pid:  # not in a process that was forked
        del held[key]
    file.close()

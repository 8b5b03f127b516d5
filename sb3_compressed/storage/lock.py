"""One process at a time may write to a folder, and a dead one blocks nobody."""

from __future__ import annotations

import os
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
        self._file.truncate(0)
        self._file.write(str(self._pid))
        self._file.flush()

    @property
    def is_ours(self) -> bool:
        """Whether this process has it, not one that was forked from the one that has."""
        return os.getpid() == self._pid and not self._file.closed

    def release(self) -> None:
        """Let others write."""
        if self.is_ours:
            del self._held[self._key]
        self._file.close()

"""Open, create and sync the files of a folder that may be untrusted.

Inside the folder, symbolic links are not followed and only regular files are opened: a FIFO would block, and so might a
device. The path of the folder itself may contain symbolic links, as is common on clusters.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import threading
from io import BufferedWriter, FileIO
from os import PathLike
from pathlib import Path
from typing import Literal

from sb3_compressed.errors import CorruptStorage

__all__ = [
    "UNFINISHED",
    "create_regular_file",
    "flush_path",
    "is_at_path",
    "link_or_copy",
    "make_folder_durably",
    "nbytes_on_disk",
    "open_regular_file",
    "read_at",
    "write_at",
]

#: Suffix of files and folders that are renamed when they are complete.
UNFINISHED = "unfinished"

#: Flags that some operating systems lack.
BINARY: int = getattr(os, "O_BINARY", 0)
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
#: Opening a FIFO returns at once; regular files are not affected.
NO_BLOCK: int = getattr(os, "O_NONBLOCK", 0)
IS_WINDOWS = sys.platform == "win32"
FLAGS = {"rb": os.O_RDONLY, "r+b": os.O_RDWR, "a+b": os.O_RDWR | os.O_APPEND | os.O_CREAT}


def open_regular_file(path: Path, mode: Literal["rb", "r+b", "a+b"] = "rb") -> FileIO:
    """Open a regular file, unbuffered, without following symbolic links.

    :param mode: as for :func:`open`; ``"a+b"`` creates the file if it is missing
    :raises CorruptStorage: if the path is a symbolic link, folder, FIFO, socket or device
    :raises OSError: if it cannot be opened for another reason, such as ``FileNotFoundError``
    """
    return _open(path, FLAGS[mode], mode)


def create_regular_file(path: Path) -> FileIO:
    """Create a file and open it, unbuffered, for reading and writing.

    An existing file or link of that name is removed first, not written to.

    :raises OSError: if it cannot be created
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "r+b")


def link_or_copy(source: str | PathLike[str], target: str | PathLike[str]) -> None:
    """Create a hard link to a regular file; on another disk, or a file system without links, a copy, durably.

    :raises CorruptStorage: if it is not a regular file
    :raises OSError: if it cannot be read or written
    """
    with open_regular_file(Path(source)) as original:
        try:
            os.link(source, target)
        except OSError:
            with create_regular_file(Path(target)) as file, BufferedWriter(file) as copy:
                shutil.copyfileobj(original, copy)
                copy.flush()
                os.fsync(file.fileno())


def _open(path: Path, flags: int, mode: str) -> FileIO:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise CorruptStorage(
                f"{path} is not a regular file, and no link, folder, FIFO, socket or device is opened inside the "
                "folder of a buffer; replace it with the file itself, or delete it"
            )
    flags |= NO_FOLLOW | NO_BLOCK | BINARY  # should it be replaced meanwhile
    # The file owns its descriptor from the beginning, so that no interrupt lets two owners close it: the second would
    # close a file that another thread opened meanwhile.
    return FileIO(path, mode, opener=lambda name, _: os.open(name, flags, 0o666))


def is_at_path(file: FileIO, path: Path) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


if hasattr(os, "pread"):

    def read_at(file: FileIO, nbytes: int, offset: int) -> bytes:
        """Read up to ``nbytes`` bytes from an offset on; safe with other threads reading the same file."""
        return os.pread(file.fileno(), nbytes, offset)

    def write_at(file: FileIO, data: memoryview, offset: int) -> None:
        """Write all bytes from an offset on; a nearly full disk may accept only some per call."""
        written = 0
        while written < len(data):
            written += os.pwrite(file.fileno(), data[written:], offset + written)

else:  # Windows
    _seek_lock = threading.RLock()  # a signal handler may read while it interrupts this thread

    def read_at(file: FileIO, nbytes: int, offset: int) -> bytes:
        """Read up to ``nbytes`` bytes from an offset on; safe with other threads reading the same file."""
        with _seek_lock:
            before = file.tell()
            try:
                file.seek(offset)
                return file.read(nbytes)
            finally:
                file.seek(before)  # for a write that this interrupts

    def write_at(file: FileIO, data: memoryview, offset: int) -> None:
        """Write all bytes from an offset on; a nearly full disk may accept only some per call."""
        with _seek_lock:
            file.seek(offset)
            while len(data):
                data = data[file.write(data) :]


def make_folder_durably(folder: Path) -> None:
    """Create a folder and its missing parents, and sync each.

    :raises OSError: if it cannot be created, such as ``FileExistsError`` if the path is a file
    """
    missing = []
    level = folder.absolute()
    while not level.is_dir() and level != level.parent:  # on Windows the drive may not exist
        missing.append(level)
        level = level.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # no permission to read the parent
            flush_path(each.parent)


def flush_path(path: Path) -> None:
    """Sync a file, or the names in a folder where the operating system supports that, to the disk.

    :raises CorruptStorage: if the path is a symbolic link, FIFO, socket or device
    :raises OSError: if it cannot be opened or synced
    """
    if not path.is_dir():
        with open_regular_file(path, "r+b" if IS_WINDOWS else "rb") as file:  # Windows syncs what may be written to
            os.fsync(file.fileno())
    elif not IS_WINDOWS:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def nbytes_on_disk(path: Path) -> int:
    """Return the bytes that the regular files in a folder occupy on the disk; holes do not count."""
    total = 0
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # deleted by the writing process
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    total += min(status.st_size, getattr(status, "st_blocks", status.st_size) * 512)
    return total

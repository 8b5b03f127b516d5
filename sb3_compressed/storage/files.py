"""Opening, creating and making durable the files of a folder that may come from a stranger.

Inside the folder no symbolic link is followed, and nothing but a regular file is opened: not a FIFO, which would block,
nor a device. The path of the folder itself may be, or go through, symbolic links, as is common on clusters. Windows
cannot open without following links, so there the path is checked first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from io import FileIO
from pathlib import Path
from typing import Literal

from sb3_compressed.errors import CorruptStorage

__all__ = [
    "create_regular_file",
    "flush_path",
    "make_folder_durably",
    "nbytes_on_disk",
    "open_regular_file",
    "write_all",
]

#: Flags that not every operating system has.
BINARY: int = getattr(os, "O_BINARY", 0)
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
#: So that opening a FIFO returns; it changes nothing about regular files.
NO_BLOCK: int = getattr(os, "O_NONBLOCK", 0)
FLAGS = {"rb": os.O_RDONLY, "r+b": os.O_RDWR, "a+b": os.O_RDWR | os.O_APPEND | os.O_CREAT}

#: What ``open`` raises for a symbolic link (BSD raises EMLINK), a socket, a FIFO nobody reads, or a folder.
NOT_REGULAR = {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EOPNOTSUPP}


def open_regular_file(path: Path, mode: Literal["rb", "r+b", "a+b"] = "rb") -> FileIO:
    """Open a regular file unbuffered, never a link to one.

    :param mode: as for :func:`open`: read, read and write, or that, appending, and create it if it is missing
    :raises CorruptStorage: if the path is a symbolic link, folder, FIFO, socket or device
    :raises OSError: if it cannot be opened for another reason, as ``FileNotFoundError``
    """
    return _opened(path, FLAGS[mode], mode)


def create_regular_file(path: Path) -> FileIO:
    """Create a file and open it unbuffered for reading and writing, in the place of what was there.

    A file or link of that name is removed, not written to.

    :raises OSError: if it cannot be created
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "r+b")


def _opened(path: Path, flags: int, mode: str) -> FileIO:
    if not NO_FOLLOW:  # Windows
        with contextlib.suppress(FileNotFoundError):
            _check_regular(path, os.lstat(path))
    try:
        descriptor = os.open(path, flags | NO_FOLLOW | NO_BLOCK | BINARY, 0o666)
    except OSError as error:
        if error.errno in NOT_REGULAR:
            raise _not_regular(path) from error
        raise
    try:
        _check_regular(path, os.fstat(descriptor))
        return FileIO(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _not_regular(path)


def _not_regular(path: Path) -> CorruptStorage:
    kind = "no regular file"
    with contextlib.suppress(OSError):
        mode = os.lstat(path).st_mode
        kind = next((name for is_kind, name in KINDS.items() if is_kind(mode)), kind)
    return CorruptStorage(
        f"{path} is {kind}, and only regular files are opened inside the folder of a buffer; replace it by the file "
        "itself, or delete it"
    )


KINDS = {
    stat.S_ISLNK: "a symbolic link",
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def write_all(file: FileIO, data: bytes) -> None:
    """Write bytes where a file is at: a nearly full disk takes some of them before it raises.

    :raises OSError: if the disk does not take all of them
    """
    rest = memoryview(data)
    while len(rest):
        rest = rest[file.write(rest) :]


def make_folder_durably(folder: Path) -> None:
    """Create a folder and its missing parents, each of which outlives a power cut.

    :raises OSError: if it cannot be created, as ``FileExistsError`` if the path is a file
    """
    missing = []
    level = folder.absolute()
    while not level.is_dir() and level != level.parent:  # there may be no drive of that name
        missing.append(level)
        level = level.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # a parent that may not be read
            flush_path(each.parent)


def flush_path(path: Path) -> None:
    """Return when a file, or the names in a folder, outlive a power cut, where the system can flush folders."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def nbytes_on_disk(folder: Path) -> int:
    """Return the bytes that the regular files in a folder take on the disk, where a hole in a file takes none."""
    found = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # deleted by the process that writes
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found += min(status.st_size, getattr(status, "st_blocks", status.st_size) * 512)
    return found

"""Rules about open files: syncing, truncating, and the locks of ``msvcrt``."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import io
import os
import stat
import struct
import time
import types
from typing import Any

from windows_rules.holders import mapped_end
from windows_rules.state import real, refused, replace_in_os, rules

__all__ = ["install", "msvcrt"]

PAGE_NBYTES = 4096
#: The request for a lock of an open file, as the kernel reads it: type, whence, start, length, process.
LOCK = struct.Struct("hhqqi4x")
GET_LOCK, SET_LOCK = 36, 37  # F_OFD_GETLK, F_OFD_SETLK, which Python 3.11 does not name
O_CLOEXEC = os.O_CLOEXEC
EDEADLOCK = 36  # on Windows

#: By descriptor that is open for reading only: another one of the file, through which it is locked.
_companions: dict[int, int] = {}
#: The ranges that are locked, begin and length, by descriptor.
_locked: dict[int, set[tuple[int, int]]] = {}


def _path(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _fsync(fd: Any) -> None:
    number = fd if isinstance(fd, int) else fd.fileno()
    if "fsync" in rules and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise refused("fsync", OSError, errno.EBADF, "Bad file descriptor", _path(number))
    real["os.fsync"](fd)


def _check_truncation(status: os.stat_result, size: int, path: Any) -> None:
    if "truncate" not in rules or size >= status.st_size or not stat.S_ISREG(status.st_mode):
        return
    if -(-size // PAGE_NBYTES) * PAGE_NBYTES < mapped_end(status):
        raise refused("truncate", PermissionError, errno.EACCES, "Permission denied: it is mapped", path)


def _ftruncate(fd: int, length: int) -> None:
    _check_truncation(os.fstat(fd), length, _path(fd))
    real["os.ftruncate"](fd, length)


def _truncate(path: Any, length: int) -> None:
    _check_truncation(os.stat(path), length, path)
    real["os.truncate"](path, length)


# -- locks -----------------------------------------------------------------------------------------------------


def _request(kind: int, start: int, length: int) -> bytes:
    return LOCK.pack(kind, os.SEEK_SET, start, length, 0)


def _is_locked_by_another(fd: int, start: int, length: int) -> bool:
    """Return whether another handle has locked a part of a range."""
    try:
        found = fcntl.fcntl(_companions.get(fd, fd), GET_LOCK, _request(fcntl.F_WRLCK, start, length))
    except OSError:
        return False
    return bool(LOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _forget(fd: int) -> None:
    _locked.pop(fd, None)
    if fd in _companions:
        real["os.close"](_companions.pop(fd))


def _locking(fd: int, mode: int, nbytes: int) -> None:
    """Lock or unlock a range from the current position on, for one handle alone."""
    start = os.lseek(fd, 0, os.SEEK_CUR)
    if mode == msvcrt.LK_UNLCK:
        if (start, nbytes) not in _locked.get(fd, ()):
            raise PermissionError(errno.EACCES, "Permission denied [rule of Windows: locks]")
        _locked[fd].discard((start, nbytes))
        fcntl.fcntl(_companions.get(fd, fd), SET_LOCK, _request(fcntl.F_UNLCK, start, nbytes))
        return
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY and fd not in _companions:
        _companions[fd] = real["os.open"](f"/proc/self/fd/{fd}", os.O_RDWR | O_CLOEXEC)
    waits = mode in (msvcrt.LK_LOCK, msvcrt.LK_RLCK)
    for attempt in range(10 if waits else 1):
        if attempt:
            time.sleep(1)
        if any(begin < start + nbytes and start < begin + length for begin, length in _locked.get(fd, ())):
            continue
        try:
            fcntl.fcntl(_companions.get(fd, fd), SET_LOCK, _request(fcntl.F_WRLCK, start, nbytes))
        except (PermissionError, BlockingIOError):
            continue
        _locked.setdefault(fd, set()).add((start, nbytes))
        return
    if waits:
        raise OSError(EDEADLOCK, "Resource deadlock avoided")
    raise PermissionError(errno.EACCES, "Permission denied")


#: A part of the module of Windows.
msvcrt: Any = types.ModuleType("msvcrt")
msvcrt.LK_UNLCK, msvcrt.LK_LOCK, msvcrt.LK_NBLCK, msvcrt.LK_RLCK, msvcrt.LK_NBRLCK = range(5)
msvcrt.locking = _locking


def _check_locks(fd: int, nbytes: int, *, writes: bool) -> None:
    """Raise if another handle has locked a part of the next bytes.

    :param nbytes: -1 for all up to the end of the file
    """
    if "locks" not in rules:
        return
    try:
        size = os.fstat(fd).st_size
        appends = writes and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
        start = size if appends else os.lseek(fd, 0, os.SEEK_CUR)
    except OSError:  # a pipe, or it is closed
        return
    nbytes = size - start if nbytes < 0 else nbytes
    if nbytes > 0 and _is_locked_by_another(fd, start, nbytes):
        verb = "written" if writes else "read"
        raise refused("locks", PermissionError, errno.EACCES, f"Permission denied: locked bytes are {verb}", _path(fd))


def _file_read(self: io.FileIO, size: int | None = -1, /) -> bytes | None:
    nbytes = -1 if size is None else size
    if not self.closed:
        _check_locks(self.fileno(), nbytes, writes=False)
    read: bytes | None = real["FileIO.read"](self, nbytes)
    return read


def _file_readall(self: io.FileIO) -> bytes | None:
    if not self.closed:
        _check_locks(self.fileno(), -1, writes=False)
    read: bytes | None = real["FileIO.readall"](self)
    return read


def _file_readinto(self: io.FileIO, buffer: Any, /) -> int:
    if not self.closed:
        _check_locks(self.fileno(), memoryview(buffer).nbytes, writes=False)
    return int(real["FileIO.readinto"](self, buffer))


def _file_write(self: io.FileIO, data: Any, /) -> int:
    if not self.closed:
        _check_locks(self.fileno(), memoryview(data).nbytes, writes=True)
    return int(real["FileIO.write"](self, data))


def _file_truncate(self: io.FileIO, size: int | None = None, /) -> int:
    if not self.closed:
        _check_truncation(os.fstat(self.fileno()), self.tell() if size is None else size, _path(self.fileno()))
    return int(real["FileIO.truncate"](self, size))


def _file_close(self: io.FileIO) -> None:
    if not self.closed:
        _forget(self.fileno())
    real["FileIO.close"](self)


def _os_read(fd: int, n: int, /) -> bytes:
    _check_locks(fd, n, writes=False)
    read: bytes = real["os.read"](fd, n)
    return read


def _os_write(fd: int, data: Any, /) -> int:
    _check_locks(fd, memoryview(data).nbytes, writes=True)
    return int(real["os.write"](fd, data))


def _os_close(fd: int) -> None:
    _forget(fd)
    real["os.close"](fd)


def _replace_in_file(name: str, function: Any) -> None:
    """Replace a method of ``FileIO``, which is written in C."""
    [methods] = [each for each in gc.get_referents(io.FileIO.__dict__) if isinstance(each, dict)]
    real[f"FileIO.{name}"] = methods[name]
    methods[name] = function
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(io.FileIO))


def install() -> None:
    """Replace the functions and methods."""
    functions = {
        "fsync": _fsync, "ftruncate": _ftruncate, "truncate": _truncate, "read": _os_read, "write": _os_write,
        "close": _os_close,
    }  # fmt: skip
    for name, function in functions.items():
        replace_in_os(name, function)
    methods = {
        "read": _file_read, "readall": _file_readall, "readinto": _file_readinto, "write": _file_write,
        "truncate": _file_truncate, "close": _file_close,
    }  # fmt: skip
    for name, method in methods.items():
        _replace_in_file(name, method)

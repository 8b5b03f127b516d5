"""Rules about opening files."""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
import sys
from typing import Any

from windows_rules.holders import mapped_end
from windows_rules.paths import check_name
from windows_rules.state import is_library, is_package, real, refused, replace_in_os, rules

__all__ = ["install"]

O_BINARY = 0x8000
O_CLOEXEC = os.O_CLOEXEC  # which programs do not find later
#: Modules that open files for others.
CONDUITS = ("pathlib", "io", "_io", "codecs", "tempfile", "fileinput", "shutil", "contextlib")


def _check(path: Any, *, writes: bool, creates: bool, truncates: bool) -> None:
    """Raise if a file cannot be opened."""
    if isinstance(path, int):
        return
    if creates:
        check_name(path)
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return
    if "folders" in rules and stat.S_ISDIR(status.st_mode):
        raise refused("folders", PermissionError, errno.EACCES, "Permission denied", path)
    if not stat.S_ISREG(status.st_mode):
        return
    if "readonly" in rules and writes and not status.st_mode & stat.S_IWUSR:
        raise refused("readonly", PermissionError, errno.EACCES, "Permission denied", path)
    if "truncate" in rules and truncates and mapped_end(status):
        raise refused("truncate", OSError, errno.EINVAL, "Invalid argument: it is mapped", path)


def _os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is not None:
        raise NotImplementedError("dir_fd is unavailable on this platform [rule of Windows: missing]")
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
    _check(path, writes=writes, creates=bool(flags & os.O_CREAT), truncates=bool(flags & os.O_TRUNC))
    return int(real["os.open"](path, flags & ~O_BINARY | O_CLOEXEC, mode))


def _open(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    is_temporary = opener is not None and sys._getframe(1).f_globals.get("__name__") == "tempfile"
    if isinstance(mode, str) and not is_temporary:
        creates = any(each in mode for each in "wax")
        _check(file, writes=creates or "+" in mode, creates=creates, truncates="w" in mode)
    if "text" in rules and isinstance(mode, str) and "b" not in mode:
        by_package, is_direct = _caller()
        if encoding in (None, "locale"):
            if by_package:
                raise RuntimeError(f"the package opens {file} without an encoding [rule of Windows: text]")
            if is_direct:
                encoding = "cp1252"
        if newline is None and is_direct and "r" not in mode and "+" not in mode:
            newline = "\r\n"
    return real["open"](file, mode, buffering, encoding, errors, newline, closefd, opener)


def _caller() -> tuple[bool, bool]:
    """Return whether the package opens a text, and whether that or other code that is in no library does."""
    frame = sys._getframe(2)
    while (frame.f_globals.get("__name__") or "").partition(".")[0] in CONDUITS and frame.f_back is not None:
        frame = frame.f_back
    return is_package(frame), not is_library(frame.f_code.co_filename)


def install() -> None:
    """Replace the functions, and reconfigure standard streams."""
    replace_in_os("open", _os_open)
    system: Any = os
    system.O_BINARY, system.O_TEXT = O_BINARY, 0
    builtins.open = io.open = _open
    if "text" in rules and "PYTHONIOENCODING" not in os.environ:
        for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
            if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
                stream.reconfigure(encoding="cp1252", errors=errors)

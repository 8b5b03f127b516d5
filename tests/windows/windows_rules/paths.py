"""Rules about paths: deleting, renaming, names, permissions and links."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import tempfile
from typing import Any

from windows_rules.holders import holder_of, holder_within
from windows_rules.state import pids, real, refused, replace_in_os, rules

__all__ = ["check_name", "install"]

RESERVED_NAMES = re.compile(r"(CON|PRN|AUX|NUL|COM[1-9]|LPT[1-9])(\..*)?", re.IGNORECASE)
RESERVED_CHARACTERS = re.compile(r'[<>:"|?*\\\x00-\x1f]')
IN_USE = "The process cannot access the file because it is being used by another process"


def check_name(path: Any) -> None:
    """Raise if a file with that name cannot be created."""
    if "names" not in rules or isinstance(path, int):
        return
    text = os.fsdecode(path)
    if text.startswith(("/proc/", "/dev/", "/sys/")):
        return
    for part in {*text.split(os.sep)} - {"", ".", ".."}:
        if RESERVED_CHARACTERS.search(part) or RESERVED_NAMES.fullmatch(part) or part[-1] in ". ":
            raise refused("names", OSError, errno.EINVAL, "The file name syntax is incorrect", path)


def _lstat(path: Any) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (OSError, ValueError):
        return None


def _no_dir_fd(*descriptors: int | None) -> None:
    if any(each is not None for each in descriptors):
        raise NotImplementedError("dir_fd is unavailable on this platform [rule of Windows: missing]")


def _unlink(path: Any, *, dir_fd: int | None = None) -> None:
    _no_dir_fd(dir_fd)
    status, caller = _lstat(path), sys._getframe(1)
    is_temporary = caller.f_globals.get("__name__") == "tempfile" and caller.f_code.co_name in (
        "opener",
        "TemporaryFile",
    )
    if status is not None and not is_temporary:  # TemporaryFile of the standard library is another one on Windows
        if "existing" in rules and stat.S_ISDIR(status.st_mode):
            raise refused("existing", PermissionError, errno.EACCES, "Access is denied", path)
        if stat.S_ISREG(status.st_mode):
            if "readonly" in rules and not status.st_mode & stat.S_IWUSR:
                raise refused("readonly", PermissionError, errno.EACCES, "Access is denied", path)
            if "deleting" in rules and (holder := holder_of(status)):
                raise refused("deleting", PermissionError, errno.EACCES, f"{IN_USE}: {holder}", path)
    real["os.unlink"](path)


def _rmdir(path: Any, *, dir_fd: int | None = None) -> None:
    _no_dir_fd(dir_fd)
    status = _lstat(path)
    for pid in pids() if "deleting" in rules and status is not None and stat.S_ISDIR(status.st_mode) else ():
        current = _lstat(f"/proc/{pid}/cwd/.")
        if current is not None and status is not None and os.path.samestat(current, status):
            raise refused("deleting", PermissionError, errno.EACCES, f"it is the folder of process {pid}", path)
    real["os.rmdir"](path)


def _check_movable(source: Any, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        if "renaming" in rules and (holder := holder_within(os.fsdecode(source))):
            raise refused("renaming", PermissionError, errno.EACCES, f"Access is denied: {holder}", source)
    elif "moving" in rules and stat.S_ISREG(status.st_mode) and (holder := holder_of(status)):
        raise refused("moving", PermissionError, errno.EACCES, f"{IN_USE}: {holder}", source)


def _rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
    _no_dir_fd(src_dir_fd, dst_dir_fd)
    check_name(dst)
    source, target = _lstat(src), _lstat(dst)
    if source is not None:
        if "existing" in rules and target is not None and not os.path.samestat(source, target):
            raise refused("existing", FileExistsError, errno.EEXIST, "That file exists already", dst)
        _check_movable(src, source)
    real["os.rename"](src, dst)


def _replace(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
    _no_dir_fd(src_dir_fd, dst_dir_fd)
    check_name(dst)
    source, target = _lstat(src), _lstat(dst)
    if source is not None:
        if target is not None and not os.path.samestat(source, target):
            if "existing" in rules and stat.S_ISDIR(target.st_mode):
                raise refused("existing", PermissionError, errno.EACCES, "Access is denied", dst)
            if "deleting" in rules and stat.S_ISREG(target.st_mode) and (holder := holder_of(target)):
                raise refused("deleting", PermissionError, errno.EACCES, f"Access is denied: {holder}", dst)
        _check_movable(src, source)
    real["os.replace"](src, dst)


def _mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
    _no_dir_fd(dir_fd)
    check_name(path)
    real["os.mkdir"](path)  # the mode is ignored


def _link(
    src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, follow_symlinks: bool = True
) -> None:
    _no_dir_fd(src_dir_fd, dst_dir_fd)
    check_name(dst)
    real["os.link"](src, dst)


def _symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
    _no_dir_fd(dir_fd)
    if "symlinks" in rules:
        raise refused("symlinks", OSError, errno.EINVAL, "A required privilege is not held by the client", dst)
    real["os.symlink"](src, dst)


def _chmod(path: Any, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
    if "readonly" in rules:
        if os.path.isdir(path):
            return
        mode = 0o666 if mode & stat.S_IWUSR else 0o444
    real["os.chmod"](path, mode)


def _access(
    path: Any, mode: int, *, dir_fd: int | None = None, effective_ids: bool = False, follow_symlinks: bool = True
) -> bool:
    status = _lstat(path) if "readonly" in rules and mode & os.W_OK else None
    if status is not None and stat.S_ISREG(status.st_mode) and not status.st_mode & stat.S_IWUSR:  # also of root
        return False
    return bool(real["os.access"](path, mode))


def install() -> None:
    """Replace the functions, and let the standard library use them as on Windows."""
    functions = {
        "unlink": _unlink, "rmdir": _rmdir, "rename": _rename, "replace": _replace, "mkdir": _mkdir, "link": _link,
        "symlink": _symlink, "chmod": _chmod, "access": _access,
    }  # fmt: skip
    for name, function in functions.items():
        replace_in_os(name, function)
    os.remove = os.unlink
    os.supports_dir_fd, os.supports_fd = set(), set()
    os.supports_follow_symlinks = {os.stat}
    library: Any = shutil
    library._use_fd_functions = library._USE_CP_SENDFILE = library.rmtree.avoids_symlink_attacks = False
    library._copyxattr = lambda *args, **kwargs: None
    if hasattr(library, "_rmtree_impl"):  # from Python 3.13 on
        library._rmtree_impl = library._rmtree_unsafe
    temporary: Any = tempfile
    temporary._O_TMPFILE_WORKS = False
    temporary.TemporaryFile = tempfile.NamedTemporaryFile

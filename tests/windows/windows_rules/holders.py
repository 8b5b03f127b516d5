"""Which process has a file open or mapped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from windows_rules.state import pids, real

__all__ = ["holder_of", "holder_within", "mapped_end"]


class Mapped(NamedTuple):
    """A part of a file that a process has mapped: the device and inode of the file, where the part ends, its path."""

    device: int
    inode: int
    end: int
    path: str


def holder_of(status: os.stat_result) -> str | None:
    """Return which process has a file open or mapped, by any of its names; ``None`` if none has."""
    for pid in pids():
        for name in _descriptors(pid):
            try:
                other = os.stat(name)
            except OSError:
                continue
            if os.path.samestat(other, status):
                return f"open in process {pid}"
        if any(_mappings(pid, status)):
            return f"mapped in process {pid}"
    return None


def holder_within(folder: str) -> str | None:
    """Return which process has a file in a folder open or mapped, by a path in it, or is in it; ``None`` if none."""
    prefix = os.path.realpath(folder).rstrip(os.sep) + os.sep
    for pid in pids():
        for name in (*_descriptors(pid), f"/proc/{pid}/cwd"):
            try:
                target = os.readlink(name)
            except OSError:
                continue
            if target.startswith(prefix) or (name.endswith("cwd") and target + os.sep == prefix):
                return f"{os.path.basename(target)} is open in process {pid}"
        for mapped in _mappings(pid):
            if mapped.path.startswith(prefix):
                return f"{os.path.basename(mapped.path)} is mapped in process {pid}"
    return None


def mapped_end(status: os.stat_result) -> int:
    """Return where what is mapped of a file ends, 0 if nothing is."""
    return max((mapped.end for pid in pids() for mapped in _mappings(pid, status)), default=0)


def _descriptors(pid: int) -> Iterator[str]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # it has ended
        return
    yield from (f"/proc/{pid}/fd/{name}" for name in names)


def _mappings(pid: int, status: os.stat_result | None = None) -> Iterator[Mapped]:
    """Yield the files that a process has mapped, or the parts of one file."""
    try:
        with real["open"](f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    inode = "" if status is None else f" {status.st_ino} "
    for line in lines:
        fields = line.split(None, 5)
        if inode not in line or len(fields) < 6 or not fields[5].startswith("/"):
            continue
        begin, end = (int(each, 16) for each in fields[0].split("-"))
        major, minor = (int(each, 16) for each in fields[3].split(":"))
        mapped = Mapped(makedev(major, minor), int(fields[4]), int(fields[2], 16) + end - begin, fields[5])
        if status is None or (mapped.device, mapped.inode) == (status.st_dev, status.st_ino):
            yield mapped


makedev = os.makedev  # which programs do not find later

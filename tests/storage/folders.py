"""Helpers for the files of a folder: names, contents and damage."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TMPFS = Path("/dev/shm")


@contextmanager
def folder_in_memory(otherwise: Path) -> Iterator[Path]:
    """Create a folder where syncs take no time; return another one where the system has no tmpfs with room."""
    if sys.platform == "win32" or not os.access(TMPFS, os.W_OK) or shutil.disk_usage(TMPFS).free < 1 << 30:
        yield otherwise
        return
    folder = Path(tempfile.mkdtemp(prefix="sb3-compressed-", dir=TMPFS))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def names(folder: Path) -> list[str]:
    """Return the names of the files in a folder, without its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files by name, without trailing zeros."""
    return {name: (folder / name).read_bytes().rstrip(b"\0") for name in names(folder)}


def newest_segment(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def damage(path: Path, position: int, mask: int = 8) -> None:
    """Flip a bit of a file."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))

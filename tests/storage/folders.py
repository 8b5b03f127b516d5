"""Helpers for the files of a folder: names, contents and damage."""

from __future__ import annotations

import os
from pathlib import Path


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
        [byte] = os.pread(file.fileno(), 1, position)
        os.pwrite(file.fileno(), bytes([byte ^ mask]), position)

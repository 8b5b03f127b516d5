"""``user_path``: the paths that users pass."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

__all__ = ["user_path"]


def user_path(path: str | PathLike[str]) -> Path:
    """Return a path that a user passed, with ``~`` expanded to the home folder; shells do not expand it in quotes."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises if there is no such user

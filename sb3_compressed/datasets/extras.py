"""What the extra ``video`` installs, imported when it is needed."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["video_library"]


def video_library(name: str) -> Any:
    """Return a module that only those have who write videos.

    :raises ImportError: if it is not there; the message names the command that installs it
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(
            f"videos and pictures need {name.partition('.')[0]}, which is not installed: "
            "pip install 'sb3-compressed[video]'"
        ) from None

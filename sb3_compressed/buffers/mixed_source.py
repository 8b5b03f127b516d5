"""``MixedSource``: a buffer in the pickle of a :class:`.MixedReplayBuffer`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["MixedSource"]


@dataclass
class MixedSource:
    """A buffer in a pickle, or the folder that it is read from in place."""

    buffer: Any = None
    folder: Path | None = None

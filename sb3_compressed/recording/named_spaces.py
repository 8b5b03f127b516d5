"""``NamedSpaces``, which pickles of recordings of versions 0.2 and 0.3 contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["NamedSpaces"]


@dataclass(frozen=True)
class NamedSpaces:
    """A space and the name of its values."""

    name: str
    space: Any

"""Which arrays were just decoded and belong to nobody yet, so that whoever gets them may keep them without a copy."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from numpy.typing import NDArray

__all__ = ["mark_fresh", "take_fresh"]

_fresh: WeakValueDictionary[int, NDArray[Any]] = WeakValueDictionary()


def mark_fresh(array: NDArray[Any]) -> None:
    """Note that an array was made for the caller alone."""
    _fresh[id(array)] = array


def take_fresh(array: NDArray[Any]) -> bool:
    """Tell whether an array was marked and not taken since; from now on it is not."""
    return _fresh.pop(id(array), None) is array

"""``ArrayAttribute`` and ``ArrayDict``: assigning a plain array writes to the current array of a buffer.

SB3's buffers have plain arrays, so ``buffer.observations = array`` is fine there. Here, a plain array that replaced a
compressed one would take all the memory that the buffer saves, and would be missing from its folder.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_compressed.arrays.array_like import ArrayLike

__all__ = ["ArrayAttribute", "ArrayDict"]


class ArrayAttribute:
    """The observations of a buffer; assigning an ndarray copies it to the current array."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, buffer: object, owner: type[Any] | None = None) -> Any:
        if buffer is None:
            return self
        try:
            return buffer.__dict__[self.name]
        except KeyError:
            raise AttributeError(f"{type(buffer).__name__!r} object has no attribute {self.name!r}") from None

    def __set__(self, buffer: object, value: Any) -> None:
        if not write_in_place(buffer.__dict__.get(self.name), value, self.name):
            buffer.__dict__[self.name] = value

    def __delete__(self, buffer: object) -> None:
        del buffer.__dict__[self.name]


class ArrayDict(dict[str, Any]):
    """The observations of a buffer with a Dict space; assigning an ndarray to a key copies it to the current array."""

    def __setitem__(self, key: str, value: Any) -> None:
        current = self.get(key)
        if isinstance(current, np.ndarray) and np.shape(value) == current.shape:  # it may be one of a folder
            current[...] = value
        elif not write_in_place(current, value, f"observations[{key!r}]"):
            super().__setitem__(key, value)


def write_in_place(array: Any, value: Any, name: str) -> bool:
    """Return whether a value was written to an array instead of replacing it.

    :raises ValueError: if it has another shape
    """
    if not isinstance(array, ArrayLike) or not isinstance(value, np.ndarray):
        return False
    if value.shape != array.shape:
        if not value.size:  # a rollout buffer is emptied
            return False
        raise ValueError(
            f"{name} has the shape {array.shape}, and cannot be replaced by an array of shape {value.shape}; create a "
            "buffer of another size, or assign to a part: observations[rows] = values"
        )
    array[...] = value
    return True

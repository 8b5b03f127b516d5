"""``NumberAttribute``: the position of a buffer is an ``int``, whatever kind of number a user assigns.

SB3's buffers work with any number as ``pos``, for example with the NumPy scalars and arrays that ``np.load`` returns.
Here, positions are also written to folders and compared by samplers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["NumberAttribute"]


class NumberAttribute:
    """An attribute that is an ``int`` or ``bool``, also after an assignment of another kind of number.

    It has no ``__get__``, so that reading it takes no time: Python then finds the value in the object itself.

    :param kind: ``int`` or ``bool``
    """

    def __init__(self, kind: type[int]) -> None:
        self.kind = kind

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __set__(self, buffer: object, value: Any) -> None:
        buffer.__dict__[self.name] = value if type(value) is self.kind else self._converted(value)

    def _converted(self, value: Any) -> int:
        """Return a number, or the only element of an array or a tensor, as Python's ``int`` or ``bool``.

        :raises TypeError: if it is something else
        """
        number = np.asarray(value)
        if number.size == 1 and number.dtype.kind in ("biu" if self.kind is int else "biuf"):
            return self.kind(number.item())
        expected = "an integer" if self.kind is int else "True or False"
        raise TypeError(f"{self.name} must be {expected}, got {value!r}")

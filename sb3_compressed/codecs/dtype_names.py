"""The names of dtypes that may come from a file: a list, since NumPy evaluates parts of any other text."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["dtype_from_text"]

#: What ``dtype.str`` is of booleans, integers and floats. NumPy itself takes much more, and evaluates some of it.
BOOLEAN_AND_BYTES = ("|b1", "|i1", "|u1")
LONGER = ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "f12", "f16")
NAMES = frozenset(BOOLEAN_AND_BYTES) | {order + name for order in "<>" for name in LONGER}


def dtype_from_text(text: Any) -> np.dtype[Any]:
    """Return the dtype that a file names.

    :raises ValueError: if it is none of numbers, or one that this machine does not have
    """
    if not isinstance(text, str) or text not in NAMES:
        raise ValueError(f"{str(text)[:50]!r} is no dtype of numbers")
    try:
        return np.dtype(text)
    except TypeError as error:  # long double is not the same everywhere
        raise ValueError(f"{text!r} is no dtype of this machine") from error

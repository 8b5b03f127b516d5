"""The dtypes of numbers, as text that comes from a file."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

__all__ = ["dtype_from_text"]

#: What ``dtype.str`` is of booleans, integers and floats. NumPy itself takes much more, and evaluates some of it.
TEXT = re.compile(r"\|b1|[<>|=]?[iuf][0-9]{1,2}")


def dtype_from_text(text: Any) -> np.dtype[Any]:
    """Return the dtype that a file names.

    :raises ValueError: if it is none of numbers
    """
    if not isinstance(text, str) or not TEXT.fullmatch(text):
        raise ValueError(f"{str(text)[:50]!r} is no dtype of numbers")
    try:
        return np.dtype(text)
    except TypeError as error:
        raise ValueError(f"{text!r} is no dtype of numbers") from error

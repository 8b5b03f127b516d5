"""Casting what a user assigns to an array's dtype, without losing anything silently."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["cast_values", "clip_values"]


def cast_values(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``values`` in ``dtype``; a view where they have it already.

    Floats round as they do in NumPy. Where the target is an integer or a boolean, every value must survive: NumPy
    would store an image scaled to 0..1 in a uint8 array as zeros and say nothing.

    :raises TypeError: if the values are no numbers
    :raises ValueError: if a value cannot be represented
    """
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biuf":
        raise TypeError(f"cannot store values of dtype {values.dtype} in an array of dtype {dtype}")
    if dtype.kind == "f" or np.can_cast(values.dtype, dtype, "safe"):
        return values.astype(dtype)
    with np.errstate(invalid="ignore"):
        cast = values.astype(dtype)
    wrong = np.flatnonzero((cast != values).ravel())
    if len(wrong):
        raise ValueError(
            f"values of dtype {values.dtype} do not fit an array of dtype {dtype}: "
            f"{values.ravel()[wrong[0]]} would become {cast.ravel()[wrong[0]]}"
        )
    return cast


def clip_values(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``values`` in a ``dtype`` that may be narrower.

    For an integer dtype, what is out of range is clipped, fractions are cut off and NaN becomes 0.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype)
    if dtype.kind not in "iu":
        return cast
    limits = np.iinfo(dtype)
    # Clipped after the cast: the nearest float to an integer's limit may lie beyond it.
    cast = np.where(values >= limits.max, limits.max, np.where(values <= limits.min, limits.min, cast))
    return np.where(np.isnan(values), 0, cast).astype(dtype)

"""Casts that raise instead of silently losing information."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["cast_values", "clip_values", "holds_every_value"]


def cast_values(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``values`` in ``dtype``, the same array if they have it already.

    Floats are rounded as in NumPy. Casts to integers and booleans must be exact: NumPy would silently store an image
    scaled to 0..1 in a uint8 array as zeros.

    :raises TypeError: if the values are not numeric
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

    For an integer dtype, values out of range are clipped, fractions are truncated and NaN becomes 0.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype)
    if dtype.kind not in "iu":
        return cast
    limits = np.iinfo(dtype)
    # Clipped after the cast: the float nearest to an integer's limit may be beyond it.
    cast = np.where(values >= limits.max, limits.max, np.where(values <= limits.min, limits.min, cast))
    return np.where(np.isnan(values), 0, cast).astype(dtype)


def holds_every_value(narrow: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    """Return whether a dtype can represent every value of another one."""
    # NumPy calls it safe to store 64-bit integers as 64-bit floats, which lose the last bits.
    return np.can_cast(wide, narrow, "safe") and not (wide.kind in "iu" and wide.itemsize == 8 and narrow.kind == "f")

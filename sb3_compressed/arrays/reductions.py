"""Sums, means and extremes of arrays that are too large to decode at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["REDUCTIONS", "WHOLE_NBYTES", "reduce_in_parts"]

#: Arrays up to this size are decoded at once, so that results are bit-identical to NumPy's.
WHOLE_NBYTES = 1 << 30
#: Bytes of larger arrays that are decoded at a time.
PART_NBYTES = 1 << 23

REDUCTIONS = ("all", "any", "max", "mean", "min", "std", "sum", "var")
COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "all": np.logical_and,
    "any": np.logical_or,
    "max": np.maximum,
    "min": np.minimum,
    "sum": np.add,
}


def reduce_in_parts(array: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a reducing method of ndarrays; ``None`` if the array can be decoded at once for it.

    Sums of floats are accumulated in 64 bits, so they are as exact as NumPy's but not bit-identical.

    :param array: the array, ``(rows, ...)``
    :param name: the method, one of :data:`REDUCTIONS`
    :param args: its positional arguments: an axis or none
    :param kwargs: its keyword arguments: ``axis`` and ``keepdims``, and ``ddof`` of ``std`` and ``var``
    :raises TypeError: for other arguments, which are only supported for parts that the caller decodes
    """
    if array.size * array.itemsize <= WHOLE_NBYTES:
        return None
    options = {**dict(zip(("axis",), args, strict=False)), **kwargs}
    supported = {"axis", "keepdims"} | ({"ddof"} if name in ("std", "var") else set())
    options = {key: value for key, value in options.items() if not (key == "out" and value is None)}
    if len(args) > 1 or set(options) - supported:
        raise TypeError(
            f"{name}() of a compressed array of {array.size * array.itemsize / 1e9:.1f} GB takes only "
            f"{', '.join(sorted(supported))}; use it on parts, as in array[start : start + 1000].{name}(...)"
        )
    axes = _axes(options.get("axis"), array.ndim)
    keepdims = bool(options.get("keepdims", False))
    if 0 not in axes:
        parts = [getattr(part, name)(**{**options, "axis": axes}) for part in _parts(array)]
        return np.concatenate(parts)
    if name in COMBINED:
        result = _combined(array, name, axes)
    else:
        n = math.prod(array.shape[axis] for axis in axes)
        mean, squares = _moments(array, axes)
        result = mean if name == "mean" else squares / max(n - options.get("ddof", 0), 0)
        result = np.sqrt(result) if name == "std" else result
        if array.dtype.kind == "f":
            result = result.astype(array.dtype)
    return result if keepdims else np.squeeze(result, axis=axes)[()]


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    axes = tuple(range(ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    for number in axes:
        if not -ndim <= number < ndim:
            raise ValueError(f"axis {number} is out of bounds for array of dimension {ndim}")
    return tuple(sorted({number % ndim for number in axes}))


def _parts(array: Any) -> Iterator[NDArray[Any]]:
    rows = max(PART_NBYTES * len(array) // (array.size * array.itemsize), 1)
    for start in range(0, len(array), rows):
        yield array[start : start + rows].view(np.ndarray)


def _combined(array: Any, name: str, axes: tuple[int, ...]) -> NDArray[Any]:
    is_inexact_sum = name == "sum" and array.dtype.kind == "f"
    options = {"dtype": np.float64} if is_inexact_sum else {}
    result: Any = None
    for part in _parts(array):
        reduced = getattr(part, name)(axis=axes, keepdims=True, **options)
        result = reduced if result is None else COMBINED[name](result, reduced)
    return np.asarray(result, dtype=array.dtype if is_inexact_sum else None)


def _moments(array: Any, axes: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the mean, and the sum of squared differences from it (Chan et al., 1979)."""
    n: float = 0
    mean: Any = 0.0
    squares: Any = 0.0
    for part in _parts(array):
        m = math.prod(part.shape[axis] for axis in axes)
        part_mean = part.mean(axis=axes, keepdims=True, dtype=np.float64)
        part_squares = part.var(axis=axes, keepdims=True, dtype=np.float64) * m
        difference = part_mean - mean
        squares = squares + part_squares + difference**2 * (n * m / (n + m))
        mean = mean + difference * (m / (n + m))
        n += m
    return np.asarray(mean), np.asarray(squares)

"""Indices are split into the part that selects slots and the part that goes inside the items."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["basic_index", "has_ellipsis", "item_of", "row_of", "slot_numbers", "split_index"]

WHOLE = slice(None)


def split_index(index: Any, n_slot_axes: int, n_axes: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split an index of an array whose first ``n_slot_axes`` of ``n_axes`` axes are those of its slots.

    >>> split_index((3, 0, slice(None)), n_slot_axes=2, n_axes=5)
    ((3, 0), ())
    >>> split_index((5, ..., slice(0, 2)), n_slot_axes=2, n_axes=4)
    ((5, slice(None, None, None)), (slice(None, None, None), slice(0, 2, None)))

    :return: the index of the slots, and the index into each of their items, which is empty for whole items
    :raises IndexError: if the part inside the items contains arrays, or integers if the part before it contains
        arrays: NumPy's rules for these depend on both parts at once
    """
    parts = _expand_ellipsis(index if isinstance(index, tuple) else (index,), n_axes)
    consumed = 0
    slot_index: list[Any] = []
    for position, part in enumerate(parts):
        if consumed >= n_slot_axes:
            item_index = parts[position:]
            break
        slot_index.append(part)
        consumed += _n_axes_of(part)
    else:
        item_index = ()
    if consumed > n_slot_axes:
        raise IndexError(
            "a boolean mask cannot extend from rows and environments into the observations. For a mask of the shape of "
            "the array, read with np.asarray(array)[mask] and write with array[...] = np.where(mask, value, array)"
        )
    if all(selects_all(part) for part in item_index):
        return tuple(slot_index), ()
    has_arrays = any(_is_array(part) for part in slot_index)
    allowed = (slice, type(None)) if has_arrays else (slice, type(None), int, np.integer)
    if not all(isinstance(part, allowed) and not isinstance(part, bool) for part in item_index):
        raise IndexError(
            f"cannot index the inside of observations with {item_index} here; index rows and environments first, then "
            "the result: array[rows, envs][..., i]"
        )
    return tuple(slot_index), item_index


def basic_index(parts: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return an index for which NumPy returns a view, with its integers as ``int``; ``None`` for any other.

    >>> basic_index((np.int64(3), slice(2), None, ...))
    (3, slice(None, 2, None), None, Ellipsis)
    >>> basic_index((3, [0, 1])) is None
    True
    """
    basic: list[Any] = []
    for part in parts:
        if part is None or part is ... or type(part) is slice or type(part) is int:
            basic.append(part)
            continue
        if isinstance(part, np.ndarray | list | tuple | bool | np.bool_):
            return None
        try:
            basic.append(operator.index(part))
        except TypeError:
            return None
    return tuple(basic)


def row_of(slot_index: tuple[Any, ...], shape: tuple[int, ...]) -> int | None:
    """Return the row that an index selects, ``array[3]``, ``array[3, :]``, of one environment also ``array[3, 0]``.

    :param shape: ``(rows, n_envs)``
    :return: ``None`` if the index selects anything else
    """
    row, *rest = slot_index or (None,)
    if not isinstance(row, int | np.integer) or isinstance(row, bool):
        return None
    is_whole = all(selects_all(part) or (shape[1] == 1 and type(part) is int and part == 0) for part in rest)
    return int(row) % shape[0] if is_whole and -shape[0] <= row < shape[0] else None


def item_of(slot_index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the row and the environment that an index of integers selects among several environments.

    :param shape: ``(rows, n_envs)``
    """
    if len(slot_index) != 2 or len(shape) != 2 or shape[1] == 1:
        return None
    row, env = slot_index
    if (
        type(row) is not int
        or type(env) is not int
        or not (-shape[0] <= row < shape[0] and -shape[1] <= env < shape[1])
    ):
        return None
    return row % shape[0], env % shape[1]


def slot_numbers(index: tuple[Any, ...], table: NDArray[Any]) -> NDArray[np.int64]:
    """Return the flat indices in a table of the slots that an index selects, ``(n,)``.

    It takes as long as the index is large, not as the table is.

    >>> table = np.zeros((5, 2))
    >>> slot_numbers((slice(3, None), 1), table)
    array([7, 9])
    >>> slot_numbers(([3, 4], 1), table)
    array([7, 9])

    :param index: a valid index
    :param table: the table, ``(rows, n_envs)``
    """
    steps = [table.shape[1], 1]
    parts = [np.asarray(part) if isinstance(part, list) else part for part in index]
    parts += [WHOLE] * (table.ndim - len(parts))
    n_arrays = sum(isinstance(part, np.ndarray) for part in parts)
    is_usual = all(isinstance(part, int | slice) or (isinstance(part, np.ndarray) and part.ndim == 1) for part in parts)
    numbers: Any
    if is_usual and len(parts) == 2:
        along = [_positions(*axis) * step for *axis, step in zip(parts, table.shape, steps, strict=True)]
        numbers = np.add.outer(*along) if n_arrays < 2 else sum(along)
    else:
        numbers = np.arange(table.size).reshape(table.shape)[index]
    result: NDArray[np.int64] = np.reshape(numbers, -1)
    return result


def _positions(part: Any, length: int) -> NDArray[np.int64]:
    """Return the positions that a part of an index selects on an axis of a length."""
    if isinstance(part, slice):
        return np.arange(*part.indices(length))
    if isinstance(part, np.ndarray) and part.dtype == bool:
        return np.flatnonzero(part)
    positions = np.asarray(part, np.int64)
    return np.where(positions < 0, positions + length, positions)


def selects_all(part: Any) -> bool:
    """Return whether one part of an index selects its whole axis."""
    return type(part) is slice and part == WHOLE


def has_ellipsis(index: Any) -> bool:
    """Return whether an index contains an ellipsis, with which NumPy returns an array even of one element."""
    return index is ... or (isinstance(index, tuple) and any(part is ... for part in index))


def _is_array(part: Any) -> bool:
    return isinstance(part, list | tuple | np.ndarray) or (hasattr(part, "__array__") and not np.isscalar(part))


def _n_axes_of(part: Any) -> int:
    """Return how many axes one part of an index consumes."""
    if part is None or isinstance(part, bool | np.bool_):
        return 0
    if _is_array(part):
        array = np.asarray(part)
        return array.ndim if array.dtype == bool else 1
    return 1


def _expand_ellipsis(parts: tuple[Any, ...], n_axes: int) -> tuple[Any, ...]:
    places = [position for position, part in enumerate(parts) if part is Ellipsis]
    used = sum(_n_axes_of(part) for part in parts if part is not Ellipsis)
    if len(places) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if used > n_axes:
        raise IndexError(f"too many indices: the array has {n_axes} axes, {used} were indexed")
    if not places:
        return parts
    [place] = places
    return (*parts[:place], *[WHOLE] * (n_axes - used), *parts[place + 1 :])

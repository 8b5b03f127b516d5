"""``SumTree``: draws items with probabilities proportional to their values."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sb3_compressed.samplers.sum_tree_format import ADD, DRAWN, FANOUT, MAX_VALUE, REMOVE, UPDATE, UPDATED, VALID

__all__ = ["DRAWN", "MAX_VALUE", "UPDATED", "VALID", "SumTree", "sum_tree_kernels"]


@cache
def sum_tree_kernels() -> ModuleType:
    """Import the kernels on first use: importing numba is slow."""
    from sb3_compressed.samplers import sum_tree_kernels

    return sum_tree_kernels


class SumTree:
    """A tree of sums over items with values of float64, from which items are drawn in proportion to their values.

    Setting an item adds up the values of its group anew, and so on upwards, so sums depend on nothing but the present
    values: they do not drift, and trees of equal items are equal, however they came about. An item whose value is zero
    is never drawn, whatever rounding does. The tree also contains the maximum over all items that were updated since
    they were added.

    An item takes 8 bytes, a byte of flags, and 2/7 of a float64 for sums and maxima, 11.3 bytes altogether. Memory is
    used as items are written.

    >>> tree = SumTree(1_000)
    >>> tree.add(np.arange(4), 1.0)
    >>> tree.update(np.array([1, 3]), np.array([0.0, 3.0]))
    >>> tree.total, tree.max_updated
    (5.0, 3.0)
    >>> items, values = tree.draw(np.array([0.1, 0.3, 0.5, 0.9]))
    >>> items.tolist(), values.tolist()
    ([0, 2, 3, 3], [1.0, 1.0, 3.0, 3.0])

    :param n_items: number of items, at least 1
    :ivar values: the values of the items, ``(n_items,)``, read-only
    :ivar flags: ``VALID``, ``DRAWN`` and ``UPDATED`` of each item, ``(n_items,)`` of uint8, read-only
    """

    def __init__(self, n_items: int) -> None:
        if n_items < 1:
            raise ValueError(f"n_items must be at least 1, got {n_items}")
        self.n_items = n_items
        sizes = [n_items]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // FANOUT))
        if n_items == 1:
            sizes.append(1)
        starts = np.cumsum([0, *(-(-size // FANOUT) * FANOUT for size in sizes)])
        n_padded = int(starts[1])
        self._starts = starts
        self._sums = np.zeros(int(starts[-1]))
        self._maxima = np.zeros(int(starts[-1]) - n_padded)
        self._flags = np.zeros(n_padded, dtype=np.uint8)
        self.values = self._sums[:n_items]
        self.flags = self._flags[:n_items]
        self.values.flags.writeable = self.flags.flags.writeable = False

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._sums[-FANOUT])

    @property
    def max_updated(self) -> float:
        """The maximum value of the items that were updated since they were added, 0 if there are none."""
        return float(self._maxima[-FANOUT])

    def add(self, items: NDArray[np.int64], values: ArrayLike) -> None:
        """Set the values of new items, which were not drawn or updated yet.

        :param items: the items, ``(n,)``; of equal ones, the last value counts
        :param values: their values, ``(n,)``, or one for all of them
        :raises IndexError: if there is no such item; nothing is changed then
        :raises ValueError: if a value is NaN, negative or larger than ``MAX_VALUE``; nothing is changed then
        """
        self._set(items, values, ADD)

    def update(self, items: NDArray[np.int64], values: ArrayLike) -> None:
        """Update the values of items. Those that were not added, or were removed, are ignored.

        :param items: the items, ``(n,)``; of equal ones, the last value counts
        :param values: their values, ``(n,)``, or one for all of them
        :raises IndexError: if there is no such item; nothing is changed then
        :raises ValueError: if a value is NaN, negative or larger than ``MAX_VALUE``; nothing is changed then
        """
        self._set(items, values, UPDATE)

    def remove(self, items: NDArray[np.int64]) -> None:
        """Remove items.

        :param items: the items, ``(n,)``
        :raises IndexError: if there is no such item; nothing is changed then
        """
        self._set(items, 0.0, REMOVE)

    def _set(self, items: NDArray[np.int64], values: ArrayLike, action: int) -> None:
        items = np.asarray(items, dtype=np.int64, order="C")
        values = np.asarray(values, dtype=np.float64, order="C")
        if values.ndim == 0:
            values = values.reshape(1)
        elif values.shape != items.shape:
            raise ValueError(f"there must be a value for each item, got {values.shape} for {items.shape}")
        arrays = self._sums, self._maxima, self._starts, self._flags
        invalid = sum_tree_kernels().set_items(*arrays, self.n_items, items, values, action)
        if invalid >= 0:
            item, value = items[invalid], values[invalid if len(values) > 1 else 0]
            if not 0 <= item < self.n_items:
                raise IndexError(f"item {item} is out of bounds: there are {self.n_items} items")
            raise ValueError(f"the value of item {item} must be in 0..{MAX_VALUE:.3g}, got {value}")

    def draw(self, numbers: NDArray[np.float64], *, stratified: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
        """Draw items with probabilities proportional to their values.

        :param numbers: random numbers in [0, 1), one for each item to draw, ``(n,)``; receives the values of the items
        :param stratified: divide the total into ``n`` equal parts, and draw one item from each
        :return: the items, ``(n,)`` of int64, and their values, which are in ``numbers``
        :raises ValueError: if the total is zero
        """
        items = np.empty(numbers.shape, dtype=np.int64)
        arrays = self._sums, self._starts, self._flags
        if not sum_tree_kernels().draw_items(*arrays, self.n_items, numbers, items, stratified):
            raise ValueError("all values are 0")
        return items, numbers

    def draw_among(self, candidates: NDArray[np.int64], numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw from some items with probabilities proportional to their values, in time proportional to their number.

        :param candidates: the items, ``(m,)``, not all of value 0
        :param numbers: random numbers in [0, 1), one for each item to draw, ``(n,)``
        :return: the items, ``(n,)``
        """
        candidates = candidates[self.values[candidates] > 0]
        values = self.values[candidates]
        sums = np.cumsum(values / values.max())  # which does not overflow
        found = np.minimum(np.searchsorted(sums, numbers * sums[-1], side="right"), len(candidates) - 1)
        drawn: NDArray[np.int64] = candidates[found]
        self._flags[drawn] |= DRAWN
        return drawn

    def load(self, values: NDArray[np.float64], flags: NDArray[np.uint8]) -> None:
        """Replace all items.

        :param values: the values, ``(n_items,)``
        :param flags: the flags, ``(n_items,)``
        :raises ValueError: if they do not fit, or are not valid; nothing is changed then
        """
        for name, array, dtype in (("values", values, np.float64), ("flags", flags, np.uint8)):
            if array.shape != (self.n_items,) or array.dtype != dtype:
                expected = f"({self.n_items},) of {np.dtype(dtype)}"
                raise ValueError(f"{name} must be {expected}, got {array.shape} of {array.dtype}")
        is_valid = (flags & VALID).astype(bool)
        with np.errstate(invalid="ignore"):
            is_wrong = ~((values >= 0) & (values <= MAX_VALUE)) | (~is_valid & ((values != 0) | (flags != 0)))
        if is_wrong.any() or (flags > VALID | DRAWN | UPDATED).any():
            raise ValueError("values must be finite and not negative, and zero for items that are not valid")
        self._sums[: self.n_items] = values
        self._flags[: self.n_items] = flags
        sum_tree_kernels().recompute(self._sums, self._maxima, self._starts, self._flags)

    def __getstate__(self) -> dict[str, Any]:
        """Return the items only: sums are recomputed."""
        return {"values": self.values, "flags": self.flags}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the items and recompute the sums."""
        self.__init__(len(state["values"]))  # type: ignore[misc]
        self.load(**state)

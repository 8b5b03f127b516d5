"""Kernels of the sum tree: drawing items by prefix sums, and setting items.

A tree has levels: the items, sums of ``FANOUT`` items each, sums of these, up to one sum, the total. All levels are in
one array, the items first, each padded with zeros to whole groups; ``starts`` contains the index of the first element
of each level, and after these the length of the array. A second array contains maxima in place of sums, from the level
above the items on. ``SumTree`` allocates these arrays, and kernels rely on their sizes.

Batches are drawn level by level, so that the cache misses of their items overlap.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import BYTES, INTS, READ_BYTES, READ_INTS, helper, kernel
from sb3_compressed.samplers.sum_tree_format import ADD, DRAWN, FANOUT, MAX_VALUE, REMOVE, UPDATED, VALID

__all__ = ["draw_items", "recompute", "set_items"]

FLOAT = types.float64
FLOATS = types.Array(FLOAT, 1, "C")
READ_FLOATS = types.Array(FLOAT, 1, "C", readonly=True)


@helper(types.void, FLOATS, FLOATS, READ_INTS, READ_BYTES, INT, INT)
def update_node(
    sums: NDArray[np.float64],
    maxima: NDArray[np.float64],
    starts: NDArray[np.int64],
    flags: NDArray[np.uint8],
    level: int,
    node: int,
) -> None:
    """Recompute the sum of a group, in the order in which :func:`draw_items` adds, and its maximum.

    :param level: the level that contains them, at least 1
    :param node: the number of the group
    """
    begin, n_padded = starts[level - 1] + node * FANOUT, starts[1]
    total, largest = 0.0, 0.0
    for k in range(begin, begin + FANOUT):
        total += sums[k]
        if level > 1:
            largest = max(largest, maxima[k - n_padded])
        elif flags[k] & UPDATED:
            largest = max(largest, sums[k])
    sums[starts[level] + node] = total
    maxima[starts[level] - n_padded + node] = largest


@kernel(types.boolean, FLOATS, READ_INTS, BYTES, INT, FLOATS, INTS, types.boolean)
def draw_items(
    sums: NDArray[np.float64],
    starts: NDArray[np.int64],
    flags: NDArray[np.uint8],
    n_items: int,
    values: NDArray[np.float64],
    items: NDArray[np.int64],
    is_stratified: bool,
) -> bool:
    """Draw items with probabilities proportional to their values.

    In each group, the chosen child is the first one whose cumulated sum exceeds the number looked for. It is positive,
    as it increases the sum. If rounding leads beyond the last child, the last positive one is chosen.

    :param sums: the items and sums
    :param starts: index of the first element of each level, and the number of elements
    :param flags: the flags of the items; those of drawn ones are set
    :param n_items: number of items
    :param values: random numbers in [0, 1), ``(batch_size,)``; receives the values of the drawn items
    :param items: receives the drawn items, ``(batch_size,)``
    :param is_stratified: whether each item is drawn from its own part of the total, ``1 / batch_size`` of it
    :return: whether the total is positive; otherwise, none is drawn
    """
    batch_size, top = items.size, starts.size - 2
    total = sums[starts[top]]
    if not total > 0:
        return False
    for i in range(batch_size):
        share = (i + values[i]) / batch_size if is_stratified else values[i]
        values[i] = share * total
        items[i] = 0
    for level in range(top - 1, -1, -1):
        start = starts[level]
        last = (start - starts[level - 1]) // FANOUT - 1 if level > 0 else n_items - 1
        for i in range(batch_size):
            first = items[i] * FANOUT
            target = values[i]
            child, before, cumulated = 0, 0.0, 0.0
            for k in range(FANOUT):
                cumulated += sums[start + first + k]
                is_past = target >= cumulated
                before = cumulated if is_past else before
                child += is_past
            if child == FANOUT:
                child -= 1
                while child > 0 and sums[start + first + child] == 0:
                    child -= 1
                values[i] = np.inf  # the last positive one of its children as well
            else:
                values[i] = target - before
            items[i] = min(first + child, last)  # beyond are only zeros, which sums that are not valid could lead to
    for i in range(batch_size):
        item = items[i]
        values[i] = sums[item]
        flags[item] |= DRAWN
    return True


@kernel(INT, FLOATS, FLOATS, READ_INTS, BYTES, INT, READ_INTS, READ_FLOATS, INT)
def set_items(
    sums: NDArray[np.float64],
    maxima: NDArray[np.float64],
    starts: NDArray[np.int64],
    flags: NDArray[np.uint8],
    n_items: int,
    items: NDArray[np.int64],
    values: NDArray[np.float64],
    action: int,
) -> int:
    """Set the values of items, and recompute all sums and maxima that depend on them.

    :param sums: the items and sums
    :param maxima: the maxima over items that were updated
    :param starts: index of the first element of each level, and the number of elements
    :param flags: the flags of the items
    :param n_items: number of items
    :param items: the items, ``(n,)``; of equal ones, the last value counts
    :param values: their values, ``(n,)``, or ``(1,)`` for all of them
    :param action: ``ADD`` marks them as valid and neither drawn nor updated; ``UPDATE`` marks them as updated, and
        ignores those that are not valid; ``REMOVE`` marks them as not valid
    :return: -1, or the position of the first item or value that is not valid, and nothing was changed
    """
    n_values = values.size
    for i in range(items.size):
        if not 0 <= items[i] < n_items or not 0 <= values[i if n_values > 1 else 0] <= MAX_VALUE:
            return i
    for i in range(items.size):
        node = items[i]
        if action == ADD:
            flags[node] = VALID
        elif action == REMOVE:
            flags[node] = 0
        elif flags[node] & VALID:
            flags[node] |= UPDATED
        else:
            continue
        sums[node] = values[i if n_values > 1 else 0]
        for level in range(1, starts.size - 1):
            node //= FANOUT
            update_node(sums, maxima, starts, flags, level, node)
    return -1


@kernel(types.void, FLOATS, FLOATS, READ_INTS, READ_BYTES)
def recompute(
    sums: NDArray[np.float64], maxima: NDArray[np.float64], starts: NDArray[np.int64], flags: NDArray[np.uint8]
) -> None:
    """Recompute all sums and maxima from the items and their flags.

    :param sums: the items and sums
    :param maxima: the maxima over items that were updated
    :param starts: index of the first element of each level, and the number of elements
    :param flags: the flags of the items
    """
    for level in range(1, starts.size - 1):
        for node in range((starts[level] - starts[level - 1]) // FANOUT):
            update_node(sums, maxima, starts, flags, level, node)

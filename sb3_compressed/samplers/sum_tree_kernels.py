"""Kernels of the sum tree: drawing items by prefix sums, and recomputing sums and maxima.

A tree has levels: the items, sums of ``FANOUT`` items each, sums of these, up to one sum, the total. All levels are in
one array, the items first, each padded with zeros to whole groups; ``starts`` contains the index of the first element
of each level, and after these the length of the array. A second array contains maxima in place of sums, from the level
above the items on. A group is one cache line of 64 bytes, if the array is aligned. ``SumTree`` allocates these arrays,
and kernels rely on their sizes.

A batch is processed level by level: the cache misses of its items overlap, and in a tree of 100 million items that is
what takes most of the time.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import BYTES, INT_ROWS, INTS, READ_BYTES, READ_INTS, helper, kernel, prefetch
from sb3_compressed.samplers.sum_tree_format import ADD, DRAWN, FANOUT, MAX_VALUE, REMOVE, UPDATED, VALID

__all__ = ["draw_items", "recompute", "set_items"]

FLOAT = types.float64
FLOATS = types.Array(FLOAT, 1, "C")
READ_FLOATS = types.Array(FLOAT, 1, "C", readonly=True)

FLOAT_NBYTES = 8


@helper(FLOAT, READ_FLOATS, INT)
def sum_of_group(sums: NDArray[np.float64], begin: int) -> float:
    """Return the sum of a group, added in the order in which :func:`draw_items` adds."""
    total = 0.0
    for child in range(FANOUT):
        total += sums[begin + child]
    return total


@helper(FLOAT, READ_FLOATS, READ_BYTES, INT)
def max_of_items(values: NDArray[np.float64], flags: NDArray[np.uint8], begin: int) -> float:
    """Return the maximum of a group of items over those that were updated, 0 if none was."""
    largest = 0.0
    for child in range(FANOUT):
        value = values[begin + child] if flags[begin + child] & UPDATED else 0.0
        largest = max(largest, value)
    return largest


@helper(FLOAT, READ_FLOATS, INT)
def max_of_group(maxima: NDArray[np.float64], begin: int) -> float:
    """Return the maximum of a group."""
    largest = 0.0
    for child in range(FANOUT):
        largest = max(largest, maxima[begin + child])
    return largest


@kernel(types.boolean, FLOATS, READ_INTS, BYTES, INT, FLOATS, INTS, types.boolean, nogil=False)
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
    batch_size, sums_address, flags_address = items.size, sums.ctypes.data, flags.ctypes.data
    top = starts.size - 2
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
        below = sums_address + starts[level - 1] * FLOAT_NBYTES if level > 0 else 0
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
            item = min(first + child, last)  # beyond it are only zeros, which sums that are not valid could lead to
            items[i] = item
            if level > 0:
                prefetch(below + item * FANOUT * FLOAT_NBYTES)
            if level == 1:
                prefetch(flags_address + item * FANOUT)
    for i in range(batch_size):
        item = items[i]
        values[i] = sums[item]
        flags[item] |= DRAWN
    return True


@helper(INT, FLOATS, BYTES, READ_INTS, READ_FLOATS, INT, INT, INT, INTS)
def write_items(
    sums: NDArray[np.float64],
    flags: NDArray[np.uint8],
    items: NDArray[np.int64],
    values: NDArray[np.float64],
    begin: int,
    end: int,
    action: int,
    groups: NDArray[np.int64],
) -> int:
    """Write the items from ``begin`` to ``end``, see :func:`set_items`.

    Neighbors are often in the same group: rows are written in order, and stratified draws are sorted.

    :param groups: receives the groups whose items were written
    :return: their number
    """
    n_groups, last = 0, -1
    for i in range(begin, end):
        item = items[i]
        if action == ADD:
            flags[item] = VALID
        elif action == REMOVE:
            flags[item] = 0
        elif flags[item] & VALID:
            flags[item] |= UPDATED
        else:
            continue
        sums[item] = values[i if values.size > 1 else 0]
        if item // FANOUT != last:
            last = item // FANOUT
            groups[n_groups] = last
            n_groups += 1
    return n_groups


@helper(INT, FLOATS, FLOATS, READ_BYTES, INT, READ_INTS, INT, INTS)
def update_groups(
    sums: NDArray[np.float64],
    maxima: NDArray[np.float64],
    flags: NDArray[np.uint8],
    above: int,
    groups: NDArray[np.int64],
    n_groups: int,
    changed: NDArray[np.int64],
) -> int:
    """Recompute the sums and maxima of groups of items.

    :param above: where the level above the items begins
    :param changed: receives the nodes of the level above that, of which a maximum has changed
    :return: their number
    """
    n_changed, last = 0, -1
    for i in range(n_groups):
        group = groups[i]
        largest = max_of_items(sums, flags, group * FANOUT)
        sums[above + group] = sum_of_group(sums, group * FANOUT)
        if largest != maxima[group]:
            maxima[group] = largest
            if group // FANOUT != last:
                last = group // FANOUT
                changed[n_changed] = last
                n_changed += 1
    return n_changed


@helper(INT, FLOATS, INT, INT, INTS, INT)
def update_sums(sums: NDArray[np.float64], start: int, children: int, nodes: NDArray[np.int64], n: int) -> int:
    """Recompute the sums of one level.

    :param start: where the level begins
    :param children: where the level below begins
    :param nodes: nodes of the level below that have changed; receives those of this level
    :param n: their number
    :return: the number of those of this level
    """
    n_nodes, last = 0, -1
    for i in range(n):
        node = nodes[i] // FANOUT
        if node != last:
            sums[start + node] = sum_of_group(sums, children + node * FANOUT)
            nodes[n_nodes] = node
            n_nodes += 1
            last = node
    return n_nodes


@helper(INT, FLOATS, INT, INT, INTS, INT)
def update_maxima(maxima: NDArray[np.float64], start: int, children: int, nodes: NDArray[np.int64], n: int) -> int:
    """Recompute maxima of one level.

    :param start: where the level begins
    :param children: where the level below begins
    :param nodes: nodes of this level to recompute; receives those of the level above, if their maximum may change
    :param n: their number
    :return: the number of those of the level above
    """
    n_nodes, last = 0, -1
    for i in range(n):
        node = nodes[i]
        largest = max_of_group(maxima, children + node * FANOUT)
        if largest != maxima[start + node]:
            maxima[start + node] = largest
            if node // FANOUT != last:
                last = node // FANOUT
                nodes[n_nodes] = last
                n_nodes += 1
    return n_nodes


@kernel(INT, FLOATS, FLOATS, READ_INTS, BYTES, INT, READ_INTS, READ_FLOATS, INT, INT_ROWS, nogil=False)
def set_items(
    sums: NDArray[np.float64],
    maxima: NDArray[np.float64],
    starts: NDArray[np.int64],
    flags: NDArray[np.uint8],
    n_items: int,
    items: NDArray[np.int64],
    values: NDArray[np.float64],
    action: int,
    scratch: NDArray[np.int64],
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
    :param scratch: any memory ``(2, at least 1)``
    :return: -1, or the position of the first item or value that is not valid, and nothing was changed
    """
    n_values, chunk = values.size, scratch.shape[1]
    sums_address, maxima_address, flags_address = sums.ctypes.data, maxima.ctypes.data, flags.ctypes.data
    for i in range(items.size):
        if not 0 <= items[i] < n_items or not 0 <= values[i if n_values > 1 else 0] <= MAX_VALUE:
            return i
    above, n_padded = starts[1], starts[1]
    nodes, changed = scratch[0], scratch[1]
    for begin in range(0, items.size, chunk):
        end = min(begin + chunk, items.size)
        for i in range(begin, end):
            item = items[i]
            prefetch(sums_address + item * FLOAT_NBYTES)
            prefetch(flags_address + item)
            prefetch(sums_address + (above + item // FANOUT) * FLOAT_NBYTES)
            prefetch(maxima_address + item // FANOUT * FLOAT_NBYTES)
        n_nodes = write_items(sums, flags, items, values, begin, end, action, nodes)
        n_changed = update_groups(sums, maxima, flags, above, nodes, n_nodes, changed)
        for level in range(2, starts.size - 1):
            start, children = starts[level], starts[level - 1]
            n_nodes = update_sums(sums, start, children, nodes, n_nodes)
            n_changed = update_maxima(maxima, start - n_padded, children - n_padded, changed, n_changed)
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
    n_padded = starts[1]
    for group in range(n_padded // FANOUT):
        sums[n_padded + group] = sum_of_group(sums, group * FANOUT)
        maxima[group] = max_of_items(sums, flags, group * FANOUT)
    for level in range(2, starts.size - 1):
        start, children = starts[level], starts[level - 1]
        for group in range((start - children) // FANOUT):
            sums[start + group] = sum_of_group(sums, children + group * FANOUT)
            maxima[start - n_padded + group] = max_of_group(maxima, children - n_padded + group * FANOUT)

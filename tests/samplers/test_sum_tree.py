"""The tree equals a model of it in NumPy, whatever is set and drawn, and its sums do not drift."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from sb3_compressed.samplers.sum_tree import DRAWN, MAX_VALUE, UPDATED, VALID, SumTree
from sb3_compressed.samplers.sum_tree_format import FANOUT

SIZES = [1, 2, FANOUT - 1, FANOUT, FANOUT + 1, FANOUT**2 - 1, FANOUT**2, FANOUT**2 + 1, 1000]
LARGEST_NUMBER = np.nextafter(1.0, 0.0)
Floats = NDArray[np.float64]


def arrays_of(tree: SumTree) -> list[NDArray[Any]]:
    """Return all sums, maxima and flags."""
    return [tree._sums, tree._maxima, tree._flags]


def assert_equal_to_new_tree(tree: SumTree) -> None:
    new = SumTree(tree.n_items)
    new.load(tree.values.copy(), tree.flags.copy())
    for found, expected in zip(arrays_of(tree), arrays_of(new)):
        np.testing.assert_array_equal(found, expected)


class TreeModel(RuleBasedStateMachine):
    """Drives a tree and arrays of values and flags. Values are integers, whose sums are exact in any order."""

    @initialize(n_items=st.sampled_from(SIZES))
    def start(self, n_items: int) -> None:
        self.tree = SumTree(n_items)
        self.values = np.zeros(n_items)
        self.flags = np.zeros(n_items, np.uint8)

    def _items(self, data: Any) -> NDArray[np.int64]:
        return np.array(data.draw(st.lists(st.integers(0, len(self.values) - 1), max_size=40)), np.int64)

    def _values(self, data: Any, n: int) -> Floats:
        return np.array(data.draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)), np.float64)

    @rule(data=st.data())
    def add(self, data: Any) -> None:
        items = self._items(data)
        values = self._values(data, len(items))
        self.tree.add(items, values)
        for item, value in zip(items, values):
            self.values[item], self.flags[item] = value, VALID

    @rule(data=st.data(), value=st.integers(0, 1000))
    def add_range(self, data: Any, value: int) -> None:
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(self.values))] * 2)))
        self.tree.add(np.arange(begin, end), value)
        self.values[begin:end], self.flags[begin:end] = value, VALID

    @rule(data=st.data())
    def update(self, data: Any) -> None:
        items = self._items(data)
        values = self._values(data, len(items))
        self.tree.update(items, values)
        for item, value in zip(items, values):
            if self.flags[item] & VALID:
                self.values[item] = value
                self.flags[item] |= UPDATED

    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        items = self._items(data)
        self.tree.remove(items)
        self.values[items] = self.flags[items] = 0

    @precondition(lambda self: self.values.sum() > 0)
    @rule(numbers=st.lists(st.floats(0, LARGEST_NUMBER), min_size=1, max_size=20), stratified=st.booleans())
    def draw(self, numbers: list[float], stratified: bool) -> None:
        items, values = self.tree.draw(np.array(numbers), stratified=stratified)
        n, cumulated = len(numbers), self.values.cumsum()
        shares = (np.arange(n) + numbers) / n if stratified else np.array(numbers)
        targets = np.minimum(shares * cumulated[-1], np.nextafter(cumulated[-1], 0))
        np.testing.assert_array_equal(items, np.searchsorted(cumulated, targets, side="right"))
        np.testing.assert_array_equal(values, self.values[items])
        self.flags[items] |= DRAWN

    @precondition(lambda self: self.values.sum() == 0)
    @rule()
    def draw_without_values(self) -> None:
        with pytest.raises(ValueError, match="all values are 0"):
            self.tree.draw(np.zeros(3))

    @rule()
    def pickle_tree(self) -> None:
        self.tree = pickle.loads(pickle.dumps(self.tree))

    @invariant()
    def equals_the_model(self) -> None:
        if not hasattr(self, "tree"):
            return
        np.testing.assert_array_equal(self.tree.values, self.values)
        np.testing.assert_array_equal(self.tree.flags, self.flags)
        assert self.tree.total == self.values.sum()
        assert self.tree.max_updated == self.values[self.flags & UPDATED != 0].max(initial=0)
        assert_equal_to_new_tree(self.tree)


TestTreeModel = TreeModel.TestCase
TestTreeModel.settings = settings(examples(40), stateful_step_count=30)


def filled(values: Any) -> SumTree:
    values = np.asarray(values, np.float64)
    tree = SumTree(len(values))
    tree.add(np.arange(len(values)), values)
    return tree


@pytest.mark.parametrize(
    ("items", "values", "error", "message"),
    [
        ([0, 20], [1.0, 1.0], IndexError, "item 20 is out of bounds"),
        ([0, -1], [1.0, 1.0], IndexError, "item -1 is out of bounds"),
        ([0, 2**62], [1.0, 1.0], IndexError, f"item {2**62} is out of bounds"),
        ([0, 7], [1.0, np.nan], ValueError, "the value of item 7 .* got nan"),
        ([0, 7], [1.0, np.inf], ValueError, "the value of item 7 .* got inf"),
        ([0, 7], [1.0, -1e-300], ValueError, "the value of item 7 .* got -1e-300"),
        ([0, 7], [1.0, MAX_VALUE * 1.01], ValueError, "the value of item 7 must be in"),
        ([0, 7, 8], [1.0, 2.0], ValueError, "a value for each item"),
        ([0, 7, 8], [1.0], ValueError, "a value for each item"),
    ],
)
def test_invalid_items_and_values_raise_and_change_nothing(
    items: list[int], values: list[float], error: type[Exception], message: str
) -> None:
    tree = filled(np.arange(20.0))
    before = [array.copy() for array in arrays_of(tree)]
    for method in (tree.add, tree.update):
        with pytest.raises(error, match=message):
            method(np.array(items), np.array(values))
    for found, expected in zip(arrays_of(tree), before):
        np.testing.assert_array_equal(found, expected)


def test_a_tree_needs_items() -> None:
    with pytest.raises(ValueError, match="n_items must be at least 1, got 0"):
        SumTree(0)


EDGES = [0.0, 5e-324, 2.0**-53, 0.5, np.nextafter(0.5, 0), *(1 - k * 2.0**-53 for k in range(1, 40))]
POSITIVE = {
    "one": [1.0],
    "smallest": [5e-324],
    "smallest, several": [5e-324] * 3,
    "largest": [MAX_VALUE] * 7,
    "tenths": [0.1] * 37,  # whose sums are rounded
    "increasing": [10.0 ** (-300 + 12 * i) for i in range(48)],
    "decreasing": [10.0 ** (264 - 12 * i) for i in range(48)],
    "mixed": [1e288, 1e-320, 1e-12, 1.0, 1e16, 3.0, 1e-290],
}


@pytest.mark.parametrize("kind", POSITIVE)
def test_zeros_are_never_drawn_whatever_rounding_does(kind: str) -> None:
    """Trees of float32, or with running differences, draw them (flashbax issue #52)."""
    rng = np.random.default_rng(0)
    numbers = np.concatenate([EDGES, rng.random(2000), 1 - rng.integers(1, 100, 200) * 2.0**-53])
    for _ in range(10):
        values = np.zeros(int(rng.integers(len(POSITIVE[kind]), 1200)))
        values[rng.choice(len(values), len(POSITIVE[kind]), replace=False)] = POSITIVE[kind]
        tree = filled(values)
        assert 0 < tree.total < np.inf
        for stratified in (False, True):
            items, drawn = tree.draw(numbers.copy(), stratified=stratified)
            assert (drawn > 0).all()
            np.testing.assert_array_equal(drawn, values[items])


@pytest.mark.parametrize(
    ("values", "flags", "message"),
    [
        (np.ones(9), np.ones(10, np.uint8), r"values must be \(10,\) of float64, got \(9,\)"),
        (np.ones(10, np.float32), np.ones(10, np.uint8), "float32"),
        (np.ones(10), np.ones(10), "flags must be .* of uint8"),
        (np.full(10, np.nan), np.ones(10, np.uint8), "finite"),
        (-np.ones(10), np.ones(10, np.uint8), "not negative"),
        (np.full(10, np.inf), np.ones(10, np.uint8), "finite"),
        (np.ones(10), np.zeros(10, np.uint8), "zero for items that are not valid"),
        (np.zeros(10), np.full(10, DRAWN, np.uint8), "not valid"),
        (np.ones(10), np.full(10, 255, np.uint8), "not valid"),
    ],
)
def test_loading_what_does_not_fit_raises_and_changes_nothing(values: Any, flags: Any, message: str) -> None:
    tree = filled(np.arange(10.0))
    before = [array.copy() for array in arrays_of(tree)]
    with pytest.raises(ValueError, match=message):
        tree.load(values, flags)
    for found, expected in zip(arrays_of(tree), before):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n_items", SIZES)
def test_kernels_stay_within_bounds_whatever_the_sums_are(n_items: int) -> None:
    rng = np.random.default_rng(4)
    for _ in range(60):
        tree = SumTree(n_items)
        for array in (tree._sums, tree._maxima):
            array[:] = rng.choice([0.0, 1.0, -1.0, 1e300, -1e300, np.nan, np.inf, -np.inf], array.shape)
        tree._sums[-FANOUT] = 1.0
        items, _ = tree.draw(rng.random(30), stratified=True)
        assert ((items >= 0) & (items < n_items)).all()
        tree.update(items, rng.random(30))


def test_values_and_flags_are_read_only() -> None:
    tree = filled(np.ones(3))
    for array in (tree.values, tree.flags, pickle.loads(pickle.dumps(tree)).values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1

"""Splitting an index of the whole array into one of the slots and one of each item."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sb3_compressed.arrays.indexing import split_index

ALL = slice(None)
SOME = slice(0, 2)
NUMBERS = np.array([1, 0])
ROW_MASK = np.array([True, False, True])


@pytest.mark.parametrize(
    ("index", "slot_index", "item_index"),
    [
        (3, (3,), ()),
        ((3,), (3,), ()),
        ((3, 0), (3, 0), ()),
        ((3, 0, ALL), (3, 0), ()),
        ((3, 0, 1), (3, 0), (1,)),
        ((3, ALL, SOME), (3, ALL), (SOME,)),
        ((), (), ()),
        (..., (ALL, ALL), ()),
        ((3, ...), (3, ALL), ()),
        ((..., SOME), (ALL, ALL), (ALL, ALL, SOME)),
        ((3, ..., 1), (3, ALL), (ALL, ALL, 1)),
        ((3, 0, 1, 1, 1, ...), (3, 0), (1, 1, 1)),
        ((None, 3), (None, 3), ()),
        ((3, None, 0, None), (3, None, 0), (None,)),
        ((NUMBERS, NUMBERS), (NUMBERS, NUMBERS), ()),
        ((NUMBERS, NUMBERS, SOME), (NUMBERS, NUMBERS), (SOME,)),
        (([0, 1], 2, ALL), ([0, 1], 2), ()),
        (ROW_MASK, (ROW_MASK,), ()),
        ([True, False, True], ([True, False, True],), ()),
        ((ROW_MASK, 0, SOME), (ROW_MASK, 0), (SOME,)),
        (True, (True,), ()),
    ],
)
def test_an_index_is_split_after_the_leading_axes(
    index: Any, slot_index: tuple[Any, ...], item_index: tuple[Any, ...]
) -> None:
    found = split_index(index, n_slot_axes=2, n_axes=5)
    assert str(found) == str((slot_index, item_index))  # arrays are not compared with ==


def test_a_mask_of_both_axes_consumes_both() -> None:
    mask = np.ones((3, 2), bool)
    slot_index, item_index = split_index((mask, SOME), n_slot_axes=2, n_axes=5)
    assert len(slot_index) == 1
    assert slot_index[0] is mask
    assert item_index == (SOME,)


@pytest.mark.parametrize("index", [(0, 0, 0, 0, 0, 0), (NUMBERS, 0, 0, 0, 0, 0), (..., 0, 0, 0, 0, 0, 0)])
def test_too_many_indices_raise(index: Any) -> None:
    with pytest.raises(IndexError, match="too many indices: the array has 5 axes, 6 were indexed"):
        split_index(index, n_slot_axes=2, n_axes=5)


@pytest.mark.parametrize("item_index", [NUMBERS, [0, 1], np.ones((4, 4), bool), True, 1.5])
def test_arrays_inside_the_items_raise(item_index: Any) -> None:
    with pytest.raises(IndexError, match="cannot index the inside of observations"):
        split_index((0, 0, item_index), n_slot_axes=2, n_axes=5)


def test_an_integer_inside_the_items_raises_after_arrays() -> None:
    """NumPy takes integers for arrays there, and may put the axes of the result in another order."""
    with pytest.raises(IndexError, match="cannot index the inside of observations"):
        split_index((NUMBERS, ALL, 0), n_slot_axes=2, n_axes=5)


def test_a_mask_of_slots_and_items_raises() -> None:
    with pytest.raises(IndexError, match="boolean mask cannot extend"):
        split_index((0, np.ones((2, 4), bool)), n_slot_axes=2, n_axes=5)


def test_two_ellipses_raise() -> None:
    with pytest.raises(IndexError, match="single ellipsis"):
        split_index((..., 0, ...), n_slot_axes=2, n_axes=5)


@examples(300)
@given(
    index=npst.basic_indices((3, 2, 4, 5), allow_newaxis=True, allow_ellipsis=True, max_dims=8),
    n_slot_axes=st.integers(1, 4),
)
def test_both_parts_together_select_what_the_index_selects(index: Any, n_slot_axes: int) -> None:
    array = np.arange(120).reshape(3, 2, 4, 5)
    slot_index, item_index = split_index(index, n_slot_axes=n_slot_axes, n_axes=4)
    n_result = array[(*slot_index, ...)].ndim - (4 - n_slot_axes)
    np.testing.assert_array_equal(array[(*slot_index, ...)][(ALL,) * n_result + item_index], array[index])

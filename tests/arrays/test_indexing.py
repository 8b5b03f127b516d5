"""Splitting an index of the whole array into one of the slots and one of each item."""

from __future__ import annotations

from typing import Any

import numpy as np
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sb3_compressed.arrays.indexing import split_index

ALL = slice(None)


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

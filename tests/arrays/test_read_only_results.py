"""What is read is a copy: writable where NumPy copies, and read-only where NumPy returns a view."""

from __future__ import annotations

import copy
import operator
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from drawn_examples import examples
from gathering import damage
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from arrays.pairs import Change, assert_same, pair_of
from sb3_compressed import CompressedArray

# -- views in NumPy ------------------------------------------------------------------------------------------


@examples(200)
@given(data=st.data())
def test_results_of_basic_indexing_stay_read_only(data: st.DataObject) -> None:
    item_shape = data.draw(st.sampled_from([(), (5,), (4, 2, 3), (2, 0)]))
    ours, plain = pair_of(item_shape, data.draw(st.sampled_from(("u1", ">i4"))))
    index = data.draw(npst.basic_indices(plain[0].shape, allow_newaxis=True, max_dims=8))
    result, expected = ours[0][index], plain[0][index]
    assert type(result) is type(expected)
    assert_same([result], [np.asarray(expected)])
    if isinstance(result, np.ndarray):
        for array in (result, result.T, result[...], np.asarray(result)):
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True


WRITES: dict[str, Change] = {
    "row": lambda array: operator.setitem(array[3], 0, 1),
    "item": lambda array: operator.setitem(array[3, 0], ..., 1),
    "rows": lambda array: operator.setitem(array[:5][:, 0], slice(1, 3), 1),
    "one element": lambda array: operator.setitem(array[1, 0, 0, 1, 2, ...], (), 1),
    "everything": lambda array: operator.setitem(array[...], np.asarray(array) > 4, 1),
    "iteration": lambda array: [operator.setitem(row, 0, 1) for row in array],
    "+=": lambda array: array[3].__iadd__(1),
    "out": lambda array: np.add(array[2], 1, out=array[1]),
    "fill": lambda array: array[2].fill(1),
    "flat": lambda array: operator.setitem(array[2].flat, 0, 1),
    "memoryview": lambda array: memoryview(array[2]).cast("B").__setitem__(0, 1),
    "asarray": lambda array: np.asarray(array).__setitem__(0, 1),
    "reshape": lambda array: operator.setitem(array.reshape(-1, 24), 0, 1),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_them_raise(name: str) -> None:
    ours, plain = pair_of()
    with pytest.raises((ValueError, TypeError), match=r"read-?only"):
        WRITES[name](ours[0])
    assert_same(ours, plain)


@pytest.mark.parametrize("read", [np.asarray, lambda a: a[...], lambda a: a[2], lambda a: a[1:, 0], lambda a: a.T])
def test_they_do_not_change_with_the_array(read: Callable[[Any], Any]) -> None:
    (array, *_), _ = pair_of()
    part = read(array)
    before = part.copy()
    array[...] = 100
    array[2] = 101
    np.testing.assert_array_equal(part, before)


def test_tensors_of_copies_come_without_a_warning() -> None:
    ours, plain = pair_of()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        th.tensor(ours[0][2])[...] = 1
        th.as_tensor(ours[0][2].copy())[...] = 1
        th.as_tensor(ours[0][[2, 3]])[...] = 1
    assert_same(ours, plain)


# -- copies in NumPy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda array: array[[0, 2]],
        lambda array: array[np.array([0, 1]), np.array([0, 2]), :],
        lambda array: array[np.array([True, False, True, False, False])],
        lambda array: array[2].copy(),
        lambda array: np.array(array[2]),
        lambda array: copy.copy(array[2]),
        lambda array: copy.deepcopy(array[2]),
        lambda array: pickle.loads(pickle.dumps(array[2], protocol=4)),
        lambda array: np.array(array),
        lambda array: np.array(array, dtype=np.float32),
        lambda array: array.astype(np.float32),
        lambda array: array / 255,
        lambda array: np.concatenate([array, array]),
    ],
)
def test_copies_are_plain_and_writable(make: Change) -> None:
    ours, plain = pair_of()
    result, expected = make(ours[0]), make(plain[0])
    assert type(result) is np.ndarray
    assert_same([result], [expected])
    result[...] = 1
    assert_same(ours, plain)


# -- assignments ---------------------------------------------------------------------------------------------


def test_a_damaged_item_is_named_when_a_part_of_it_is_written() -> None:
    array = CompressedArray((3, 2, 4), codec="rle")
    array[:] = 3
    damage(array, 2, 1)
    with pytest.raises(ValueError, match=r"slot \(2, 1\)"):
        array[1:, :, 1] = 5
    assert (array[1] == 3).all()
    array[2, 1] = 5
    assert (array[2, 1] == 5).all()


def test_shuffling_rows_keeps_all_of_them() -> None:
    ours, plain = pair_of()
    random.Random(3).shuffle(ours[0])
    expected = [*map(np.copy, plain[0])]
    random.Random(3).shuffle(expected)
    plain[0][...] = expected
    assert_same(ours, plain)

"""Writes through what was read reach the array or raise, as with an ndarray; they are never lost."""

from __future__ import annotations

import contextlib
import copy
import io
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
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from arrays.pairs import ENVS, KINDS, Change, assert_same, iadd, pair_of
from sb3_compressed import CompressedArray
from sb3_compressed.arrays.write_through import READ_ONLY_ADVICE, WriteThroughArray
from sb3_compressed.errors import LossyDtypeWarning

RELAXED = examples(400)


# -- any write -----------------------------------------------------------------------------------------------


def indices(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Draw indices of any kind."""
    fancy: list[st.SearchStrategy[Any]] = [st.just(...)]
    if shape and min(shape) > 0:
        fancy += [
            npst.arrays(bool, shape[:1]),
            npst.arrays(bool, shape),
            npst.integer_array_indices(shape[: min(len(shape), 3)]),
            st.lists(st.integers(-shape[0], shape[0] - 1), min_size=1, max_size=3),
        ]
    if len(shape) > 1 and min(shape) > 0:
        numbers = st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=3)
        fancy.append(st.tuples(numbers, st.just(...), st.integers(-1, 0)))
    return st.one_of(npst.basic_indices(shape, allow_newaxis=True, max_dims=8), *fancy)


#: What gives a view of an ndarray, or at times a copy.
VIEWS: dict[str, Change] = {
    "T": lambda array: array.T,
    "reversed": lambda array: array[::-1],
    "ravel": lambda array: array.ravel(),
    "flattened": lambda array: array.reshape(-1),
    "flattened items": lambda array: array.reshape(*array.shape[:1], -1),
    "swapaxes": lambda array: array.swapaxes(0, -1),
    "swapped leading axes": lambda array: array.swapaxes(0, min(1, array.ndim - 1)),
    "np.swapaxes": lambda array: np.swapaxes(array, 0, -1),
    "np.squeeze": lambda array: np.squeeze(array),
    "np.flip": lambda array: np.flip(array),
    "np.moveaxis": lambda array: np.moveaxis(array, 0, -1),
    "np.split": lambda array: np.array_split(array, 2)[0],
    "first of iteration": lambda array: next(iter(array)),
    "bytes": lambda array: array.view(array.dtype),
    "asarray": lambda array: np.asarray(array),
    "asanyarray": lambda array: np.asanyarray(array),
    "newaxis": lambda array: np.expand_dims(array, 0),
}


def _imul(array: Any) -> None:
    array *= array


#: What writes to an ndarray.
WRITES: dict[str, Change] = {
    "+=": iadd,
    "*=": _imul,
    "fill": lambda array: array.fill(7),
    "copyto": lambda array: np.copyto(array, 7, casting="unsafe"),
    "copyto where": lambda array: np.copyto(array, 7, casting="unsafe", where=np.asarray(array) > 3),
    "out": lambda array: np.add(array, 1, out=array),
    "out where": lambda array: np.add(array, 1, out=array, where=np.array(array) > 3),
    "at": lambda array: np.add.at(array, [0, 0], 1),
    "clip": lambda array: array.clip(2, 3, out=array),
    "np.clip": lambda array: np.clip(array, 2, 3, out=array),
    "take": lambda array: np.take(np.arange(9, dtype=array.dtype), np.array(array).astype(int), out=array),
    "sort": lambda array: array.sort(),
    "partition": lambda array: array.partition(0),
    "put": lambda array: array.put([0], 7),
    "np.put": lambda array: np.put(array, [0], 7),
    "np.place": lambda array: np.place(array, np.array(array) > 3, [7]),
    "np.putmask": lambda array: np.putmask(array, np.array(array) > 3, 7),
    "put_along_axis": lambda array: np.put_along_axis(array, np.zeros(array.shape, int), 7, axis=-1),
    "fill_diagonal": lambda array: np.fill_diagonal(array, 7),
    "flat": lambda array: operator.setitem(array.flat, 0, 7),
    "flat slice": lambda array: operator.setitem(array.flat, slice(None), 7),
    "set flat": lambda array: setattr(array, "flat", 7),
    "set real": lambda array: setattr(array, "real", 7),
    "setfield": lambda array: array.setfield(7, array.dtype),
    "byteswap": lambda array: array.byteswap(inplace=True),
    "shuffle": lambda array: np.random.default_rng(0).shuffle(array),
    "shift": lambda array: operator.setitem(array, slice(1, None), array[:-1]),
    "sum out": lambda array: np.sum(np.ones((2, *array.shape), array.dtype), axis=0, out=array),
    "cumsum out": lambda array: np.cumsum(np.array(array), axis=0, out=array, dtype=array.dtype),
    "concatenate out": lambda array: np.concatenate([np.array(array)[1:], np.array(array)[:1]], out=array),
    "writeable": lambda array: _write_after_setflags(array),
    "memoryview": lambda array: memoryview(array).cast("B").__setitem__(0, 7),
    "nditer": lambda array: _write_with_nditer(array),
}


def _write_after_setflags(array: Any) -> None:
    array.setflags(write=True)
    np.asarray(array)[...] = 7


def _write_with_nditer(array: Any) -> None:
    elements: Any
    with np.nditer(array, op_flags=[["readwrite"]]) as elements:
        for element in elements:
            element[...] = 7


@RELAXED
@given(data=st.data())
def test_any_write_through_any_view_is_that_of_an_ndarray_or_raises(data: st.DataObject) -> None:
    item_shape = data.draw(st.sampled_from([(), (5,), (4, 2, 3), (2, 0)]))
    kind = data.draw(st.sampled_from(KINDS if 0 not in item_shape else KINDS[:2]))
    ours, plain = pair_of(kind, item_shape, data.draw(st.sampled_from(("u1", "f4", ">i4", "?"))))
    view, expected = ours[0], plain[0]
    for _ in range(data.draw(st.integers(0, 3))):
        if isinstance(expected, np.ndarray) and expected.ndim:
            if data.draw(st.booleans()):
                index = data.draw(indices(expected.shape))
                change: Change = operator.itemgetter(index)
            else:
                change = VIEWS[data.draw(st.sampled_from([*VIEWS]))]
            try:
                changed = change(expected)
            except (ValueError, IndexError, TypeError, StopIteration):
                continue
            try:
                view = change(view)
            except IndexError as error:  # the one kind of index that is refused, as it spans rows and elements
                if "inside of observations" not in str(error) and "boolean mask" not in str(error):
                    raise
                return
            expected = changed
            assert np.array_equal(np.asarray(view), expected)
    if not isinstance(expected, np.ndarray) or not expected.ndim:
        return
    if data.draw(st.booleans()):
        index = data.draw(indices(expected.shape))
        value = data.draw(st.sampled_from([7, np.ones(np.shape(expected[index]), expected.dtype), expected.copy()]))
        write: Change = lambda array: operator.setitem(array, index, value)  # noqa: E731
    else:
        name = data.draw(st.sampled_from([*WRITES]))
        if name == "at" and type(view) is np.ndarray:
            return  # NumPy itself writes to read-only arrays there
        write = WRITES[name]
    before = copy.deepcopy(plain)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of shuffling what is no sequence
            write(view)
    except (ValueError, IndexError, TypeError, AttributeError, BufferError, RuntimeError):
        assert_same(ours, before)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(expected)
    assert_same(ours, plain)
    if isinstance(view, WriteThroughArray):
        assert np.array_equal(view, expected)


# -- what is written through -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "write",
    [
        lambda array: operator.setitem(array[3], 1, 9),
        lambda array: operator.setitem(array[-1], slice(None), 9),
        lambda array: operator.setitem(array[np.int64(1)][2][1], (0, 2), 9),
        lambda array: operator.setitem(array[:5], (slice(None), 0), 9),
        lambda array: operator.setitem(array[::-2][:, 1:], (..., 1), 9),
        lambda array: operator.setitem(array[None, 2:][0], [0, 1], 9),
        lambda array: operator.setitem(array[...], np.asarray(array) > 4, 9),
        lambda array: operator.setitem(array[2].T, 1, 9),
        lambda array: operator.setitem(array[2].reshape(ENVS, -1), (1, 7), 9),
        lambda array: operator.setitem(array[1:3].reshape(-1), slice(5, 40), 9),
        lambda array: operator.setitem(array.reshape(-1, 24), (slice(2, 7), slice(3)), 9),
        lambda array: operator.setitem(array.transpose(1, 0, 2, 3, 4), (1, 2), 9),
        lambda array: operator.setitem(array[1], slice(1, None), array[1][:-1]),
        lambda array: [operator.setitem(row, 0, 9) for row in array],
        lambda array: array[2].fill(6),
        lambda array: np.copyto(array[2], 9),
        lambda array: np.copyto(array, 6, where=np.asarray(array) < 2),
        lambda array: np.copyto(array, np.arange(3, dtype=np.uint8)),
        lambda array: np.add(array[2], 1, out=array[1]),
        lambda array: np.add.at(array[2], [0, 0], 1),
        lambda array: iadd(array[2:4]),
        iadd,
        lambda array: array.fill(4),
        lambda array: operator.setitem(array, (3, 0, 1), 9),
        lambda array: operator.setitem(array, (3, 0, 1, 1, 2), 9),
        lambda array: operator.setitem(array, (..., 0), 9),
        lambda array: operator.setitem(array, ([4, 0], [0, 2], slice(1, 3)), 9),
        lambda array: operator.setitem(array, ([4, 4], slice(None), slice(1)), np.ones((2, ENVS, 1, 2, 3), np.uint8)),
    ],
)
def test_a_write_through_a_view_reaches_the_array(kind: str, write: Change) -> None:
    ours, plain = pair_of(kind)
    before = plain[0].copy()
    write(ours[0])
    write(plain[0])
    assert not np.array_equal(plain[0], before)
    assert_same(ours, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_through_a_view_keeps_what_others_wrote_since(kind: str) -> None:
    ours, plain = pair_of(kind)
    views = [array[1:4] for array in (ours[0], plain[0])]
    for array, view in zip((ours[0], plain[0]), views, strict=True):
        array[2] = 8
        view[:, 1] = 5
        array[3] = 2
        view += 1
    assert_same(ours, plain)
    assert np.array_equal(*views)


def test_a_view_is_a_snapshot_until_it_is_written_through() -> None:
    [array, _], _ = pair_of("compressed")
    view = array[1]
    before = view.copy()
    array[1] = 8
    assert np.array_equal(view, before)
    view[0, 0, 0, 0] = 9
    assert (view[0] == array[1, 0]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.5, 300, -1, None, "x", np.zeros((2, 2, 3))])
def test_a_refused_write_through_a_view_changes_nothing(kind: str, value: Any) -> None:
    ours, plain = pair_of(kind)
    view = ours[0][2]
    before = view.copy()
    with pytest.raises((ValueError, TypeError)):
        view[1] = value
    assert np.array_equal(view, before)
    assert_same(ours, plain)


def test_a_view_of_a_narrower_elem_type_shows_what_was_stored() -> None:
    with pytest.warns(LossyDtypeWarning):
        array = CompressedArray((2, 1, 4), np.float32, elem_type=np.uint8)
    view = array[1]
    view[0, :2] = [7.5, 1000]
    assert view.tolist() == array[1].tolist() == [[7, 255, 0, 0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["sort", "np.put", "np.place", "take", "byteswap", "concatenate out", "partition"])
def test_read_only_results_explain_how_to_write(kind: str, name: str) -> None:
    ours, plain = pair_of(kind)
    for array in (ours[0][2], ours[0]):
        with pytest.raises(ValueError, match=r"read-only: this array is a decoded copy .* array.copy\(\) first"):
            WRITES[name](array)
    assert_same(ours, plain)


# -- what is no view -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "make",
    [
        lambda array: array[[0, 2]],
        lambda array: array[np.array([0, 1]), np.array([0, 2]), :],
        lambda array: array[np.array([True, False, True, False, False])],
        lambda array: array[2:4][[0, 1]],
        lambda array: array[2].copy(),
        lambda array: array[2].astype(np.float32),
        lambda array: array[2].flatten(),
        lambda array: array[2].take([0, 1], axis=0),
        lambda array: array[2] + 1,
        lambda array: -array[2],
        lambda array: array[2] / 255,
        lambda array: array[2].sum(axis=0),
        lambda array: array[2].mean(axis=0),
        lambda array: array[2].max(axis=0),
        lambda array: np.max(array[2], axis=0),
        lambda array: np.array(array[2]),
        lambda array: np.concatenate([array[2], array[3]]),
        lambda array: np.stack([array[2], array[3]]),
        lambda array: np.where(array[2] > 3, array[2], 0),
        lambda array: np.repeat(array[2], 2, axis=0),
        lambda array: np.sort(array[2]),
        lambda array: copy.copy(array[2]),
        lambda array: copy.deepcopy(array[2]),
        lambda array: pickle.loads(pickle.dumps(array[2])),
        lambda array: pickle.loads(pickle.dumps(array[2], protocol=5)),
        lambda array: np.array(array),
        lambda array: np.array(array, dtype=np.float32),
        lambda array: array.astype(np.float32),
        lambda array: array.flatten(),
        lambda array: array / 255,
    ],
)
def test_copies_are_plain_and_writable(kind: str, make: Change) -> None:
    ours, plain = pair_of(kind)
    result, expected = make(ours[0]), make(plain[0])
    assert type(result) is np.ndarray
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert result.tobytes() == expected.tobytes()
    result[...] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        th.from_numpy(result)[...] = 2
    assert_same(ours, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_a_view_is_a_copy_or_comes_with_torchs_warning(kind: str) -> None:
    ours, plain = pair_of(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        th.tensor(ours[0][2])[...] = 1
        th.as_tensor(ours[0][2].copy())[...] = 1
    assert_same(ours, plain)
    with pytest.raises(BufferError, match=r"read-only.*array.copy\(\) first"):
        th.utils.dlpack.from_dlpack(ours[0][2])
    assert not ours[0][2].flags.writeable  # which torch warns of, once in a process
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
        ours[0][2].flags.writeable = True
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
        np.asarray(ours[0][2]).setflags(write=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_is_an_ndarray(kind: str) -> None:
    ours, plain = pair_of(kind)
    view, expected = ours[0][1:3], plain[0][1:3]
    assert isinstance(view, np.ndarray)
    assert type(np.asarray(view)) is np.ndarray
    assert (view.shape, view.dtype, view.strides, view.nbytes) == (
        expected.shape, expected.dtype, expected.strides, expected.nbytes,
    )  # fmt: skip
    assert type(view[0, 0, 0, 0, 0]) is type(expected[0, 0, 0, 0, 0])
    assert type(view.sum()) is type(expected.sum())
    for array in (view, expected):
        file = io.BytesIO()
        np.save(file, array)
        file.seek(0)
        assert np.array_equal(np.load(file), expected)


def test_a_view_of_a_corrupt_slot_names_it() -> None:
    array = CompressedArray((3, 2, 4), codec="rle")
    array[:] = 3
    view = array[1:]
    array.slots[2, 1] = b"!"
    with pytest.raises(ValueError, match=r"corrupt payload in slot \(2, 1\)"):
        view[1, 1] = 5
    view[0, 1] = 5
    assert (array[1, 1] == 5).all()


# -- shapes, values and older views --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [np.squeeze, lambda a, *axis: a.squeeze(*axis)], ids=["function", "method"])
@pytest.mark.parametrize("index", [np.s_[:, :1], np.s_[2:3, 1:2], np.s_[2:3, 1:2, :1, :1, :1], np.s_[:]])
def test_squeezed_arrays_write_through(index: Any, function: Callable[..., Any], kind: str) -> None:
    ours, plain = pair_of(kind)
    for array in (ours[0], plain[0]):
        squeezed = function(array[index])
        squeezed[...] = 5
        squeezed += 1
    assert function(ours[0][index]).shape == function(plain[0][index]).shape
    assert_same(ours, plain)
    for array in (ours[0], plain[0]):
        function(array[:, :1], 1)[0] = 9
        function(array[2:3, 1:2], (0, -4))[1] = 10
    assert_same(ours, plain)
    with pytest.raises(ValueError, match="size not equal to one"):
        function(ours[0][:2], 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [np.s_[1, 0, 0, 1, 2, ...], np.s_[..., 1, 0, 0, 1, 2], np.s_[2, 1, ..., 0, 1, 2]])
def test_arrays_without_axes_write_through_and_scalars_are_scalars(index: Any, kind: str) -> None:
    ours, plain = pair_of(kind)
    for array in (ours[0], plain[0]):
        one = array[index]
        assert isinstance(one, np.ndarray)
        assert one.shape == ()
        one += 5
        assert isinstance(array[tuple(part for part in index if part is not ...)], np.generic)
    assert_same(ours, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_items_without_axes_write_through(kind: str) -> None:
    ours, plain = pair_of(kind, item_shape=())
    for array in (ours[0], plain[0]):
        one = array[1, 2, ...]
        one += 5
        assert isinstance(array[1, 2], np.generic)
    assert_same(ours, plain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", [np.asarray, lambda a: a[...], lambda a: a[2], lambda a: a[1:, 0], lambda a: a.T])
def test_decoded_arrays_do_not_change_with_the_array(read: Callable[[Any], Any], kind: str) -> None:
    (array, *_), _ = pair_of(kind)
    part = read(array)
    before = part.copy()
    array[...] = 100
    array[2] = 101
    np.testing.assert_array_equal(part, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_writes_that_ignore_read_only_memory_do_not_reach_any_array(kind: str) -> None:
    ours, plain = pair_of(kind)
    reads: list[Callable[[], Any]] = [
        lambda: np.asarray(ours[0]),
        lambda: np.asarray(ours[0][2]),
        lambda: np.asarray(ours[0][...]),
    ]
    for read in reads:
        with contextlib.suppress(ValueError):  # NumPy notices that it is read-only for some indices only
            np.add.at(read(), np.arange(2), 1)
        th.as_tensor(read()).add_(1)
    assert_same(ours, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_shuffling_rows_keeps_all_of_them(kind: str) -> None:
    ours, plain = pair_of(kind)
    random.Random(3).shuffle(ours[0])
    expected = [*map(np.copy, plain[0])]
    random.Random(3).shuffle(expected)
    plain[0][...] = expected
    assert_same(ours, plain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [0, -1, (1, 2), (1, 2, 0), slice(2), [0, 3], ([0, 1], [1, 2])])
@pytest.mark.parametrize("value", [0.5, 256, -1, np.nan, np.full((4, 2, 3), 300)])
def test_values_that_an_integer_array_cannot_hold_are_refused(value: Any, index: Any, kind: str) -> None:
    ours, plain = pair_of(kind)
    if np.ndim(value) and index == (1, 2, 0):
        value = value[0]
    with pytest.raises(ValueError, match="do not fit an array of dtype uint8"):
        ours[0][index] = value
    assert_same(ours, plain)
    for array in (ours[0], plain[0]):
        array[index] = np.float64(7)
    assert_same(ours, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_values_from_an_older_view_are_those_that_it_shows(kind: str) -> None:
    (array, *_), _ = pair_of(kind)
    view = array[1:4]
    shown = view.copy()
    array[...] = 50
    view[1:] = view[:-1]
    np.testing.assert_array_equal(array[2:4], shown[:-1])
    np.testing.assert_array_equal(view[1:], shown[:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_operands_from_an_older_view_are_those_that_it_shows(kind: str) -> None:
    (array, *_), _ = pair_of(kind)
    view = array[1:4]
    shown = view.copy()
    array[...] = 50
    view[1:] += view[:-1]  # what is changed in place is read again
    np.testing.assert_array_equal(array[2:4], 50 + shown[:-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [lambda a: a.sort(), lambda a: np.put(a, [0], 1), lambda a: np.put(a[1], [0], 1)])
def test_an_error_gives_its_advice_once(write: Callable[[Any], Any], kind: str) -> None:
    (array, *_), _ = pair_of(kind)
    with pytest.raises(ValueError, match="read-only") as caught:
        write(array)
    assert str(caught.value).count(READ_ONLY_ADVICE) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_reversed_twice_is_not_written_to_a_copy_when_it_is_reshaped(kind: str) -> None:
    ours, plain = pair_of(kind)
    for change in (lambda array: array.ravel(), lambda array: array.reshape(-1), np.ravel):
        view = change(ours[0][::-1][::-1])
        with pytest.raises(ValueError, match="read-only"):
            view += 1
    assert_same(ours, plain)


def test_a_copy_that_keeps_the_class_is_an_ndarray_of_its_own() -> None:
    [array, _], [plain, _] = pair_of("compressed")
    copied = np.array(array[1], subok=True)
    assert type(copied) is WriteThroughArray
    copied[0] = 77
    th.utils.dlpack.from_dlpack(copied)[1] = 78
    assert (copied[0] == 77).all()
    assert (copied[1] == 78).all()
    np.testing.assert_array_equal(array[1], plain[1])

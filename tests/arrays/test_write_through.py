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
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sb3_compressed import CompressedArray
from sb3_compressed.arrays import reductions
from sb3_compressed.arrays.write_through import READ_ONLY_ADVICE, WriteThroughArray
from sb3_compressed.errors import LossyDtypeWarning

RELAXED = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])

ROWS, ENVS = 5, 3
KINDS = ("compressed", "raw")


def pair_of(kind: str, item_shape: tuple[int, ...] = (4, 2, 3), dtype: str = "u1") -> tuple[list[Any], list[Any]]:
    """Return arrays of ours and the ndarrays they stand for, the one of ``kind`` first; row 3 was never written."""
    shape = (ROWS, ENVS, *item_shape)
    ours: list[Any] = [CompressedArray(shape, dtype, "none" if kind == "raw" else "auto")]
    ours.append(ours[0].empty_like())
    plain = [np.zeros(shape, dtype) for _ in ours]
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 9, shape[1:]).astype(dtype)
    for row in (0, 1, 2, 4):
        for array, expected in zip(ours, plain, strict=True):
            array[row] = expected[row] = obs
            obs = np.roll(obs, -1, axis=-1) if row % 2 else rng.integers(0, 9, shape[1:]).astype(dtype)
    return ours, plain


def assert_same(ours: Any, plain: Any) -> None:
    """Hold that all arrays are the same, bit for bit."""
    for array, expected in zip(ours, plain, strict=True):
        actual = np.array(array)
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        assert actual.tobytes() == expected.tobytes()


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


Change = Callable[[Any], Any]

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


def _iadd(array: Any) -> Any:
    array += 1
    return array


def _imul(array: Any) -> None:
    array *= array


#: What writes to an ndarray.
WRITES: dict[str, Change] = {
    "+=": _iadd,
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
        lambda array: _iadd(array[2:4]),
        _iadd,
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
def test_what_cannot_be_written_through_says_what_to_do(kind: str, name: str) -> None:
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


# -- NumPy's functions -------------------------------------------------------------------------------------------


FUNCTIONS: dict[str, Change] = {
    "mean": lambda a: a.mean(),
    "mean of an axis": lambda a: a.mean(axis=0),
    "mean of axes": lambda a: np.mean(a, axis=(0, 1), keepdims=True),
    "sum": lambda a: a.sum(),
    "np.sum": lambda a: np.sum(a, axis=-1, dtype=np.float64),
    "std": lambda a: np.std(a, axis=(0, 1)),
    "var": lambda a: a.var(ddof=1),
    "min": lambda a: a.min(),
    "max": lambda a: np.max(a, axis=0),
    "amax": lambda a: np.amax(a),
    "any": lambda a: np.any(a[3] != 0),
    "all": lambda a: a.all(axis=0),
    "argmax": lambda a: a.argmax(),
    "median": lambda a: np.median(a),
    "quantile": lambda a: np.quantile(a, 0.3),
    "prod": lambda a: a.prod(),
    "ptp": lambda a: np.ptp(a),
    "cumsum": lambda a: np.cumsum(a, axis=0),
    "nonzero": lambda a: np.array(np.nonzero(a)),
    "count_nonzero": lambda a: np.count_nonzero(a),
    "unique": lambda a: np.unique(a.reshape(-1, 24), axis=0),
    "histogram": lambda a: np.histogram(a)[0],
    "norm": lambda a: np.linalg.norm(a[1] - a[0]),
    "astype": lambda a: a.astype(np.float64),
    "T": lambda a: a.T,
    "transpose": lambda a: a.transpose(1, 0, 2, 3, 4),
    "np.transpose": lambda a: np.transpose(a),
    "/": lambda a: a / 255,
    "reflected /": lambda a: 255 / (a + 1),
    "-": lambda a: a - a,
    "==": lambda a: a == 3,
    "np.zeros <": lambda a: np.zeros(3) < a,
    "exp": lambda a: np.exp(a),
    "reduce": lambda a: np.add.reduce(a),
    "concatenate": lambda a: np.concatenate([a, a]),
    "concatenate parts": lambda a: np.concatenate([a[:3].reshape(3, -1), a[1:4].reshape(3, -1)], axis=1),
    "stack": lambda a: np.stack([a, a], axis=1),
    "vstack": lambda a: np.vstack((a, np.ones((1, ENVS, 4, 2, 3), np.uint8))),
    "where": lambda a: np.where(a > 4, a, 0),
    "clip": lambda a: np.clip(a, 2, 4),
    "pad": lambda a: np.pad(np.squeeze(a[:, 0]), ((0, 0), (0, 0), (0, 0), (0, 1))),
    "squeeze": lambda a: np.squeeze(a),
    "flatten": lambda a: a.flatten(),
    "ravel": lambda a: a.ravel(),
    "np.ravel": lambda a: np.ravel(a),
    "reshape": lambda a: a.reshape(ROWS, -1),
    "reshape items": lambda a: a.reshape(ROWS * ENVS, 8, 3),
    "reshape leading": lambda a: a.reshape(-1, 4, 2, 3),
    "reshape order": lambda a: a.reshape(-1, 4, 2, 3, order="F"),
    "np.reshape": lambda a: np.reshape(a, (-1, 24)),
    "swapaxes": lambda a: a.swapaxes(0, 2),
    "swap_and_flatten": lambda a: a.swapaxes(0, 1).reshape(ROWS * ENVS, 4, 2, 3),
    "np.swapaxes": lambda a: np.swapaxes(a, 0, 1),
    "copy": lambda a: a.copy(order="C"),
    "np.copy": lambda a: np.copy(a),
    "view": lambda a: a.view(np.int8),
    "take": lambda a: a.take([0, 2], axis=0),
    "repeat": lambda a: np.repeat(a, 2, axis=0),
    "flip": lambda a: np.flip(a, axis=0),
    "roll": lambda a: np.roll(a, 1, axis=0),
    "tolist": lambda a: a.tolist(),
    "tobytes": lambda a: np.frombuffer(a.tobytes(), np.uint8),
    "item": lambda a: a.item(7),
    "list": lambda a: list(a),
    "sorted": lambda a: np.sort(a, axis=0),
    "len": lambda a: len(a),
    "in": lambda a: (3 in a, 77 in a),
    "shape": lambda a: np.shape(a),
    "zeros_like": lambda a: np.zeros_like(a),
    "ones_like": lambda a: np.ones_like(a, dtype=np.float32),
    "asarray": lambda a: np.asarray(a),
    "asarray float": lambda a: np.asarray(a, dtype=np.float32),
    "ascontiguousarray": lambda a: np.ascontiguousarray(a),
    "array_equal": lambda a: np.array_equal(a, np.asarray(a)),
    "einsum": lambda a: np.einsum("ij...->j...", a),
    "broadcast_to": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "apply": lambda a: np.apply_along_axis(np.sum, 0, a),
    "moveaxis": lambda a: np.moveaxis(a, 0, 1),
    "tensor": lambda a: th.tensor(a[:3], dtype=th.float32).numpy(),
    "as_tensor": lambda a: th.as_tensor(a[:3].copy()).numpy(),
    "fancy assignment": lambda a: [a.__setitem__([0, 1], a[[2, 3]]), np.asarray(a)][1],
    "slice assignment": lambda a: [a.__setitem__(slice(0, 2), a[2:4]), np.asarray(a)][1],
    "augmented item": lambda a: [a.__setitem__(0, _iadd(a[0])), np.asarray(a)][1],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_code_for_ndarrays_works(kind: str, name: str) -> None:
    ours, plain = pair_of(kind)
    result, expected = np.asarray(FUNCTIONS[name](ours[0])), np.asarray(FUNCTIONS[name](plain[0]))
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert result.tobytes() == expected.tobytes()
    assert_same(ours, plain)


LARGE: dict[str, Change] = {
    "sum": lambda a: a.sum(),
    "sum of an axis": lambda a: np.sum(a, axis=0),
    "sum of an inner axis": lambda a: a.sum(axis=-1, keepdims=True),
    "sum of axes": lambda a: a.sum(axis=(0, -1)),
    "kept axes": lambda a: a.sum(axis=(0, 2), keepdims=True),
    "mean": lambda a: a.mean(),
    "mean of an axis": lambda a: a.mean(0),
    "mean of items": lambda a: np.mean(a, axis=(2, 3, 4)),
    "std": lambda a: a.std(axis=(0, 1)),
    "var": lambda a: np.var(a, ddof=1),
    "var of a negative axis": lambda a: a.var(axis=-5),
    "min": lambda a: a.min(),
    "max": lambda a: np.max(a, axis=(0, 1)),
    "any": lambda a: a.any(axis=0),
    "all": lambda a: np.all(a),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", ["u1", "?", "i4", "f2", "f4", "f8"])
@pytest.mark.parametrize("part_nbytes", [1, 200])
def test_large_arrays_are_reduced_in_parts(
    name: str, dtype: str, part_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reductions, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(reductions, "PART_NBYTES", part_nbytes)
    [array, _], [plain, _] = pair_of("compressed", dtype=dtype)
    result, expected = LARGE[name](array), LARGE[name](plain)
    assert (np.shape(result), result.dtype, type(result)) == (np.shape(expected), expected.dtype, type(expected))
    if dtype.startswith("f") or name.startswith(("mean", "std", "var")):
        np.testing.assert_allclose(result, expected, rtol=2e-3 if dtype == "f2" else 1e-6)
    else:
        assert np.array_equal(result, expected)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda a: a.sum(dtype=np.int8), TypeError, r"takes only axis, keepdims; use it on parts, as in .*\.sum\("),
        (lambda a: a.max(0, np.zeros(3)), TypeError, "takes only axis, keepdims"),
        (lambda a: np.std(a, where=[True]), TypeError, "takes only axis, ddof, keepdims"),
        (lambda a: a.mean(axis=5), ValueError, "axis 5 is out of bounds for array of dimension 5"),
    ],
)
def test_what_cannot_be_done_in_parts_is_refused(
    use: Change, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reductions, "WHOLE_NBYTES", 0)
    with pytest.raises(error, match=message):
        use(pair_of("compressed")[0][0])


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_saved_as_ndarrays_are(kind: str, tmp_path: Path) -> None:
    ours, plain = pair_of(kind)
    np.save(tmp_path / "array.npy", ours[0])
    np.savez_compressed(tmp_path / "arrays.npz", obs=ours[0])
    ours[0].tofile(tmp_path / "array.bin")
    assert_same([np.load(tmp_path / "array.npy"), np.load(tmp_path / "arrays.npz")["obs"]], [plain[0]] * 2)
    assert (tmp_path / "array.bin").read_bytes() == plain[0].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_has_no_truth_value(kind: str) -> None:
    with pytest.raises(ValueError, match="ambiguous"):
        bool(pair_of(kind)[0][0])


@pytest.mark.parametrize("kind", KINDS)
def test_asarray_is_read_only_and_array_a_copy(kind: str) -> None:
    ours, plain = pair_of(kind)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(ours[0])[0] = 1
    np.array(ours[0])[0] = 1
    assert_same(ours, plain)


@pytest.mark.parametrize("name", ["strides", "flags", "data", "ctypes", "base", "resize", "setflags"])
def test_what_belongs_to_an_ndarrays_memory_is_refused(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no '{name}', since its memory .* np\.array\(array\)"):
        getattr(pair_of("compressed")[0][0], name)


HUGE = (10**7, 4, 4, 84, 84)


@pytest.mark.parametrize(
    "use",
    [
        lambda array: array[:],
        lambda array: array[: len(array) - 1],
        lambda array: np.asarray(array),
        lambda array: array / 255,
        lambda array: np.concatenate([array, array]),
        lambda array: array.reshape(-1, 84),
        lambda array: array.astype(np.float32),
        lambda array: np.save("array.npy", array),
        lambda array: array.copy()[np.arange(len(array))],
        lambda array: array.T,
    ],
)
def test_what_does_not_fit_into_memory_says_what_to_do(use: Change, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    array = CompressedArray(HUGE)
    with pytest.raises(MemoryError, match=r"observations takes .* GB .* as in array\[start : start \+ 1000\]"):
        use(array)


def test_an_array_larger_than_memory_is_still_indexed_and_written_through() -> None:
    array = CompressedArray(HUGE)
    array[-1][1][2] = 7
    array[5, 0, 1, 2, 3] = 8
    assert (array[-1, 1].sum(), array[5, 0].sum()) == (7 * 84 * 84, 8)
    assert np.zeros_like(array[0]).shape == array.shape[1:]


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
def test_what_was_read_does_not_change_with_the_array(read: Callable[[Any], Any], kind: str) -> None:
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
def test_a_mask_over_elements_is_written_as_the_error_says(kind: str) -> None:
    ours, plain = pair_of(kind)
    mask = plain[0] > 4
    if isinstance(ours[0], CompressedArray):
        with pytest.raises(IndexError, match=r"np\.copyto\(array, value, where=mask\)"):
            ours[0][mask] = 3
    np.testing.assert_array_equal(np.asarray(ours[0])[mask], plain[0][mask])
    np.copyto(ours[0], 3, where=mask)
    plain[0][mask] = 3
    assert_same(ours, plain)


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

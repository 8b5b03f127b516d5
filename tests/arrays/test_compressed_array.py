"""``CompressedArray`` compared with a plain ndarray: the same results, or an error with advice."""

from __future__ import annotations

import copy
import functools
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from sb3_compressed import CompressedArray
from sb3_compressed.arrays.frame_layout import FrameStack
from sb3_compressed.codecs import available_codecs, get_codec
from sb3_compressed.errors import CodecError, CorruptPayload, LossyDtypeWarning

RELAXED = examples(400)

ROWS, ENVS = 5, 3

DTYPES = ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ">i4", ">f4")

#: Shapes of items with a frame stack each that fits them.
ITEMS: list[tuple[tuple[int, ...], FrameStack]] = [
    ((), None),
    ((8,), 4),
    ((4, 3), 4),
    ((4, 2, 3), 4),
    ((2, 3, 4), 4),
    ((2, 3, 6), 2),
    ((0, 3), None),
    ((2, 0), 2),
]


def random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return values of which many are equal, so that frames repeat now and then."""
    return rng.integers(0, 2, shape).astype(dtype)


def filled_pair(
    item_shape: tuple[int, ...] = (4, 2, 3), frame_stack: FrameStack = 4, dtype: str = "u1", codec: str = "rle"
) -> tuple[CompressedArray, NDArray[Any]]:
    """Return a compressed and a plain array of the same content; row 3 was never written."""
    array = CompressedArray((ROWS, ENVS, *item_shape), dtype, codec, frame_stack)
    plain = np.zeros(array.shape, dtype)
    rng = np.random.default_rng(0)
    for row in (0, 1, 2, 4):
        array[row] = plain[row] = random_values(rng, (ENVS, *item_shape), dtype)
    return array, plain


def assert_same(actual: Any, expected: Any) -> None:
    """Hold that two arrays or scalars agree in shape, dtype and every bit."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert actual.tobytes() == expected.tobytes()


# -- every index ---------------------------------------------------------------------------------------------


def integer_arrays(length: int) -> st.SearchStrategy[Any]:
    """Draw integer arrays and lists of them that index an axis."""
    numbers = st.integers(-length, length - 1)
    shapes = npst.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=4)
    return npst.arrays(np.int64, shapes, elements=numbers) | st.lists(numbers, min_size=1, max_size=4)


ROW_NUMBERS, ENV_NUMBERS = integer_arrays(ROWS), integer_arrays(ENVS)
ROW_MASKS, ENV_MASKS, MASKS = (npst.arrays(bool, shape) for shape in ((ROWS,), (ENVS,), (ROWS, ENVS)))
SOME_ROWS: st.SearchStrategy[Any] = st.integers(-ROWS, ROWS - 1) | st.slices(ROWS)
SOME_ENVS: st.SearchStrategy[Any] = st.integers(-ENVS, ENVS - 1) | st.slices(ENVS)

#: Indices of the two leading axes, as tuples.
LEADS: st.SearchStrategy[tuple[Any, ...]] = st.one_of(
    st.tuples(SOME_ROWS),
    st.tuples(SOME_ROWS, SOME_ENVS),
    st.tuples(ROW_NUMBERS),
    st.tuples(ROW_NUMBERS, SOME_ENVS),
    st.tuples(SOME_ROWS, ENV_NUMBERS),
    npst.integer_array_indices((ROWS, ENVS)),
    st.tuples(ROW_MASKS),
    st.tuples(ROW_MASKS.map(np.ndarray.tolist), SOME_ENVS),
    st.tuples(SOME_ROWS, ENV_MASKS),
    st.tuples(MASKS),
    st.tuples(st.none(), SOME_ROWS),
    st.tuples(ROW_NUMBERS, st.none(), SOME_ENVS),
    st.tuples(st.just(slice(None)), st.none(), ENV_NUMBERS),
)

#: Indices that select whole items.
WHOLE: st.SearchStrategy[Any] = (
    LEADS.map(lambda lead: lead[0] if len(lead) == 1 else lead) | LEADS.map(lambda lead: (*lead, ...)) | st.just(...)
)


@functools.cache
def all_indices(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Draw indices that may go inside the items: basic ones, and slices behind arrays."""
    inside = st.tuples(*map(st.slices, shape[2:]))
    behind = st.builds(lambda lead, rest: (*lead, ..., *rest), LEADS, inside)
    return st.one_of(WHOLE, behind, npst.basic_indices(shape, allow_newaxis=True, max_dims=12))


@RELAXED
@given(data=st.data())
def test_writes_and_reads_equal_those_of_an_ndarray(data: st.DataObject) -> None:
    item_shape, stated = data.draw(st.sampled_from(ITEMS))
    frame_stack: FrameStack = data.draw(st.sampled_from([stated, "auto", None]))
    dtype = data.draw(st.sampled_from(DTYPES))
    array = CompressedArray(
        (ROWS, ENVS, *item_shape), dtype, data.draw(st.sampled_from(available_codecs())), frame_stack
    )
    plain = np.zeros(array.shape, dtype)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for row in range(data.draw(st.integers(0, ROWS))):
        array[row] = plain[row] = random_values(rng, plain.shape[1:], dtype)
    for _ in range(data.draw(st.integers(0, 3))):
        index = data.draw(WHOLE)
        lead_shape = plain[index].shape[: plain[index].ndim - len(item_shape)]
        shape = data.draw(st.sampled_from([(), item_shape, lead_shape + item_shape]))
        array[index] = plain[index] = random_values(rng, shape, dtype)
        index = data.draw(all_indices(plain.shape))
        array[index] = plain[index] = random_values(rng, np.shape(plain[index]), dtype)
    for _ in range(5):
        index = data.draw(all_indices(plain.shape))
        assert_same(array[index], plain[index])
    assert_same(array, plain)


@pytest.mark.parametrize("dtype", ["?", "u1", "f4"])
@pytest.mark.parametrize(
    "index", [np.s_[0, 1, None], np.s_[0, 1, ..., None], np.s_[0, 1, None, None], np.s_[None, 0, 1]]
)
def test_a_single_element_is_written_through_new_axes(index: Any, dtype: str) -> None:
    array, plain = filled_pair((), None, dtype)
    array[index] = plain[index] = 1
    assert_same(array, plain)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", available_codecs())
def test_every_dtype_works_with_every_codec(codec: str, dtype: str) -> None:
    for item_shape, frame_stack in ITEMS:
        array, plain = filled_pair(item_shape, frame_stack, dtype, codec)
        assert_same(array, plain)
        assert_same(array[[4, 0, 3], [1, 1, 2]], plain[[4, 0, 3], [1, 1, 2]])


def test_indexing_of_sb3_matches_an_ndarray() -> None:
    array, plain = filled_pair()
    batch, envs = np.array([4, 0, 0, 3]), np.array([2, 0, 1, 1])
    indices: list[Any] = [(batch, envs, slice(None)), (batch, envs), (batch, 0, slice(None)), slice(3), batch, 2]
    for index in indices:
        assert_same(array[index], plain[index])
    flat, plain_flat = (a.swapaxes(0, 1).reshape(ROWS * ENVS, 4, 2, 3) for a in (array, plain))
    assert_same(flat[batch], plain_flat[batch])


@pytest.mark.parametrize(
    "index", [(0, 0), (-1, 2), (0, 0, 0), (1, 2, -1, 1), (1, 2, 3, 1, 2), (np.array(1), np.array(2))]
)
def test_integer_indices_select_items_and_elements(index: tuple[Any, ...]) -> None:
    array, plain = filled_pair()
    assert_same(array[index], plain[index])
    assert isinstance(array[index], type(plain[index]))


# -- what it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("item_shape", "frame_stack"), ITEMS)
def test_attributes_equal_those_of_an_ndarray(item_shape: tuple[int, ...], frame_stack: FrameStack) -> None:
    array, plain = filled_pair(item_shape, frame_stack, dtype=">f4")
    for attribute in ("shape", "ndim", "dtype", "size", "itemsize"):
        assert getattr(array, attribute) == getattr(plain, attribute)
    assert (len(array), array.raw_nbytes, array.item_shape) == (len(plain), plain.nbytes, item_shape)
    assert (np.shape(array), np.ndim(array), np.size(array)) == (plain.shape, plain.ndim, plain.size)


def test_repr_describes_the_array() -> None:
    array = CompressedArray((5, 2, 8), "f4", "zstd7", frame_stack=4)
    assert repr(array) == "CompressedArray(shape=(5, 2, 8), dtype=float32, codec=Zstd(compresslevel=7))"
    assert (array.codec, array.n_frames, array.elem_type) == (get_codec("zstd7"), 4, np.dtype("f4"))


def test_iteration_yields_rows() -> None:
    array, plain = filled_pair()
    rows = list(array)
    assert len(rows) == ROWS
    for row, expected in zip(rows, plain, strict=True):
        assert_same(row, expected)


def test_conversion_to_an_ndarray_copies() -> None:
    array, plain = filled_pair()
    assert_same(np.asarray(array), plain)
    assert_same(np.array(array, dtype=np.float32), plain.astype(np.float32))
    assert_same(array.__array__(copy=True), plain)
    with pytest.raises(ValueError, match="without a copy"):
        array.__array__(copy=False)


def test_numpys_comparisons_accept_a_compressed_array() -> None:
    array, plain = filled_pair()
    other = plain.copy()
    other[1, 1, 1, 1, 1] += 1
    assert np.array_equal(array, plain)
    assert np.array_equal(plain, array)
    assert not np.array_equal(array, other)
    assert np.allclose(array, plain)
    assert not np.allclose(array, other)
    assert np.isclose(array, other).sum() == plain.size - 1
    np.testing.assert_allclose(array, plain)
    np.testing.assert_array_equal(array, plain)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(array, other)


# -- unwritten, copies, casts --------------------------------------------------------------------------------


@pytest.mark.parametrize(("item_shape", "frame_stack"), ITEMS)
def test_unwritten_reads_as_zeros(item_shape: tuple[int, ...], frame_stack: FrameStack) -> None:
    array = CompressedArray((ROWS, ENVS, *item_shape), np.float32, frame_stack=frame_stack)
    plain = np.zeros(array.shape, np.float32)
    for index in (..., 0, (0, 1), [3, 1], slice(2, 4), (slice(None), 1)):
        assert_same(array[index], plain[index])
    array[1, 2] = plain[1, 2] = 7  # zeros among what is written
    for index in (..., 1, (1, 2), [3, 1]):
        assert_same(array[index], plain[index])


def test_later_changes_of_a_written_value_do_not_change_the_array() -> None:
    array, plain = filled_pair()
    for index in (0, slice(1, 3), (2, 1), [0, 4]):
        source = plain[index].copy()
        array[index] = source
        source += 1
    stack = plain[4].copy()
    for _ in range(2):  # what is remembered for sharing is not the source either
        array[4] = stack
        assert_same(array[4], stack)
        stack += 1
    array[4] = plain[4]
    assert_same(array, plain)


@pytest.mark.parametrize("index", [0, (0, 1), ..., slice(1, 3), [0, 4], (0, 1, 2), 3, (..., slice(1))])
def test_writes_to_a_result_change_the_array_where_numpy_returns_a_view(index: Any) -> None:
    array, plain = filled_pair()
    for each in (array, plain):
        result = each[index]
        result += 1
    assert_same(array, plain)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.zeros((4, 2, 4), np.uint8), ValueError, r"shape \(4, 2, 4\) to items of shape"),
        (np.zeros((ENVS + 1, 4, 2, 3), np.uint8), ValueError, r"shape \(4, 4, 2, 3\) to items of shape \(3, 4, 2, 3\)"),
        (np.zeros((1, ENVS, 4, 2, 3, 1), np.uint8), ValueError, "to items of shape"),
        (0.5, ValueError, "float64 do not fit .* uint8: 0.5 would become 0"),
        (300, ValueError, "int64 do not fit .* uint8: 300 would become 44"),
        (-1, ValueError, "-1 would become 255"),
        (float("nan"), ValueError, "do not fit an array of dtype uint8"),
        (2**70, TypeError, "dtype object"),
        (None, TypeError, "dtype object"),
        ("7", TypeError, "dtype <U1"),
        (1j, TypeError, "dtype complex128"),
        ([[1, 2], [3]], ValueError, "inhomogeneous"),
    ],
)
@pytest.mark.parametrize("index", [0, (0, 1), slice(None), [1, 3]], ids=str)
@pytest.mark.parametrize("written", [False, True])
def test_invalid_input_raises_and_changes_nothing(
    value: Any, error: type[Exception], message: str, index: Any, written: bool
) -> None:
    array, plain = filled_pair()
    if not written:
        array, plain = array.new_sharing_frames(), np.zeros_like(plain)
    if isinstance(value, np.ndarray) and value.shape == (ENVS + 1, 4, 2, 3):
        index = 0
    before, nbytes = array.slots.copy(), array.nbytes
    with pytest.raises(error, match=message):
        array[index] = value
    assert all(now is then for now, then in zip(array.slots.flat, before.flat, strict=True))
    assert array.nbytes == nbytes
    assert_same(array, plain)


@pytest.mark.parametrize("value", [np.int64(255), 255.0, True, [[[7]]], np.float16(3), np.ones((2, 3), ">i8")])
def test_values_that_fit_are_cast_and_broadcast(value: Any) -> None:
    array, plain = filled_pair()
    for index in (0, (1, 2), slice(2, 4), [True, False, False, False, True]):
        array[index] = plain[index] = value
    assert_same(array, plain)


def test_a_row_can_be_encoded_before_it_is_written() -> None:
    array, plain = filled_pair()
    row = np.arange(ENVS * 24).reshape(ENVS, 4, 2, 3)
    [encoded] = array.encode_rows(array.validated_row(row))
    assert_same(array, plain)
    array[3] = np.array(encoded)  # what SB3 hands on is a copy
    array[4] = encoded.reshape(ENVS, 1)
    plain[3] = plain[4] = row
    assert_same(array, plain)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (np.full((ENVS, 4, 2, 3), 256), "do not fit"),
        (np.ones((ENVS, 4, 2, 4)), "cannot write values of shape"),
    ],
)
def test_invalid_rows_raise_before_they_are_encoded(row: NDArray[Any], message: str) -> None:
    array, plain = filled_pair()
    with pytest.raises(ValueError, match=message):
        array.validated_row(row)
    assert_same(array, plain)


def test_object_arrays_are_not_taken_for_encoded_rows() -> None:
    array, plain = filled_pair()
    with pytest.raises(TypeError, match="cannot store values of dtype object"):
        array[0] = array.slots[1].copy()
    assert_same(array, plain)


def test_a_narrower_elem_type_clips_and_reads_in_the_dtype() -> None:
    with pytest.warns(LossyDtypeWarning, match="float32 are stored as uint8") as caught:
        array = CompressedArray((2, 1, 4), np.float32, "none", elem_type=np.uint8)
    assert [warning.filename for warning in caught] == [__file__]
    array[0] = [-3, 7.9, 255, 1e9]
    assert_same(array[0], np.array([[0, 7, 255, 255]], np.float32))
    assert (array.dtype, array.elem_type) == (np.dtype("f4"), np.dtype("u1"))
    assert array.slots[0, 0] == bytes([0, 7, 255, 255])
    with pytest.raises(TypeError, match="dtype <U1"):
        array[0] = "7"


# -- views and copies ----------------------------------------------------------------------------------------


def test_swapaxes_and_reshape_of_leading_axes_are_views() -> None:
    array, plain = filled_pair()
    for new_shape in [(15, 4, 2, 3), (-1, 4, 2, 3), (1, 3, -1, 4, 2, 3)]:
        assert_same(array.reshape(new_shape), plain.reshape(new_shape))
        assert_same(array.reshape(*new_shape), plain.reshape(*new_shape))
    for axes in [(0, 1), (1, 0), (0, 0), (-5, 1)]:
        assert_same(array.swapaxes(*axes), plain.swapaxes(*axes))
    rng = np.random.default_rng(1)
    for view, expected in [
        (array.swapaxes(0, 1), plain.swapaxes(0, 1)),
        (array.reshape(ROWS * ENVS, 4, 2, 3), plain.reshape(ROWS * ENVS, 4, 2, 3)),
    ]:
        for index in (2, slice(0, 2), [1, -1]):
            view[index] = expected[index] = random_values(rng, expected[index].shape, "u1")
    assert_same(array, plain)


def test_a_view_of_an_unwritten_array_writes_into_it() -> None:
    array = CompressedArray((ROWS, ENVS, 4), codec="rle")
    array.swapaxes(0, 1)[2, 1] = 9
    assert_same(array[1], np.array([[0] * 4, [0] * 4, [9] * 4], np.uint8))


@pytest.mark.parametrize(
    "duplicate",
    [CompressedArray.copy, copy.copy, copy.deepcopy, lambda array: pickle.loads(pickle.dumps(array))],
    ids=("copy", "copy.copy", "deepcopy", "pickle"),
)
@pytest.mark.parametrize("frame_stack", [4, "auto", None])
def test_duplicates_are_equal_and_independent(
    duplicate: Callable[[CompressedArray], CompressedArray], frame_stack: FrameStack
) -> None:
    array, plain = filled_pair(frame_stack=frame_stack)
    other = duplicate(array)
    assert (other.codec, other.n_frames, other.nbytes) == (array.codec, array.n_frames, array.nbytes)
    assert_same(other, plain)
    array[0] = 1
    other[1] = 2
    assert_same(other[0], plain[0])
    assert_same(array[1], plain[1])


@pytest.mark.parametrize("shape", [(0, ENVS, 4), (ROWS, 0, 4)])
def test_an_array_without_slots_can_be_read_written_and_copied(shape: tuple[int, ...]) -> None:
    array, plain = CompressedArray(shape), np.zeros(shape, np.uint8)
    array[:] = 3
    assert_same(array, plain)
    for other in (pickle.loads(pickle.dumps(array)), array.copy(), array.new_sharing_frames(), array.swapaxes(0, 1)):
        assert other.size == 0


def test_an_unwritten_array_takes_hardly_any_memory() -> None:
    tracemalloc.start()
    array = CompressedArray((10**7, 4, 4, 84, 84))
    array[5, 2], array[:3, 1]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (array.nbytes, array.raw_nbytes) == (0, 10**7 * 4 * 4 * 84 * 84)
    assert peak < 1_000_000


def test_the_pickle_of_a_barely_filled_array_is_small() -> None:
    array = CompressedArray((10**6, 1, 4, 84, 84), codec="zstd")
    assert len(pickle.dumps(array)) < 3000
    array[0] = array[7] = 5
    pickled = pickle.dumps(array)
    assert len(pickled) < 3000
    array = pickle.loads(pickled)
    assert [int(array[row].max()) for row in (0, 1, 7, 8, -1)] == [5, 0, 5, 0, 0]


# -- what it cannot do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "error", "answer"),
    [
        (lambda array: array.average, AttributeError, "'CompressedArray' object has no attribute 'average'"),
        (
            lambda array: array.strides,
            AttributeError,
            r"has no 'strides', since it does not have .* np\.array\(array\)",
        ),
        (lambda array: setattr(array, "flat", 1), AttributeError, r"cannot set 'flat' .*array\[\.\.\.\] = values"),
        (lambda array: setattr(array, "dtype", int), AttributeError, "cannot set 'dtype' of a CompressedArray"),
        (lambda array: array.swapaxes(0, 5), ValueError, "axis2: axis 5 is out of bounds"),
        (lambda array: array.reshape(4, 2, 3), ValueError, "cannot reshape array of size 360"),
        (lambda array: array.reshape(7, 4, 2, 3), ValueError, "cannot reshape array of size 15"),
        (lambda array: array[0, 0, [0, 1]], IndexError, r"inside of observations .*array\[rows, envs\]\[..., i\]"),
        (lambda array: array[[0], [0], 0], IndexError, r"inside of observations .*array\[rows, envs\]\[..., i\]"),
        (lambda array: array[0, 0, True], IndexError, "inside of observations"),
        (lambda array: array[np.ones((5, 3, 4), bool)], IndexError, r"np\.copyto\(array, value, where=mask\)"),
        (lambda array: array[0, 0, 0, 0, 0, 0], IndexError, "too many indices: the array has 5 axes, 6 were indexed"),
        (lambda array: array[..., 0, ...], IndexError, "single ellipsis"),
        (lambda array: array[5], IndexError, "index 5 is out of bounds for axis 0 with size 5"),
        (lambda array: array[0, -4], IndexError, "out of bounds"),
        (lambda array: array[[0, 5]], IndexError, "out of bounds"),
        (lambda array: array[0, 0, 4], IndexError, "out of bounds"),
        (lambda array: array[1.5], IndexError, "only integers"),
        (lambda array: array["obs"], IndexError, "only integers"),
        (lambda array: array.__setitem__((0, 0, 4), 1), IndexError, "out of bounds"),
        (lambda array: array.__setitem__((0, 0, [0, 1]), 1), IndexError, "inside of observations"),
        (lambda array: array.__setitem__(5, 1), IndexError, "out of bounds"),
    ],
)
def test_unsupported_operations_raise_with_advice(
    ask: Callable[[CompressedArray], Any], error: type[Exception], answer: str
) -> None:
    array, plain = filled_pair()
    with pytest.raises(error, match=answer):
        ask(array)
    assert_same(array, plain)


@pytest.mark.parametrize(
    ("arguments", "error", "answer"),
    [
        ({"shape": (3,)}, ValueError, r"shape must be \(rows, n_envs, \*item_shape\).* got \(3,\)"),
        ({"shape": (3, -1, 4)}, ValueError, r"without negative numbers, got \(3, -1, 4\)"),
        ({"dtype": object}, ValueError, "must be boolean, integer or floating, got object"),
        ({"dtype": "c8"}, ValueError, "got complex64"),
        ({"elem_type": "U3"}, ValueError, "got <U3"),
        ({"frame_stack": 3}, ValueError, r"frame_stack=3 divides neither .* shape \(4, 8\)"),
        ({"frame_stack": 0}, ValueError, "must be 'auto', None or a positive int, got 0"),
        ({"frame_stack": -4}, ValueError, "got -4"),
        ({"frame_stack": True}, ValueError, "got True"),
        ({"frame_stack": 4.0}, ValueError, "got 4.0"),
        ({"frame_stack": "four"}, ValueError, "got 'four'"),
        ({"codec": "zstd23"}, CodecError, r"1\.\.22, got 23"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], error: type[Exception], answer: str) -> None:
    with pytest.raises(error, match=answer):
        CompressedArray(**{"shape": (3, 2, 4, 8), **arguments})


def test_a_boolean_scalar_is_an_index_but_not_a_row() -> None:
    array, plain = filled_pair()
    array[True] = plain[True] = 1
    assert_same(array, plain)


def test_the_size_along_an_axis_is_its_length() -> None:
    array, plain = filled_pair()
    assert np.size(array, 0) == np.size(plain, 0)


def test_numpy_functions_accept_a_compressed_array_as_keyword() -> None:
    array, plain = filled_pair()
    assert np.shape(a=array) == plain.shape
    assert np.array_equal(a1=array, a2=plain)


# -- damaged slots -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", available_codecs())
@pytest.mark.parametrize("frame_stack", [4, None])
@pytest.mark.parametrize(
    "index", [(2, 1), 2, slice(3), [4, 2], ([0, 4, 2, 2], [1, 1, 1, 0]), (slice(None), 1), -3, ...]
)
def test_a_corrupt_payload_is_named_by_its_slot(codec: str, frame_stack: FrameStack, index: Any) -> None:
    array, _ = filled_pair(frame_stack=frame_stack, codec=codec)
    slot = array.slots[2, 1]
    array.slots[2, 1] = b"!" if frame_stack is None else (*slot[:-1], b"!")
    with pytest.raises(CorruptPayload, match=r"corrupt payload in slot \(2, 1\): ") as caught:
        array[index]
    assert caught.value.slot == (2, 1)
    array[3], array[2, [0, 2]]  # the others are fine


def test_rows_encoded_by_a_view_are_written_through_it() -> None:
    array, plain = filled_pair()
    changed = array.track_changes()
    view = array.swapaxes(0, 1)
    row = np.arange(5 * 24).reshape(5, 4, 2, 3)
    [view[1]] = view.encode_rows(view.validated_row(row))
    plain[:, 1] = row
    assert_same(array, plain)
    assert np.flatnonzero(changed.any(axis=0)).tolist() == [1]


def test_a_view_has_no_stream_and_no_changes_of_its_own() -> None:
    array, plain = filled_pair()
    view = array.swapaxes(0, 1)
    assert view.stream_data() == {}
    view.restore_stream({}, array.codec, [])
    with pytest.raises(ValueError, match="changes of a view cannot be tracked"):
        view.track_changes()
    assert_same(array, plain)

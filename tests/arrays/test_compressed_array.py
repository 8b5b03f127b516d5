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
from gathering import damage
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from slot_objects import slots_at

from arrays.pairs import ENVS, ROWS, assert_same_array
from sb3_compressed import CompressedArray
from sb3_compressed.arrays.frame_layout import FrameStack
from sb3_compressed.codecs import available_codecs, get_codec
from sb3_compressed.errors import CodecError, CorruptPayload, LossyDtypeWarning

RELAXED = examples(200)

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
    st.just((np.array(1), np.array(2))),
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
        assert_same_array(array[index], plain[index])
    assert_same_array(array, plain)


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


def test_slots_are_compressed_bytes() -> None:
    codec = get_codec("zstd3")
    frames = np.random.default_rng(0).integers(0, 3, (5, 2, 6, 6), np.uint8)
    array = CompressedArray((4, 2, 3, 6, 6), codec=codec, frame_stack=3)
    assert (array.slots == None).all()  # noqa: E711
    for row in range(3):
        array[row] = frames[row : row + 3].swapaxes(0, 1)
    assert (array.slots.shape, array.slots.dtype) == ((4, 2), np.dtype(object))
    payloads = codec.encode(frames.reshape(-1, 6, 6))
    assert array.slots[1, 1] == (payloads[3], payloads[5], payloads[7])
    assert array.slots[3].tolist() == [None, None]
    slots = array.slots
    assert slots[0, 0][1] is slots[1, 0][0], "shared payloads are the same objects"
    view = array.swapaxes(0, 1)
    assert view.slots.tolist() == slots.T.tolist()
    whole = CompressedArray((2, 1, 6, 6), codec=codec, frame_stack=None)
    whole[0] = frames[0, 0]
    assert whole.slots.tolist() == [[payloads[0]], [None]]


def test_slots_of_trained_codecs_are_bytes_without_their_codecs() -> None:
    array = CompressedArray((2, 1, 3, 6, 6), codec="delta", frame_stack=3)
    array[0] = np.random.default_rng(0).integers(0, 3, (3, 6, 6), np.uint8)
    slot = array.slots[0, 0]
    assert [*map(type, slot)] == [bytes] * 3
    out = np.empty((3, 6, 6), np.uint8)
    array.codec.decode_into(slot, out)
    np.testing.assert_array_equal(out, array[0, 0])
    array.references[0, 0] += 1
    with pytest.raises(CorruptPayload):
        array.slots  # noqa: B018


# -- unwritten, copies, casts --------------------------------------------------------------------------------


@pytest.mark.parametrize(("item_shape", "frame_stack"), ITEMS)
def test_unwritten_reads_as_zeros(item_shape: tuple[int, ...], frame_stack: FrameStack) -> None:
    array = CompressedArray((ROWS, ENVS, *item_shape), np.float32, frame_stack=frame_stack)
    plain = np.zeros(array.shape, np.float32)
    for index in (..., 0, (0, 1), [3, 1], slice(2, 4), (slice(None), 1)):
        assert_same_array(array[index], plain[index])
    array[1, 2] = plain[1, 2] = 7  # zeros among what is written
    for index in (..., 1, (1, 2), [3, 1]):
        assert_same_array(array[index], plain[index])


def test_later_changes_of_a_written_value_do_not_change_the_array() -> None:
    array, plain = filled_pair()
    for index in (0, slice(1, 3), (2, 1), [0, 4]):
        source = plain[index].copy()
        array[index] = source
        source += 1
    stack = plain[4].copy()
    for _ in range(2):  # what is remembered for sharing is not the source either
        array[4] = stack
        assert_same_array(array[4], stack)
        stack += 1
    array[4] = plain[4]
    assert_same_array(array, plain)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.zeros((4, 2, 4), np.uint8), ValueError, r"\(4, 2, 4\)"),
        (np.zeros((ENVS + 1, 4, 2, 3), np.uint8), ValueError, r"\(4, 4, 2, 3\)"),
        (np.zeros((1, ENVS, 4, 2, 3, 1), np.uint8), ValueError, "shape"),
        (0.5, ValueError, "0.5"),
        (300, ValueError, "300"),
        (-1, ValueError, "-1"),
        (float("nan"), ValueError, "fit"),
        (2**70, TypeError, "object"),
        (None, TypeError, "object"),
        ("7", TypeError, "<U1"),
        (1j, TypeError, "complex128"),
        ([[1, 2], [3]], ValueError, "inhomogeneous"),
    ],
)
@pytest.mark.parametrize(("index", "written"), [(0, False), ([1, 3], True)], ids=str)
def test_invalid_input_raises_and_changes_nothing(
    value: Any, error: type[Exception], message: str, index: Any, written: bool
) -> None:
    array, plain = filled_pair()
    if not written:
        array, plain = array.new_sharing_frames(), np.zeros_like(plain)
    if isinstance(value, np.ndarray) and value.shape == (ENVS + 1, 4, 2, 3):
        index = 0
    before, nbytes = array.references.copy(), array.nbytes
    with pytest.raises(error, match=message):
        array[index] = value
    assert (array.references == before).all()
    assert array.nbytes == nbytes
    assert_same_array(array, plain)


def test_a_narrower_elem_type_clips_and_reads_in_the_dtype() -> None:
    with pytest.warns(LossyDtypeWarning, match="float32 are stored as uint8") as caught:
        array = CompressedArray((2, 1, 4), np.float32, "none", elem_type=np.uint8)
    assert [warning.filename for warning in caught] == [__file__]
    array[0] = [-3, 7.9, 255, 1e9]
    assert_same_array(array[0], np.array([[0, 7, 255, 255]], np.float32))
    assert (array.dtype, array.elem_type) == (np.dtype("f4"), np.dtype("u1"))
    assert slots_at(array, 0)[0] == bytes([0, 7, 255, 255])
    with pytest.raises(TypeError, match="dtype <U1"):
        array[0] = "7"


# -- views and copies ----------------------------------------------------------------------------------------


def test_swapaxes_and_reshape_of_leading_axes_are_read_only_views() -> None:
    array, plain = filled_pair()
    for new_shape in [(15, 4, 2, 3), (-1, 4, 2, 3), (1, 3, -1, 4, 2, 3)]:
        assert_same_array(array.reshape(new_shape), plain.reshape(new_shape))
        assert_same_array(array.reshape(*new_shape), plain.reshape(*new_shape))
    for axes in [(0, 1), (1, 0), (0, 0), (-5, 1)]:
        assert_same_array(array.swapaxes(*axes), plain.swapaxes(*axes))
    for view in (array.swapaxes(0, 1), array.reshape(ROWS * ENVS, 4, 2, 3)):
        with pytest.raises(ValueError, match="a view of a compressed array is read-only"):
            view[2] = 7
        with pytest.raises(ValueError, match="a view of a compressed array is read-only"):
            view.assign(np.zeros(view.shape))
        writable = view.copy()
        writable[2] = 7
        assert np.asarray(writable)[2].min() == 7
    assert_same_array(array, plain)


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
    assert_same_array(other, plain)
    array[0] = 1
    other[1] = 2
    assert_same_array(other[0], plain[0])
    assert_same_array(array[1], plain[1])


@pytest.mark.parametrize("shape", [(0, ENVS, 4), (ROWS, 0, 4)])
def test_an_array_without_slots_can_be_read_written_and_copied(shape: tuple[int, ...]) -> None:
    array, plain = CompressedArray(shape), np.zeros(shape, np.uint8)
    array[:] = 3
    assert_same_array(array, plain)
    for other in (pickle.loads(pickle.dumps(array)), array.copy(), array.new_sharing_frames(), array.T.copy()):
        assert other.size == 0


def test_an_unwritten_array_takes_hardly_any_memory() -> None:
    tracemalloc.start()
    array = CompressedArray((10**7, 4, 4, 84, 84))
    array[5, 2], array[:3, 1]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (array.nbytes, array.raw_nbytes) == (0, 10**7 * 4 * 4 * 84 * 84)
    assert peak < 1_000_000


# -- what it cannot do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "error", "answer"),
    [
        (lambda array: array.average, AttributeError, "average"),
        (lambda array: array.swapaxes(0, 5), ValueError, "axis 5"),
        (lambda array: array.reshape(4, 2, 3), ValueError, "360"),
        (lambda array: array.reshape(7, 4, 2, 3), ValueError, "15"),
        (lambda array: array[0, 0, [0, 1]], IndexError, "inside"),
        (lambda array: array[[0], [0], 0], IndexError, "inside"),
        (lambda array: array[0, 0, True], IndexError, "inside"),
        (lambda array: array[np.ones((5, 3, 4), bool)], IndexError, "np.where"),
        (lambda array: array[0, 0, 0, 0, 0, 0], IndexError, "5 axes, 6"),
        (lambda array: array[..., 0, 0, 0, 0, 0, 0], IndexError, "5 axes, 6"),
        (lambda array: array[..., 0, ...], IndexError, "ellipsis"),
        (lambda array: array[5], IndexError, "bounds"),
        (lambda array: array[0, -4], IndexError, "bounds"),
        (lambda array: array[[0, 5]], IndexError, "bounds"),
        (lambda array: array[0, 0, 4], IndexError, "bounds"),
        (lambda array: array[1.5], IndexError, "integers"),
        (lambda array: array["obs"], IndexError, "integers"),
        (lambda array: array.__setitem__((0, 0, 4), 1), IndexError, "bounds"),
        (lambda array: array.__setitem__((0, 0, [0, 1]), 1), IndexError, "inside"),
        (lambda array: array.__setitem__(5, 1), IndexError, "bounds"),
        (lambda array: array.assign(np.zeros((5, 3, 4))), ValueError, r"\(5, 3, 4\)"),
        (lambda array: array.read(np.zeros((2, 3), np.int64)), ValueError, r"\(2, 3\)"),
        (lambda array: array.__array__(copy=False), ValueError, "copy"),
        (bool, ValueError, "ambiguous"),
    ],
)
def test_unsupported_operations_raise_with_advice(
    ask: Callable[[CompressedArray], Any], error: type[Exception], answer: str
) -> None:
    array, plain = filled_pair()
    with pytest.raises(error, match=answer):
        ask(array)
    assert_same_array(array, plain)


@pytest.mark.parametrize(
    ("arguments", "error", "answer"),
    [
        ({"shape": (3,)}, ValueError, r"\(3,\)"),
        ({"shape": (3, -1, 4)}, ValueError, r"\(3, -1, 4\)"),
        ({"dtype": object}, ValueError, "object"),
        ({"dtype": "c8"}, ValueError, "complex64"),
        ({"elem_type": "U3"}, ValueError, "<U3"),
        ({"frame_stack": 3}, ValueError, "frame_stack=3"),
        ({"frame_stack": 0}, ValueError, "got 0"),
        ({"frame_stack": True}, ValueError, "got True"),
        ({"frame_stack": 4.0}, ValueError, "got 4.0"),
        ({"frame_stack": "four"}, ValueError, "got 'four'"),
        ({"codec": "zstd23"}, CodecError, "got 23"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], error: type[Exception], answer: str) -> None:
    with pytest.raises(error, match=answer):
        CompressedArray(**{"shape": (3, 2, 4, 8), **arguments})


def test_a_boolean_scalar_is_an_index_but_not_a_row() -> None:
    array, plain = filled_pair()
    array[True] = plain[True] = 1
    assert_same_array(array, plain)


# -- damaged slots -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["rle", "zstd", "delta"])
@pytest.mark.parametrize("frame_stack", [4, None])
def test_a_corrupt_payload_is_named_by_its_slot(codec: str, frame_stack: FrameStack) -> None:
    array, _ = filled_pair(frame_stack=frame_stack, codec=codec)
    damage(array, 2, 1)
    indices: tuple[Any, ...] = ((2, 1), 2, slice(3), [4, 2], ([0, 4, 2, 2], [1, 1, 1, 0]), (slice(None), 1), -3, ...)
    for index in indices:
        with pytest.raises(CorruptPayload, match=r"slot \(2, 1\): ") as caught:
            array[index]
        assert caught.value.slot == (2, 1)
    array[3], array[2, [0, 2]]  # the others are fine


def test_a_reference_to_a_missing_segment_is_named_by_its_slot() -> None:
    array, _ = filled_pair()
    array.references[2, 1] |= 99 << 32
    with pytest.raises(CorruptPayload, match=r"slot \(2, 1\): .*segment 99 in memory is missing"):
        array[2]
    with pytest.raises(CorruptPayload, match=r"slot \(2, 1\): .*segment 99 in memory is missing"):
        array.payloads(np.array([0, 2 * ENVS + 1]), array, np.array([5]))
    array[2, [0, 2]]  # the others are fine


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 3, 4)])
def test_slots_of_an_array_that_was_not_written(shape: tuple[int, ...]) -> None:
    array = CompressedArray(shape, np.uint8, "none")
    assert array.slots.shape == shape[:2]
    assert [*array.slots.flat] == [None] * array.slots.size

"""Slots refer to codecs by handles, which keep them alive as long as a slot needs them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from sb3_compressed import CompressedArray
from sb3_compressed.arrays.codec_handle import codec_of, handle_of
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.delta import Delta

ROWS = 300


def filled() -> tuple[CompressedArray, np.ndarray[Any, Any]]:
    """Return an array whose codec was trained while it was filled, and its content."""
    rng = np.random.default_rng(0)
    frames = (rng.random((ROWS + 3, 2, 24, 24)) < 0.02).astype(np.uint8)
    stacks = np.stack([frames[i : i + ROWS] for i in range(4)], axis=2)
    array = CompressedArray((ROWS, 2, 4, 24, 24), codec="delta", frame_stack=4, num_threads=1)
    array[...] = 0
    for row, stack in enumerate(stacks):
        array[row] = stack
    return array, stacks


def test_a_codec_has_one_handle_as_long_as_it_is_referred_to() -> None:
    codec, equal = Delta(), Delta()
    handle = handle_of(codec)
    assert handle_of(codec) is handle
    assert handle_of(equal) is not handle
    assert codec_of(handle) is codec
    alive = weakref.ref(codec)
    del codec
    assert alive() is not None
    del handle
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("other", [None, b"payload", Delta(), np.zeros(3), np.array(None), np.zeros((), object)])
def test_nothing_else_has_a_codec(other: Any) -> None:
    assert not isinstance(codec_of(other), TrainableCodec)


def test_slots_of_pickles_that_contain_codecs_get_handles() -> None:
    """As pickles do up to version 0.2."""
    array, stacks = filled()
    state: dict[str, Any] = array.__getstate__()
    shape, slots = state["_table"]
    with_codecs = np.empty_like(slots)
    for index in np.ndindex(slots.shape):
        with_codecs[index] = tuple(codec_of(part) or part for part in slots[index])
    other: CompressedArray = CompressedArray.__new__(CompressedArray)
    other.__setstate__({**state, "_table": (shape, with_codecs)})
    np.testing.assert_array_equal(np.asarray(other), stacks)
    assert {codec_of(slot[0]) for slot in other.slots.flat} == {codec_of(slot[0]) for slot in array.slots.flat}
    gc.collect()
    assert not any(map(gc.is_tracked, other.slots.flat))

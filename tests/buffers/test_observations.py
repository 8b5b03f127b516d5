"""Observations and next observations of a batch are decoded together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed import CompressedArray
from sb3_compressed.buffers.observations import as_indices, read_observations, take
from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.codecs.rle import Rle

N_ROWS, N_ENVS = 30, 2

Pair = tuple[CompressedArray, CompressedArray, NDArray[Any], NDArray[Any]]


@pytest.fixture
def pair() -> Pair:
    """Return observations and next observations, compressed and as ndarrays."""
    frames = np.random.default_rng(0).integers(0, 3, (N_ROWS + 4, N_ENVS, 6, 6), np.uint8)
    array = CompressedArray((N_ROWS, N_ENVS, 4, 6, 6), np.uint8, get_codec("rle"), frame_stack=4)
    following = array.new_sharing_frames()
    plain = np.stack([np.swapaxes(frames[row : row + 4], 0, 1) for row in range(N_ROWS + 1)])
    for row in range(N_ROWS):
        for each, references in zip((array, following), array.stream.append(plain[row], plain[row + 1]), strict=True):
            each.write_encoded(row, references)
    return array, following, plain[:-1], plain[1:]


def test_each_frame_is_decoded_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    array, following, plain, plain_next = pair
    n_decoded: list[int] = []
    original = Rle.decode_batch

    def counted(codecs: Any, payloads: Payloads, out: NDArray[Any], done: NDArray[np.uint8]) -> None:
        n_decoded.append(int((done == 0).sum()))
        original(codecs, payloads, out, done)

    monkeypatch.setattr(Rle, "decode_batch", counted)
    numbers = np.array([6, 20])
    observations, next_observations = read_observations(array, numbers, following, numbers)
    assert n_decoded == [10]  # of two transitions with five frames each
    rows, envs = np.divmod(numbers, N_ENVS)
    np.testing.assert_array_equal(observations, plain[rows, envs])
    np.testing.assert_array_equal(next_observations, plain_next[rows, envs])


@pytest.mark.parametrize("order", ["C", "F"])
def test_items_of_plain_arrays_are_copies(order: Any) -> None:
    array = np.asarray(np.arange(24.0).reshape(4, 2, 3), order=order)
    items = take(array, np.array([7, 0, -1]))
    np.testing.assert_array_equal(items, array.reshape(8, 3)[[7, 0, -1]])
    items[...] = 99
    assert array.max() == 23
    assert take(np.zeros((4, 2, 0)), np.array([1])).shape == (1, 0)


@pytest.mark.parametrize("values", [np.zeros((2, 2), np.int64), np.array([0.5]), np.array([True]), 3])
def test_other_rows_raise(values: Any) -> None:
    with pytest.raises(IndexError, match="vectors"):
        as_indices(values)


def test_rows_become_int64() -> None:
    for values in (np.array([200], np.uint8), [200], []):
        assert as_indices(values).dtype == np.int64

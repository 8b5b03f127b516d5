"""Observations and next observations that SB3 reads with one index are decoded at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed import CompressedArray, CorruptPayload
from sb3_compressed.arrays.batch_pool import BatchArray, BatchPool, sampling
from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.rle import Rle

N_ROWS, SHAPE = 30, (4, 6, 6)


@pytest.fixture
def pair() -> Iterator[tuple[CompressedArray, CompressedArray, NDArray[Any]]]:
    """Next observations and observations, which is the order in which SB3 reads them, and the frames of both."""
    frames = np.random.default_rng(0).integers(0, 3, (N_ROWS + 4, 6, 6), np.uint8)
    observations = CompressedArray((N_ROWS, 1, *SHAPE), np.uint8, get_codec("rle"), frame_stack=4)
    following = observations.new_sharing_frames()
    for row in range(N_ROWS):
        stacks = frames[row : row + 4][np.newaxis], frames[row + 1 : row + 5][np.newaxis]
        observations[row], following[row] = observations.encode_rows(*stacks)
    sampling.batch = BatchPool().begin_batch({id(following): observations})
    yield following, observations, frames
    sampling.batch = None


def expected(frames: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    return np.stack([frames[row : row + 4] for row in rows])


Pair = tuple[CompressedArray, CompressedArray, NDArray[Any]]


def test_both_are_read(pair: Pair) -> None:
    following, observations, frames = pair
    rows, envs = np.array([3, 29, 0, 3]), np.zeros(4, np.int64)
    for array, wanted in (following, rows + 1), (observations, rows):
        items = array[rows, envs, :]
        assert type(items) is BatchArray
        assert items.is_owned
        assert items.flags.c_contiguous
        np.testing.assert_array_equal(items, expected(frames, wanted))


def test_each_frame_is_decoded_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    following, observations, _ = pair
    n_decoded: list[int] = []
    original = Rle.decode_into

    def counted(codec: Rle, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        n_decoded.append(len(payloads))
        original(codec, payloads, out)

    monkeypatch.setattr(Rle, "decode_into", counted)
    rows, envs = np.array([3, 10]), np.zeros(2, np.int64)
    following[rows, envs], observations[rows, envs]
    assert n_decoded == [10]  # of two transitions with five frames each
    observations[rows, envs]
    assert n_decoded == [10, 8]


def test_another_index_reads_its_own_items(pair: Pair) -> None:
    following, observations, frames = pair
    rows, envs = np.array([3, 10]), np.zeros(2, np.int64)
    following[rows, envs]
    np.testing.assert_array_equal(observations[rows + 5, envs], expected(frames, rows + 5))
    following[rows, envs]
    np.testing.assert_array_equal(observations[rows, envs, 1:], expected(frames, rows)[:, 1:])
    following[rows, envs]
    np.testing.assert_array_equal(observations[rows], expected(frames, rows)[:, np.newaxis])
    np.testing.assert_array_equal(following[rows], expected(frames, rows + 1)[:, np.newaxis])
    np.testing.assert_array_equal(following[rows, envs, :1], expected(frames, rows + 1)[:, :1])


@pytest.mark.parametrize("which", [0, 1])
def test_the_error_of_a_damaged_payload_names_its_row(pair: Pair, which: int) -> None:
    following, observations, _ = pair
    slots = (following, observations)[which].slots
    slots[7, 0] = (*slots[7, 0][:-1], b"!")
    with pytest.raises(CorruptPayload) as caught:
        following[np.array([2, 7]), np.zeros(2, np.int64)]
    assert caught.value.slot == (7, 0)

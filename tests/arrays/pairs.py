"""Pairs for the tests of arrays: compressed arrays, and the ndarrays that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sb3_compressed import CompressedArray

ROWS, ENVS = 5, 3

Change = Callable[[Any], Any]


def pair_of(item_shape: tuple[int, ...] = (4, 2, 3), dtype: str = "u1") -> tuple[list[Any], list[Any]]:
    """Return arrays of ours and the ndarrays they stand for; row 3 was never written."""
    shape = (ROWS, ENVS, *item_shape)
    ours: list[Any] = [CompressedArray(shape, dtype)]
    ours.append(ours[0].new_sharing_frames())
    plain = [np.zeros(shape, dtype) for _ in ours]
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 9, shape[1:]).astype(dtype)
    for row in (0, 1, 2, 4):
        for array, expected in zip(ours, plain, strict=True):
            array[row] = expected[row] = obs
            obs = np.roll(obs, -1, axis=-1) if row % 2 else rng.integers(0, 9, shape[1:]).astype(dtype)
    return ours, plain


def assert_same_array(actual: Any, expected: Any) -> None:
    """Assert that two arrays or scalars have the same shape, dtype and bytes."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert actual.tobytes() == expected.tobytes()


def assert_same(ours: Any, plain: Any) -> None:
    """Assert it of all arrays of two lists."""
    for pair in zip(ours, plain, strict=True):
        assert_same_array(*pair)

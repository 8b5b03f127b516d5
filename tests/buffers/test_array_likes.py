"""Objects with ``__array__`` are added as their ndarray, whatever was added before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)

N_ENVS = 2
IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)
VECTOR = spaces.Box(-10, 10, (6,), np.float32)
SPACES: dict[str, spaces.Space[Any]] = {
    "image": IMAGE,
    "vector": VECTOR,
    "number": spaces.Discrete(7),
    "dict": spaces.Dict({"image": IMAGE, "vector": VECTOR}),
}


class ArrayLike:
    """An array with the attributes of LazyFrames, HDF5 data sets, Zarr and JAX arrays, which is not an ndarray."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.dtype, self.shape = array.dtype, array.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._array, dtype=dtype)

    def __len__(self) -> int:
        return len(self._array)


class Subclass(np.ndarray[Any, Any]):
    """An ndarray of another class."""


WRAPPERS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "array-like": ArrayLike,
    "tensor": th.from_numpy,
    "list": lambda array: array.tolist(),
    "subclass": lambda array: array.view(Subclass),
    "Fortran order": np.asfortranarray,
    "compressed": lambda array: CompressedArray((1, *array.shape), array.dtype)[0] + array,
}


def observation(space: spaces.Space[Any], rng: np.random.Generator, wrap: Callable[[NDArray[Any]], Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: observation(part, rng, wrap) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return wrap(rng.integers(0, int(space.n), N_ENVS))
    assert isinstance(space, spaces.Box)
    return wrap((rng.random((N_ENVS, *space.shape)) * 9).astype(space.dtype))


def contents(buffer: Any) -> list[NDArray[Any]]:
    found: list[NDArray[Any]] = []
    for name in ("observations", "next_observations", "actions", "rewards", "dones"):
        value = vars(buffer).get(name, [])
        found += [np.array(part) for part in (value.values() if isinstance(value, dict) else [value])]
    return found


def filled(kind: str, wrappers: list[str], what: str) -> Any:
    """Return a replay buffer to which one step was added with each wrapper around some of the arguments."""
    space = SPACES[kind]
    buffer_class = CompressedDictReplayBuffer if kind == "dict" else CompressedReplayBuffer
    buffer = buffer_class(5 * N_ENVS, space, spaces.Discrete(3), device="cpu", n_envs=N_ENVS)
    rng = np.random.default_rng(0)
    for name in wrappers:
        wrap = WRAPPERS.get(name, np.array)
        around = [wrap if what in ("all", argument) else np.array for argument in ("obs", "next_obs", "rest")]
        buffer.add(
            observation(space, rng, around[0]),
            observation(space, rng, around[1]),
            around[2](rng.integers(0, 3, (N_ENVS, 1))),
            around[2](rng.random(N_ENVS).astype(np.float32)),
            around[2](rng.random(N_ENVS) > 0.5),
            [{}] * N_ENVS,
        )
    return buffer


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize(
    ("name", "what"), [*((name, "all") for name in WRAPPERS), *(("array-like", what) for what in ("obs", "next_obs"))]
)
def test_array_likes_are_added_as_ndarrays_in_any_order(kind: str, name: str, what: str) -> None:
    for wrappers in ([name, "ndarray", "ndarray", name, "ndarray"], ["ndarray", name, name, "ndarray", name]):
        ours, plain = contents(filled(kind, wrappers, what)), contents(filled(kind, ["ndarray"] * 5, what))
        for array, expected in zip(ours, plain, strict=True):
            assert np.array_equal(array, expected)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", ["array-like", "tensor"])
def test_array_likes_are_added_to_rollouts_as_ndarrays(kind: str, name: str) -> None:
    space = SPACES[kind]
    found = []
    for wrap in (WRAPPERS[name], np.array):
        buffer_class = CompressedDictRolloutBuffer if kind == "dict" else CompressedRolloutBuffer
        buffer = buffer_class(4, space, spaces.Discrete(3), device="cpu", n_envs=N_ENVS)
        rng = np.random.default_rng(0)
        for step in range(4):
            of_step = wrap if step % 2 else np.array
            buffer.add(
                observation(space, rng, of_step),
                of_step(rng.integers(0, 3, (N_ENVS, 1))),
                of_step(rng.random(N_ENVS).astype(np.float32)),
                of_step(rng.random(N_ENVS) > 0.5),
                th.zeros(N_ENVS),
                th.zeros(N_ENVS),
            )
        found.append(contents(buffer))
    for array, expected in zip(*found, strict=True):
        assert np.array_equal(array, expected)

"""Writes to the arrays of observations, as users of SB3 make them, reach our buffers, also those in a folder."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from gymnasium import spaces
from support import assert_same_batch, same_draws

from sb3_compressed import StorageError

N_ENVS, ROWS = 2, 6
IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)
VECTOR = spaces.Box(-10, 10, (12,), np.float32)
SPACES: dict[str, spaces.Space[Any]] = {
    "image": IMAGE,
    "vector": VECTOR,
    "dict": spaces.Dict({"image": IMAGE, "vector": VECTOR}),
}


def parts(observations: Any) -> list[Any]:
    return [*observations.values()] if isinstance(observations, dict) else [observations]


class WritesTerminalObservations:
    """Overrides ``add``, as buffers derived from SB3's do."""

    pos: int
    observations: Any
    next_observations: Any

    def add(self, *args: Any) -> None:
        """Add a transition; where an episode ended, write its last observation afterwards."""
        super().add(*args)  # type: ignore[misc]
        for env in np.flatnonzero(args[4]):
            for array in parts(self.next_observations):
                array[self.pos - 1, env] = 7
                array[self.pos - 1, env, ..., 0] = 8


def writing(cls: type[Any]) -> type[Any]:
    """Return a user's class derived from one of ours or of SB3."""
    return type(f"Writing{cls.__name__}", (WritesTerminalObservations, cls), {})


def observation(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: observation(part, rng) for key, part in space.spaces.items()}
    assert isinstance(space, spaces.Box)
    return (rng.random((N_ENVS, *space.shape)) * 9).astype(space.dtype)


def classes_for(kind: str) -> tuple[type[Any], type[Any]]:
    return REPLAY_PAIRS["dict" if kind == "dict" else "replay"]


def new(buffer_class: type[Any], kind: str, **kwargs: Any) -> Any:
    return buffer_class(ROWS * N_ENVS, SPACES[kind], spaces.Discrete(3), device="cpu", n_envs=N_ENVS, **kwargs)


def add_steps(buffers: list[Any], n_steps: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    space = buffers[0].observation_space
    obs = observation(space, rng)
    for _ in range(n_steps):
        next_obs = observation(space, rng)
        rest = rng.integers(0, 3, (N_ENVS, 1)), rng.random(N_ENVS), rng.random(N_ENVS) > 0.5
        for buffer in buffers:
            buffer.add(copy.deepcopy(obs), copy.deepcopy(next_obs), *rest, [{}] * N_ENVS)
        obs = next_obs


def assert_same_arrays(ours: Any, theirs: Any) -> None:
    for name in ("observations", "next_observations"):
        if getattr(theirs, name, None) is not None:
            for array, expected in zip(parts(getattr(ours, name)), parts(getattr(theirs, name)), strict=True):
                assert np.array_equal(np.array(array), expected), name


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(
    ("of_class", "kind", "options"),
    [("replay", "image", {}), ("replay", "vector", {}), ("dict", "dict", {}), ("n-step", "image", {"n_steps": 2})],
)
def test_overridden_add_can_write_to_next_observations(
    of_class: str, kind: str, options: dict[str, Any], is_stored: bool, tmp_path: Path
) -> None:
    ours_class, theirs_class = map(writing, REPLAY_PAIRS[of_class])
    storage = {"storage": tmp_path / "folder"} if is_stored else {}
    ours, theirs = new(ours_class, kind, **options, **storage), new(theirs_class, kind, **options)
    for seed in range(3):
        add_steps([ours, theirs], 5, seed)
        assert_same_arrays(ours, theirs)
        assert_same_batch(*same_draws(lambda: ours.sample(32), lambda: theirs.sample(32), seed=seed))
    assert sum(float((np.array(array) == 8).mean()) for array in parts(ours.next_observations)) > 0


WRITES: list[Callable[[Any], None]] = [
    lambda array: array.__setitem__(3, 5),
    lambda array: array.__setitem__((slice(5), 0), 3),
    lambda array: array.__setitem__((3, 0, 1), 2),
    lambda array: array.__setitem__(([1, 2], [0, 1]), array[[0, 0], [1, 1]]),
]


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("kind", SPACES)
def test_writes_are_in_the_folder_and_in_the_next_checkpoint(kind: str, is_stored: bool, tmp_path: Path) -> None:
    ours_class, theirs_class = classes_for(kind)
    ours = new(ours_class, kind, **({"storage": tmp_path / "folder"} if is_stored else {}))
    theirs = new(theirs_class, kind)
    add_steps([ours, theirs], 2 * ROWS)
    ours.save_checkpoint(tmp_path / "folder")
    for name in ("observations", "next_observations"):
        for buffer in (ours, theirs):
            for write in WRITES:
                for array in parts(getattr(buffer, name)):
                    write(array)
    assert_same_arrays(ours, theirs)
    if is_stored:
        ours.close()
    else:
        ours.save_checkpoint(tmp_path / "folder")
    assert_same_arrays(ours_class.from_checkpoint(tmp_path / "folder"), theirs)


@pytest.mark.parametrize("kind", SPACES)
def test_writes_to_a_buffer_that_follows_a_folder_raise(kind: str, tmp_path: Path) -> None:
    buffer_class, _ = classes_for(kind)
    writer = new(buffer_class, kind, storage=tmp_path / "folder")
    add_steps([writer], ROWS + 1)
    writer.flush()
    reader = buffer_class.from_checkpoint(tmp_path / "folder", follow=True)
    for name in ("observations", "next_observations"):
        for array in parts(getattr(reader, name)):
            before = np.array(array)
            for write in WRITES:
                with pytest.raises((ValueError, OSError, StorageError)):
                    write(array)
            assert np.array_equal(np.array(array), before)
    assert_same_arrays(writer, reader)


@pytest.mark.parametrize("kind", SPACES)
def test_writes_to_rollouts_do_not_warn(kind: str) -> None:
    classes = ROLLOUT_PAIRS["dict" if kind == "dict" else "plain"]
    ours, theirs = (cls(4, SPACES[kind], spaces.Discrete(3), device="cpu", n_envs=N_ENVS) for cls in classes)
    for buffer in (ours, theirs):
        rng = np.random.default_rng(0)
        for step in range(4):
            rest = rng.integers(0, 3, (N_ENVS, 1)), rng.random(N_ENVS), rng.random(N_ENVS) > 0.5
            buffer.add(observation(SPACES[kind], rng), *rest, th.zeros(N_ENVS), th.zeros(N_ENVS))
            for array in parts(buffer.observations):
                array[step, 0] = step
        buffer.compute_returns_and_advantage(th.zeros(N_ENVS), np.zeros(N_ENVS))
    assert_same_arrays(ours, theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = same_draws(lambda: [*ours.get(3)], lambda: [*theirs.get(3)], seed=0)
    for batch, expected in zip(*batches, strict=True):
        assert_same_batch(batch, expected)
    for buffer in (ours, theirs):  # flat now
        for array in parts(buffer.observations):
            array[3] = 3
    assert_same_arrays(ours, theirs)

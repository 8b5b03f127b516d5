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
from gymnasium import spaces
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from support import assert_same_batch, same_draws

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    StorageError,
)

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
                array[self.pos - 1][env] = 7
                array[self.pos - 1, env, ..., 0] = 8


class Ours(WritesTerminalObservations, CompressedReplayBuffer):
    """Our buffer."""


class Theirs(WritesTerminalObservations, ReplayBuffer):
    """SB3's buffer."""


class OurDicts(WritesTerminalObservations, CompressedDictReplayBuffer):
    """Our buffer of dicts."""


class TheirDicts(WritesTerminalObservations, DictReplayBuffer):
    """SB3's buffer of dicts."""


class OurNSteps(WritesTerminalObservations, CompressedNStepReplayBuffer):
    """Our n-step buffer."""


class TheirNSteps(WritesTerminalObservations, NStepReplayBuffer):
    """SB3's n-step buffer."""


def observation(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: observation(part, rng) for key, part in space.spaces.items()}
    assert isinstance(space, spaces.Box)
    return (rng.random((N_ENVS, *space.shape)) * 9).astype(space.dtype)


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


CASES: dict[str, tuple[type[Any], type[Any], str, dict[str, Any]]] = {
    "image": (Ours, Theirs, "image", {}),
    "vector": (Ours, Theirs, "vector", {}),
    "dict": (OurDicts, TheirDicts, "dict", {}),
    "n-step": (OurNSteps, TheirNSteps, "image", {"n_steps": 2}),
    "folder": (Ours, Theirs, "image", {"storage": "folder"}),
    "vectors in a folder": (Ours, Theirs, "vector", {"storage": "folder"}),
    "dict in a folder": (OurDicts, TheirDicts, "dict", {"storage": "folder"}),
}


def options(given: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return {**given, "storage": tmp_path / "folder"} if "storage" in given else given


@pytest.mark.parametrize("case", CASES)
def test_overridden_add_can_write_to_next_observations(case: str, tmp_path: Path) -> None:
    ours_class, theirs_class, kind, given = CASES[case]
    ours = new(ours_class, kind, **options(given, tmp_path))
    theirs = new(theirs_class, kind, **{name: value for name, value in given.items() if name != "storage"})
    for seed in range(3):
        add_steps([ours, theirs], 5, seed)
        assert_same_arrays(ours, theirs)
        assert_same_batch(*same_draws(lambda: ours.sample(32), lambda: theirs.sample(32), seed=seed))
    assert sum(float((np.array(array) == 8).mean()) for array in parts(ours.next_observations)) > 0


WRITES: list[Callable[[Any], None]] = [
    lambda array: array[3].__setitem__(slice(None), 5),
    lambda array: array[:5].__setitem__((slice(None), 0), 3),
    lambda array: array.swapaxes(0, 1)[1][2:].__setitem__(..., 4),
    lambda array: array[2].fill(6),
    lambda array: [*array][4].__setitem__(1, 9),
    lambda array: array.__setitem__((3, 0, 1), 2),
    lambda array: array.__setitem__(([1, 2], [0, 1]), array[[0, 0], [1, 1]]),
]


@pytest.mark.parametrize("case", [case for case in CASES if "folder" in case])
def test_writes_through_views_are_in_the_folder(case: str, tmp_path: Path) -> None:
    ours_class, theirs_class, kind, _ = CASES[case]
    ours, theirs = new(ours_class, kind, storage=tmp_path / "folder"), new(theirs_class, kind)
    add_steps([ours, theirs], 2 * ROWS)
    ours.flush()
    for name in ("observations", "next_observations"):
        for buffer in (ours, theirs):
            for write in WRITES:
                for array in parts(getattr(buffer, name)):
                    write(array)
    assert_same_arrays(ours, theirs)
    ours.close()
    assert_same_arrays(ours_class.from_checkpoint(tmp_path / "folder"), theirs)


@pytest.mark.parametrize("kind", SPACES)
def test_writes_through_views_are_in_the_next_checkpoint(kind: str, tmp_path: Path) -> None:
    classes = (OurDicts, TheirDicts) if kind == "dict" else (Ours, Theirs)
    ours, theirs = (new(buffer_class, kind) for buffer_class in classes)
    add_steps([ours, theirs], ROWS + 1)
    ours.save_checkpoint(tmp_path / "saved")
    for name in ("observations", "next_observations"):
        for buffer in (ours, theirs):
            for write in WRITES:
                for array in parts(getattr(buffer, name)):
                    write(array)
    ours.save_checkpoint(tmp_path / "saved")
    assert_same_arrays(type(ours).from_checkpoint(tmp_path / "saved"), theirs)


@pytest.mark.parametrize("kind", SPACES)
def test_writes_to_a_buffer_that_follows_a_folder_raise(kind: str, tmp_path: Path) -> None:
    buffer_class = OurDicts if kind == "dict" else Ours
    writer = new(buffer_class, kind, storage=tmp_path / "folder")
    add_steps([writer], ROWS + 1)
    writer.flush()
    reader = buffer_class.from_checkpoint(tmp_path / "folder", follow=True)
    for name in ("observations", "next_observations"):
        for array in parts(getattr(reader, name)):
            before = np.array(array)
            for write in WRITES[:-2]:
                with pytest.raises((ValueError, OSError, StorageError)):
                    write(array)
            with pytest.raises((ValueError, OSError, StorageError)):
                array[0] = 1
            assert np.array_equal(np.array(array), before)
    assert_same_arrays(writer, reader)


@pytest.mark.parametrize("kind", SPACES)
def test_writes_through_views_of_rollouts_do_not_warn(kind: str) -> None:
    classes: tuple[type[Any], type[Any]] = (
        (CompressedDictRolloutBuffer, DictRolloutBuffer) if kind == "dict" else (CompressedRolloutBuffer, RolloutBuffer)
    )
    ours, theirs = (
        buffer_class(4, SPACES[kind], spaces.Discrete(3), device="cpu", n_envs=N_ENVS) for buffer_class in classes
    )
    for buffer in (ours, theirs):
        rng = np.random.default_rng(0)
        for step in range(4):
            rest = rng.integers(0, 3, (N_ENVS, 1)), rng.random(N_ENVS), rng.random(N_ENVS) > 0.5
            buffer.add(observation(SPACES[kind], rng), *rest, th.zeros(N_ENVS), th.zeros(N_ENVS))
            for array in parts(buffer.observations):
                array[step][0] = step
        buffer.compute_returns_and_advantage(th.zeros(N_ENVS), np.zeros(N_ENVS))
    assert_same_arrays(ours, theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = same_draws(lambda: [*ours.get(3)], lambda: [*theirs.get(3)], seed=0)
    for batch, expected in zip(*batches, strict=True):
        assert_same_batch(batch, expected)
    for buffer in (ours, theirs):  # flat now
        for array in parts(buffer.observations):
            array[2:5][1] = 3
    assert_same_arrays(ours, theirs)

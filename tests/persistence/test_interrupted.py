"""Interrupts during a step, other threads, and classes of users."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import Stream
from drawn_examples import FACTOR
from gymnasium import spaces
from interrupts import bytecodes, evenly, interrupt
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stored import ROWS, hold_equal, new

from sb3_compressed import CompressedReplayBuffer, CompressedRolloutBuffer, load_checkpoint

SPACE, BUTTONS = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(2)


def add(buffer: ReplayBuffer, obs: NDArray[np.uint8], next_obs: NDArray[np.uint8]) -> None:
    n_envs = len(obs)
    zeros = np.zeros(n_envs)
    buffer.add(obs, next_obs, zeros, zeros, zeros, [{}] * n_envs)


def numbered_frames() -> NDArray[np.uint8]:
    """Return frames of one background, each with its number in two corners."""
    frames = np.repeat(np.random.default_rng(0).integers(0, 256, (1, 84, 84), np.uint8), 256, axis=0)
    frames[:, 0, 0] = frames[:, 83, 83] = np.arange(256)
    return frames


def test_an_interrupted_add_can_be_repeated() -> None:
    frames = numbered_frames()
    stacks = [np.stack([frames[np.arange(4) + step + 9 * env] for env in range(2)]) for step in range(20)]

    def with_some_rows() -> CompressedReplayBuffer:
        buffer = CompressedReplayBuffer(24, SPACE, BUTTONS, "cpu", n_envs=2, frame_stack=4)
        for step in range(10):
            add(buffer, stacks[step], stacks[step + 1])
        return buffer

    buffer = with_some_rows()
    found = bytecodes(lambda: add(buffer, stacks[10], stacks[11]))
    assert len(found) > 500
    for at in evenly(found, 100 if FACTOR is None else len(found)):
        buffer = with_some_rows()
        interrupt(lambda: add(buffer, stacks[10], stacks[11]), at)  # noqa: B023  # it is called at once
        for step in range(buffer.pos, 16):
            add(buffer, stacks[step], stacks[step + 1])
        for row in range(4):  # of the second lap
            np.testing.assert_array_equal(buffer.observations[row], stacks[12 + row])
        np.testing.assert_array_equal(buffer.observations[4:12], stacks[4:12])
        np.testing.assert_array_equal(buffer.next_observations[4:12], stacks[5:13])


@pytest.mark.parametrize("kind", ["replay", "rollout"])
def test_the_last_row_can_be_interrupted_and_added_again(kind: str) -> None:
    space = spaces.Box(0, 1, (2,), np.float32)
    cls: Any = CompressedReplayBuffer if kind == "replay" else CompressedRolloutBuffer

    def add_row(buffer: Any) -> None:
        obs, zeros = np.full((1, 2), buffer.pos, np.float32), np.zeros(1)
        if kind == "replay":
            buffer.add(obs, obs, zeros, zeros, zeros, [{}])
        else:
            buffer.add(obs, zeros, zeros, zeros, th.zeros(1), th.zeros(1))

    def with_one_row_left() -> Any:
        buffer = cls(3, space, BUTTONS, "cpu")
        add_row(buffer)
        add_row(buffer)
        return buffer

    names = {"_write_steps"} if kind == "replay" else {"add"}
    buffer = with_one_row_left()
    for at in [at for at in bytecodes(lambda: add_row(buffer)) if at[0].co_name in names]:  # noqa: B023
        buffer = with_one_row_left()
        interrupt(lambda: add_row(buffer), at)  # noqa: B023  # it is called at once
        if buffer.pos == 2:
            add_row(buffer)
        assert (buffer.pos, buffer.full) == (0 if kind == "replay" else 3, True)
        np.testing.assert_array_equal(buffer.observations[:, 0, 0], [0, 1, 2])


@pytest.mark.parametrize("options", [{}, {"optimize_memory_usage": True}, {"sampler": "prioritized"}], ids=repr)
def test_steps_of_sb3s_own_add_are_committed_with_the_next_one(
    options: dict[str, Any], stream: Stream, tmp_path: Path
) -> None:
    """As of a subclass that calls ``ReplayBuffer.add(self, ...)``, and is killed before it flushes."""
    stored, held = new(stream, storage=tmp_path / "folder", **options), new(stream, **options)
    for number, transition in enumerate(stream[-1][: ROWS + 20]):
        for buffer in (stored, held):
            if ROWS - 5 <= number < ROWS + 5 or number % 10 == 3:
                given = (transition.obs, transition.next_obs, transition.action, transition.reward, transition.done)
                ReplayBuffer.add(buffer, *given, transition.infos)
            else:
                transition.add_to(buffer)
    shutil.copytree(tmp_path / "folder", tmp_path / "killed")
    hold_equal(load_checkpoint(tmp_path / "killed", device="cpu"), held)


@pytest.mark.parametrize("options", [{}, {"optimize_memory_usage": True}, {"sampler": "prioritized"}], ids=repr)
@pytest.mark.parametrize("n_rows", [10, 20, 11])
def test_laps_of_sb3s_own_add_are_committed_with_the_next_step(
    n_rows: int, options: dict[str, Any], tmp_path: Path
) -> None:
    """After whole laps, the next row is the one that was next at the last commit."""
    space = spaces.Box(0, 255, (4, 36, 36), np.uint8)
    stored = CompressedReplayBuffer(10, space, BUTTONS, "cpu", storage=tmp_path / "folder", **options)
    zeros = np.zeros(1)
    for number in range(10 + n_rows + 1):
        obs, next_obs = (np.full((1, *space.shape), each, np.uint8) for each in (number, number + 1))
        add: Any = partial(ReplayBuffer.add, stored) if 10 <= number < 10 + n_rows else stored.add
        add(obs, next_obs, zeros, np.full(1, number), zeros, [{}])
    shutil.copytree(tmp_path / "folder", tmp_path / "killed")
    loaded = load_checkpoint(tmp_path / "killed", device="cpu")
    np.testing.assert_array_equal(loaded.rewards, stored.rewards)
    np.testing.assert_array_equal(loaded.rewards, loaded.observations[:, :, 0, 0, 0])

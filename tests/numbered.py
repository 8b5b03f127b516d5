"""Transitions with numbers, which determine all of their content, so that anything sampled can be verified."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed import CompressedReplayBuffer

IMAGES, COUNTER = spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Discrete(1_000_000)
DICTS = spaces.Dict({"image": IMAGES, "vector": spaces.Box(-1, 1, (3,), np.float32)})
FRAMES = np.random.default_rng(0).integers(0, 4, (257, 36, 36)).astype(np.uint8) * 60


def stack(step: int) -> NDArray[np.uint8]:
    """Return the observation before a step: four frames, ``(1, 4, 36, 36)``."""
    return FRAMES[np.arange(step, step + 4) % len(FRAMES)][np.newaxis]


def add_steps(buffer: Any, steps: range) -> None:
    """Add transitions whose action is their number, which determines all of their content."""
    is_dict = isinstance(buffer.observation_space, spaces.Dict)
    for step in steps:
        observations: list[Any] = [stack(step), stack(step + 1)]
        if is_dict:
            observations = [{"image": each, "vector": np.full((1, 3), step, np.float32)} for each in observations]
        done = np.array([step % 37 == 36])
        buffer.add(*observations, np.array([[step]]), np.array([float(step)]), done, [{}])


def filled(
    first: int, n_steps: int = 50, cls: Any = CompressedReplayBuffer, space: Any = IMAGES, **options: Any
) -> Any:
    """Return a buffer of 100 rows with some transitions, from a number on."""
    buffer = cls(100, space, COUNTER, "cpu", **options)
    add_steps(buffer, range(first, first + n_steps))
    return buffer


def assert_true(batch: Any) -> None:
    """Assert that each row of a batch is the transition that its action names."""
    steps = batch.actions[:, 0].tolist()
    assert batch.rewards[:, 0].tolist() == steps
    np.testing.assert_array_equal(batch.observations.numpy(), np.concatenate([stack(step) for step in steps]))
    np.testing.assert_array_equal(batch.next_observations.numpy(), np.concatenate([stack(step + 1) for step in steps]))

"""Episodes step by step: what is added again is what the episode was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Stream
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_compressed.datasets import trajectories
from sb3_compressed.datasets.transitions import transitions


@pytest.mark.parametrize("stream", ["atari-single", "console", "pendulum", "discrete"], indirect=True)
def test_steps_can_be_added_to_a_buffer(stream: Stream) -> None:
    space, action_space, n_envs, recorded = stream
    cls: Any = DictReplayBuffer if isinstance(space, spaces.Dict) else ReplayBuffer
    theirs = cls(100 * n_envs, space, action_space, device="cpu", n_envs=n_envs)
    for transition in recorded[:100]:
        transition.add_to(theirs)
    episodes = [*trajectories(theirs)]
    again = cls(100 * n_envs, space, action_space, device="cpu")
    for episode in episodes:
        for step in transitions(episode):
            again.add(*step)
    assert again.full
    for ours, other in zip(trajectories(again), episodes, strict=True):
        np.testing.assert_equal(ours.observations, other.observations)
        for name in ("actions", "rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(other, name))

"""Environments that SB3 cannot train on are refused with a message that names the space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces

from sb3_compressed.benchmarking.benchmark_envs import make_env


class Words(gym.Env[Any, Any]):
    """Its observations have no shape, so that SB3 fails before it looks at the space."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as in the base class
    observation_space = spaces.Text(5)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode


def test_observations_without_a_shape_are_refused() -> None:
    gym.register("Words-v0", Words)  # type: ignore[arg-type]
    try:
        with pytest.raises(ValueError, match=r"observation space of Words-v0, Text\("):
            make_env("Words-v0", 1, atari=False)
    finally:
        del gym.registry["Words-v0"]

"""Where observations come from: environments that are recorded, by name.

``Pong``          an Atari game with SB3's preprocessing and four stacked frames, played at random
``Pong:trained``  the same, played by a half-trained policy; ``Pong:trained1000`` by one of that many steps
``CarRacing-v3``  any other environment of gymnasium, by its full name, played at random, nothing stacked
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sb3-compressed"
TRAINED = re.compile(r":trained(\d*)$")
TRAINING_STEPS = 150_000  # some ten minutes on two cores


@dataclass(frozen=True)
class Source:
    """An environment and who plays in it."""

    name: str

    @property
    def is_game(self) -> bool:
        """Whether it is an Atari game; all other names end in a version."""
        return re.search(r"-v\d+$", self.environment) is None

    @property
    def training_steps(self) -> int:
        """How long the policy that plays has been trained; 0 is random play."""
        match = TRAINED.search(self.name)
        return int(match[1] or TRAINING_STEPS) if match else 0

    @property
    def environment(self) -> str:
        """The name without the player."""
        return TRAINED.sub("", self.name)

    @property
    def n_stack(self) -> int:
        """Frames in an observation."""
        return 4 if self.is_game else 1

    def make(self, n_envs: int) -> VecEnv:
        """Return the environments, without stacking and transposing."""
        import ale_py
        import gymnasium as gym
        from stable_baselines3.common.env_util import make_atari_env, make_vec_env

        if not self.is_game:
            return make_vec_env(self.environment, n_envs, seed=0)
        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        return make_atari_env(f"{self.environment}NoFrameskip-v4", n_envs=n_envs, seed=0)


def as_trained_on(env: VecEnv, source: Source) -> VecEnv:
    """Put SB3's wrappers around environments as its algorithms do: stacked, then transposed views of the stacks."""
    stacked = VecFrameStack(env, source.n_stack) if source.n_stack > 1 else env
    return VecTransposeImage(stacked) if len(env.observation_space.shape or ()) == 3 else stacked


def random_actions(space: spaces.Space[Any], n_envs: int, rng: np.random.Generator) -> Any:
    """Return an action of each environment, drawn from a generator of our own."""
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=n_envs)
    assert isinstance(space, spaces.Box)
    return rng.uniform(space.low, space.high, (n_envs, *space.shape)).astype(space.dtype)

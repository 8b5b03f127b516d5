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

from stable_baselines3.common.vec_env import VecEnv

from sb3_compressed.benchmarking.benchmark_envs import make_env

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
        if not self.is_game:
            return make_env(self.environment, n_envs, atari=False)
        return make_env(f"{self.environment}NoFrameskip-v4", n_envs, atari=True)

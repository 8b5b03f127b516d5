"""Sources of observations: environments by name, recorded once and cached.

``Pong``          an Atari game with SB3's preprocessing and four stacked frames, random actions
``Pong:trained``  the same with a half-trained policy; ``Pong:trained1000`` with one of that many training steps
``CarRacing-v3``  any other gymnasium environment by its full name, random actions, no stacking
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from stable_baselines3.common.vec_env import VecEnv

from sb3_compressed.benchmarking.benchmark_envs import make_env
from sb3_compressed.benchmarking.frame_recording import Recording, write_recording

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sb3-compressed"
TRAINED = re.compile(r":trained(\d*)$")
TRAINING_STEPS = 150_000  # about ten minutes on two cores


@dataclass(frozen=True)
class Source:
    """An environment and its policy."""

    name: str

    @property
    def is_game(self) -> bool:
        """Whether it is an Atari game; all other names end with a version."""
        return re.search(r"-v\d+$", self.environment) is None

    @property
    def training_steps(self) -> int:
        """Training steps of the policy; 0 for random actions."""
        match = TRAINED.search(self.name)
        return int(match[1] or TRAINING_STEPS) if match else 0

    @property
    def environment(self) -> str:
        """The name without the policy."""
        return TRAINED.sub("", self.name)

    @property
    def n_stack(self) -> int:
        """Frames per observation."""
        return 4 if self.is_game else 1

    def make(self, n_envs: int) -> VecEnv:
        """Return the environments, not yet stacked or transposed."""
        if not self.is_game:
            return make_env(self.environment, n_envs, atari=False)
        return make_env(f"{self.environment}NoFrameskip-v4", n_envs, atari=True)


def record(name: str, n_envs: int, n_steps: int) -> Recording:
    """Return a recording of a source with at least that many steps, from the cache if there is one."""
    prefix, source = f"{name.replace(':', '-')}-{n_envs}envs-", Source(name)
    for path in sorted(CACHE.glob(f"{prefix}*rows.zst")):
        if int(path.stem.removeprefix(prefix).removesuffix("rows")) >= n_steps:
            return Recording.open(path)
    policy = None
    if source.training_steps:
        from policies import trained_policy

        policy = trained_policy(source)
    path = CACHE / f"{prefix}{n_steps}rows.zst"
    return write_recording(path, source.make(n_envs), n_steps, n_stack=source.n_stack, policy=policy)

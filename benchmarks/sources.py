"""Sources of observations: environments by name, recorded once and cached.

``Pong``               an Atari game with SB3's preprocessing and four stacked frames, random actions
``CarRacing-v3``       any other gymnasium environment by its full name, random actions, no stacking
``Crafter-v0:stack4``  the same with four stacked frames

Image environments of other packages are in ``image_envs.py``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import image_envs
from frame_recording import Recording, write_recording
from gymnasium import spaces
from sb3_envs import make_env, register_atari, wrap_as_sb3
from stable_baselines3.common.vec_env import VecEnv

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sb3-compressed"
STACK = re.compile(r":stack(\d+)$")
#: Sources that the code was tuned on: codecs and parameters were chosen with frames of these.
TUNED = frozenset(
    {
        *("MsPacman", "Pong", "Breakout", "Seaquest", "Qbert", "Riverraid", "SpaceInvaders", "Asterix"),
        *("Frogger", "YarsRevenge", "JourneyEscape", "Krull", "UpNDown"),
        *("CarRacing-v3", "Crafter-v0", "ProcgenCoinrun-v0", "ProcgenStarpilot-v0", "ProcgenBigfish-v0"),
        *("DoomHealth84-v0", "DoomHealth120x160-v0", "DoomHealth84Nearest-v0", "DoomHealth120x160Nearest-v0"),
        *("MiniGridRooms-v0", "MiniGridWholeRooms-v0", "Camera256-v0", "Video128-v0", "Noise84-v0"),
    }
)


@dataclass(frozen=True)
class Source:
    """An environment, and the frames per observation."""

    name: str

    @property
    def is_game(self) -> bool:
        """Whether it is an Atari game; all other names end with a version."""
        return re.search(r"-v\d+$", self.environment) is None

    @property
    def environment(self) -> str:
        """The name without the number of frames."""
        return STACK.sub("", self.name)

    @property
    def n_stack(self) -> int:
        """Frames per observation."""
        match = STACK.search(self.name)
        return int(match[1]) if match else 4 if self.is_game else 1

    @property
    def is_tuned(self) -> bool:
        """Whether the code was tuned on this environment."""
        return self.environment in TUNED

    @property
    def missing_module(self) -> str | None:
        """The module that it requires and that is not installed, if any."""
        return None if self.is_game else image_envs.missing_module(self.environment)

    def space(self) -> spaces.Space[Any]:
        """Return the space of the observations in buffers."""
        env = self.make(1)
        try:
            return wrap_as_sb3(env, self.n_stack).observation_space
        finally:
            env.close()

    def make(self, n_envs: int) -> VecEnv:
        """Return the environments, not yet stacked or transposed."""
        if not self.is_game:
            return make_env(self.environment, n_envs, atari=False)
        return make_env(_without_frameskip(self.environment), n_envs, atari=True)


def _without_frameskip(game: str) -> str:
    """Return the environment of a game that SB3's preprocessing expects; ALE has it for the older games only."""
    register_atari()
    name, newest = f"{game}NoFrameskip-v4", gym.registry.get(f"ALE/{game}-v5")
    if name not in gym.registry and newest is not None:
        kwargs = {**newest.kwargs, "frameskip": 1, "repeat_action_probability": 0.0}
        gym.register(name, entry_point=newest.entry_point, kwargs=kwargs)
    return name


def record(name: str, n_envs: int, n_steps: int) -> Recording:
    """Return a recording of a source with at least that many steps, from the cache if there is one."""
    prefix, source = f"{name.replace(':', '-')}-{n_envs}envs-", Source(name)
    for path in sorted(CACHE.glob(f"{prefix}*rows.zst")):
        if int(path.stem.removeprefix(prefix).removesuffix("rows")) >= n_steps:
            return Recording.open(path)
    path = CACHE / f"{prefix}{n_steps}rows.zst"
    return write_recording(path, source.make(n_envs), n_steps, n_stack=source.n_stack)

"""Environments that collectors create in these tests; their processes import them from here."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize
from support import atari_env, console_game


def cart(max_episode_steps: int = 30) -> gym.Env[Any, Any]:
    """Return an environment with a vector and two actions, whose episodes are truncated early."""
    return gym.make("CartPole-v1", max_episode_steps=max_episode_steps)


def pendulum() -> gym.Env[Any, Any]:
    """Return an environment with continuous actions between -2 and 2."""
    return gym.make("Pendulum-v1", max_episode_steps=30)


def breakout() -> VecEnv:
    """Return an Atari game with stacked frames, which SB3 transposes."""
    return atari_env("Breakout", 1, transpose=False, max_steps=60)


def console() -> gym.Env[Any, Any]:
    """Return a game with Dict observations of an image, a vector and a discrete part."""
    return console_game(max_steps=60)


def carts(n_envs: int = 3) -> VecEnv:
    """Return several environments."""
    return make_vec_env(cart, n_envs)


def normalized_carts() -> VecEnv:
    """Return environments that are normalized, which collectors refuse."""
    return VecNormalize(carts())


class Numbered(gym.Env[Any, Any]):
    """Counts the steps since it was created: observations are that number and the process; rewards are the actions."""

    def __init__(self, length: int = 7) -> None:
        self.observation_space = spaces.Box(0, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.length = length
        self.n_steps = self.n_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        self.n_resets += 1
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        """Count a step."""
        self.n_steps += 1
        done = self.n_steps % self.length == 0
        return self._observation(), float(action), done, False, {"is_success": bool(action)} if done else {}

    def _observation(self) -> Any:
        return np.array([self.n_steps, os.getpid()], dtype=np.float64)


class Endless(Numbered):
    """Does not return from a step."""

    def step(self, action: Any) -> Any:
        """Wait for a signal."""
        while True:
            signal.pause()


class Deadly(Numbered):
    """Kills its process."""

    def step(self, action: Any) -> Any:
        """Kill the process."""
        os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def numbered_processes(n_envs: int) -> VecEnv:
    """Return environments in processes of their own."""
    return SubprocVecEnv([Numbered] * n_envs)


class Failing(Numbered):
    """Fails after a number of steps of its process, until a file exists, which it creates."""

    def __init__(self, file: Path | None, n_steps: int) -> None:
        super().__init__()
        self.file, self.n_left = file, n_steps

    def step(self, action: Any) -> Any:
        """Fail at some step."""
        self.n_left -= 1
        if self.n_left < 0 and (self.file is None or not self.file.exists()):
            if self.file is not None:
                self.file.touch()
            raise OSError("the game has crashed")
        return super().step(action)


def failing(file: Path | None = None, n_steps: int = 50) -> Any:
    """Return a function that returns such an environment."""
    return partial(Failing, file, n_steps)


def broken() -> gym.Env[Any, Any]:
    """Fail to return an environment."""
    raise LookupError("there is no such game")

"""Environments as SB3 trains on them: ALE games or others of Gymnasium, stacked and transposed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

from sb3_compressed.common.spaces import space_parts

__all__ = ["make_env", "register_atari", "wrap_as_sb3"]


def make_env(env_id: str, n_envs: int, *, atari: bool) -> VecEnv:
    """Return environments with seed 0, not yet stacked or transposed.

    :param atari: whether to use ``make_atari_env`` instead of ``make_vec_env``
    :raises ValueError: if Gymnasium does not know the environment, or lacks a package for it
    """
    register_atari()
    try:
        return (make_atari_env if atari else make_vec_env)(env_id, n_envs=n_envs, seed=0)
    except gym.error.Error as error:
        raise ValueError(f"cannot create {env_id}: {error}") from error


def register_atari() -> None:
    """Register the ALE games with gymnasium if they are installed."""
    if find_spec("ale_py"):
        import ale_py

        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner per environment


def wrap_as_sb3(env: VecEnv, n_stack: int) -> VecEnv:
    """Stack frames, then transpose images, as SB3's algorithms do."""
    if n_stack > 1 and not all(isinstance(space, spaces.Box) for space in space_parts(env.observation_space).values()):
        raise ValueError(f"frames of {env.observation_space} cannot be stacked")
    stacked = VecFrameStack(env, n_stack) if n_stack > 1 else env
    images: Any = [space for space in space_parts(stacked.observation_space).values() if is_image_space(space)]
    is_transposed = all(is_image_space_channels_first(space) for space in images)
    return stacked if is_transposed else VecTransposeImage(stacked)

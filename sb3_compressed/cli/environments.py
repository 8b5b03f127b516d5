"""The environment that a user names, with the wrappers that SB3 would train on."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

from sb3_compressed import envs
from sb3_compressed.common.spaces import space_parts
from sb3_compressed.errors import install_command

__all__ = ["environment_spec", "is_game", "make_env", "off_policy_algorithm", "policy"]

ARRAY_SPACES = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary


def environment_spec(env_id: str) -> Any:
    """Return Gymnasium's ``EnvSpec`` of ``id`` or ``module:id``.

    :raises ValueError: if there is none; the message suggests similar names
    """
    if has_games := find_spec("ale_py") is not None:
        import ale_py

        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner per environment
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            import_module(module)
        return gym.spec(name)
    except ImportError as error:
        raise ValueError(f"{env_id} not found: {error}") from error
    except gym.error.Error as error:
        missing = "" if has_games else f" For ALE games: {install_command('atari')}."
        raise ValueError(
            f"unknown environment {env_id!r}: {error}{missing} Use 'module:id' for an environment of your own"
        ) from error


def is_game(spec: Any) -> bool:
    """Return whether a spec is that of an ALE game with image observations."""
    return "ale_py" in str(spec.entry_point) and spec.kwargs.get("obs_type", "rgb") != "ram"


def make_env(env_id: str, n_envs: int, *, atari: bool, n_stack: int) -> VecEnv:
    """Return environments with seed 0, stacked frames and channel-first images.

    :param atari: whether to use ``make_atari_env`` instead of ``make_vec_env``
    :raises ValueError: if SB3's buffers or wrappers do not support its observations
    :raises ImportError: if a dependency of the environment is not installed
    """
    if atari:
        return envs.make_env(env_id, n_envs, frame_stack=n_stack, seed=0)
    try:
        env = make_vec_env(env_id, n_envs=n_envs, seed=0)
    except gym.error.DependencyNotInstalled as error:  # the message has the pip command
        raise ImportError(f"{env_id}: {error}") from error
    space = env.observation_space
    parts = space_parts(space).values()
    if not all(isinstance(part, ARRAY_SPACES) for part in parts):
        raise ValueError(
            f"SB3's buffers do not support the observation space of {env_id}, {space}: it must be an array or a Dict "
            "of arrays"
        )
    if n_stack > 1 and not all(isinstance(part, spaces.Box) for part in parts):
        raise ValueError(f"frames of {space} cannot be stacked")
    stacked = VecFrameStack(env, n_stack) if n_stack > 1 else env
    images: Any = [part for part in space_parts(stacked.observation_space).values() if is_image_space(part)]
    return stacked if all(map(is_image_space_channels_first, images)) else VecTransposeImage(stacked)


def off_policy_algorithm(action_space: spaces.Space[Any]) -> str:
    """Return the name of an off-policy algorithm of SB3 for an action space.

    :raises ValueError: if there is none
    """
    if isinstance(action_space, spaces.Discrete | spaces.Box):
        return "DQN" if isinstance(action_space, spaces.Discrete) else "SAC"
    raise ValueError(
        f"no off-policy algorithm of Stable-Baselines3 supports the action space {action_space}; "
        "pass --n-steps for the rollout buffers of PPO and A2C"
    )


def policy(space: spaces.Space[Any]) -> str:
    """Return the name of SB3's policy for an observation space."""
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"

"""The environment that a user names, with the wrappers that SB3 would train on."""

from __future__ import annotations

import difflib
import re
import sys
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

from sb3_compressed.common.extras import import_extra
from sb3_compressed.common.spaces import space_parts
from sb3_compressed.errors import install_command

__all__ = ["environment_spec", "is_game", "make_env", "off_policy_algorithm", "policy"]

#: Names that an error suggests, at most.
N_SUGGESTED = 3
ARRAY_SPACES = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary


def environment_spec(env_id: str) -> Any:
    """Return Gymnasium's ``EnvSpec`` of ``id`` or ``module:id``.

    :raises ValueError: if there is none; the message lists similar names
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
        similar = _similar_names(env_id)
        package = re.split(r"[^a-z0-9_]", env_id.lower())[0]
        if not module and package and package not in sys.stdlib_module_names and find_spec(package):
            similar = [f"{package}:{env_id}"]  # a module that may register its environments when it is imported
        advice = f"did you mean {' or '.join(similar)}?" if similar else str(error)
        missing = "" if has_games else f" For ALE games: {install_command('atari')}."
        raise ValueError(
            f"unknown environment {env_id!r}; {advice}{missing} Use 'module:id' for an environment of your own"
        ) from error


def _similar_names(env_id: str) -> list[str]:
    """Return registered names that differ little apart from versions, those that SB3's Atari wrappers need first."""
    stems = {name: _stem(name) for name in sorted(gym.registry, reverse=True)}
    close = difflib.get_close_matches(_stem(env_id), {*stems.values()}, n=2, cutoff=0.7)
    similar = [name for stem in close for name in stems if stems[name] == stem]
    return sorted(similar, key=lambda name: "NoFrameskip" not in name)[:N_SUGGESTED]


def _stem(env_id: str) -> str:
    return re.sub(r"(noframeskip)?(-v\d+)?$", "", env_id.lower())


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
        import_extra("cv2", "atari", "Atari environments")  # SB3's preprocessing scales frames with it
    try:
        with closing(gym.make(env_id)) as single:
            space, is_atari_game = single.observation_space, hasattr(single.unwrapped, "get_action_meanings")
    except gym.error.DependencyNotInstalled as error:  # the message has the pip command
        raise ImportError(f"{env_id}: {error}") from error
    parts = space_parts(space).values()
    if not all(isinstance(part, ARRAY_SPACES) for part in parts):
        raise ValueError(
            f"SB3's buffers do not support the observation space of {env_id}, {space}: it must be an array or a Dict "
            "of arrays"
        )
    if atari and not is_atari_game:
        raise ValueError(f"SB3's Atari preprocessing does not support {env_id}, which is not an Atari game")
    if n_stack > 1 and not all(isinstance(part, spaces.Box) for part in parts):
        raise ValueError(f"frames of {space} cannot be stacked")
    env = (make_atari_env if atari else make_vec_env)(env_id, n_envs=n_envs, seed=0)
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

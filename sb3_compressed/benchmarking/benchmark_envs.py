"""Create environments to train on."""

from __future__ import annotations

import difflib
import re
import sys
from collections import defaultdict
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

__all__ = ["is_atari", "make_env", "register_atari", "skips_frames", "wrap_as_sb3"]

#: Names that an error suggests, at most.
N_SUGGESTED = 3
ARRAY_SPACES = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary


def is_atari(env_id: str) -> bool:
    """Return whether an environment is an ALE game with image observations.

    :raises ValueError: if it does not exist; the message lists similar names
    """
    spec = _spec(env_id)
    return "ale_py" in str(spec.entry_point) and spec.kwargs.get("obs_type", "rgb") != "ram"


def skips_frames(env_id: str) -> bool:
    """Return whether an ALE game skips frames itself, which SB3's Atari wrappers do as well.

    :raises ValueError: if it does not exist
    """
    return bool(_spec(env_id).kwargs.get("frameskip", 1) != 1)


def make_env(env_id: str, n_envs: int, *, atari: bool) -> VecEnv:
    """Return environments with seed 0, not yet stacked or transposed.

    :param atari: whether to use ``make_atari_env`` instead of ``make_vec_env``
    :raises ValueError: if the environment does not exist, or its observations are not supported by SB3's buffers
    :raises ImportError: if a dependency of the environment is not installed
    """
    _spec(env_id)
    if atari:
        import_extra("cv2", "atari", "Atari environments")  # SB3's preprocessing scales frames with it
    try:
        env = (make_atari_env if atari else make_vec_env)(env_id, n_envs=n_envs, seed=0)
    except gym.error.DependencyNotInstalled as error:  # the message has the pip command
        raise ImportError(f"{env_id}: {error}") from error
    except NotImplementedError as error:  # nested spaces
        raise ValueError(f"{env_id} is not supported by SB3's buffers: {error}") from error
    except (TypeError, AttributeError, AssertionError) as error:
        with closing(gym.make(env_id)) as single:
            _require_arrays(env_id, single.observation_space)  # SB3 cannot batch observations without a shape
        if not atari or isinstance(error, TypeError):
            raise
        raise ValueError(f"SB3's Atari preprocessing does not support {env_id}: {error}") from error
    try:
        _require_arrays(env_id, env.observation_space)
    except ValueError:
        env.close()
        raise
    return env


def _require_arrays(env_id: str, space: spaces.Space[Any]) -> None:
    """Raise if observations are neither arrays nor a dict of arrays.

    :raises ValueError: then
    """
    if not all(isinstance(part, ARRAY_SPACES) for part in space_parts(space).values()):
        raise ValueError(
            f"SB3's buffers do not support the observation space of {env_id}, {space}: it must be an array or a Dict "
            "of arrays"
        )


def wrap_as_sb3(env: VecEnv, n_stack: int) -> VecEnv:
    """Stack frames, then transpose images, as SB3's algorithms do."""
    if n_stack > 1 and not all(isinstance(space, spaces.Box) for space in space_parts(env.observation_space).values()):
        raise ValueError(f"frames of {env.observation_space} cannot be stacked")
    stacked = VecFrameStack(env, n_stack) if n_stack > 1 else env
    images: Any = [space for space in space_parts(stacked.observation_space).values() if is_image_space(space)]
    is_transposed = all(is_image_space_channels_first(space) for space in images)
    return stacked if is_transposed else VecTransposeImage(stacked)


def register_atari() -> None:
    """Register the ALE games with gymnasium if they are installed."""
    if find_spec("ale_py"):
        import ale_py

        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner per environment


def _stem(env_id: str) -> str:
    """Return the name of an environment in lower case, without its version."""
    return re.sub(r"-v\d+$", "", env_id.lower())


def _spec(env_id: str) -> Any:
    register_atari()
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            import_module(module)
        return gym.spec(name)
    except ImportError as error:
        raise ValueError(f"{env_id} not found: {error}") from error
    except gym.error.Error as error:
        names = defaultdict[str, list[str]](list)  # without versions, in which most names are similar
        for name in sorted(gym.registry, reverse=True):
            names[_stem(name)].append(name)
        stems = difflib.get_close_matches(_stem(env_id), names, n=2, cutoff=0.7)
        if (game := f"{_stem(env_id)}noframeskip") in names and game not in stems:
            stems.append(game)
        similar = [name for stem in stems for name in names[stem]]
        # SB3's Atari wrappers expect games that skip no frames.
        similar = sorted(similar, key=lambda name: "NoFrameskip" not in name)[:N_SUGGESTED]
        package = re.split(r"[^a-z0-9_]", env_id.lower())[0]
        # A module that registers its environments when it is imported.
        if not module and package and package not in sys.stdlib_module_names and find_spec(package):
            similar = [f"{package}:{env_id}"]
        advice = f"did you mean {' or '.join(similar)}?" if similar else str(error)
        missing = "" if find_spec("ale_py") else f" For ALE games: {install_command('atari')}."
        raise ValueError(
            f"unknown environment {env_id!r}; {advice}{missing} Use 'module:id' for an environment of your own"
        ) from error

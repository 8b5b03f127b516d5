"""``make_env``: Atari games as agents see them, by SB3's own helpers."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

from sb3_compressed.buffers.validation import validate_integer

__all__ = ["make_env"]


def make_env(env_id: str, n_envs: int = 1, *, frame_stack: int = 4, seed: int | None = None, **kwargs: Any) -> VecEnv:
    """Return Atari games with DeepMind's preprocessing and stacked frames, channels first.

    Their observation space is that of a model on them and of its buffer, ``(frame_stack, 84, 84)`` of uint8, as after
    the ``VecTransposeImage`` that a model puts around a ``VecFrameStack``.

    >>> env = make_env("PongNoFrameskip-v4", n_envs=2, seed=0)
    >>> env.num_envs, env.observation_space.shape
    (2, (4, 84, 84))
    >>> env.close()

    :param env_id: an environment of ALE that skips no frames, as ``PongNoFrameskip-v4``: the preprocessing skips them
    :param n_envs: how many of them
    :param frame_stack: how many frames an observation has
    :param seed: seed of the first, the others have those that follow
    :param kwargs: further arguments of SB3's ``make_atari_env``, as ``vec_env_cls=SubprocVecEnv``, ``env_kwargs`` or
        ``wrapper_kwargs``
    :raises ImportError: if ALE is not installed: ``pip install 'sb3-compressed[atari]'``
    :raises ValueError: if the environment is no Atari game, or ``n_envs`` or ``frame_stack`` is not positive
    :raises TypeError: if one of these is not an integer
    :raises gymnasium.error.UnregisteredEnv: if there is no such environment
    """
    validate_integer("n_envs", n_envs, 1)
    validate_integer("frame_stack", frame_stack, 1)
    try:
        import ale_py  # noqa: F401
        import cv2  # noqa: F401  # what SB3's preprocessing scales frames with
    except ImportError as error:
        raise ImportError(
            f"Atari games need {error.name}, which is not installed: pip install 'sb3-compressed[atari]'",
            name=error.name,
        ) from error
    _validate_game(env_id)
    env: VecEnv = make_atari_env(partial(_make_game, env_id), n_envs, seed, **kwargs)
    return VecTransposeImage(VecFrameStack(env, frame_stack) if frame_stack > 1 else env)


def _validate_game(env_id: str) -> None:
    """Raise if an environment is no Atari game, before any is made: SB3's preprocessing fails deep inside on others."""
    import ale_py

    gym.register_envs(ale_py)
    module, _, name = env_id.rpartition(":")
    if module:  # "module:name", which registers its environments when it is imported
        importlib.import_module(module)
    entry_point = gym.spec(name).entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if isinstance(creator, type) and not hasattr(creator, "get_action_meanings"):
        raise ValueError(
            f"{env_id} is not an Atari game, but a {creator.__name__}; make_env needs an environment of ALE like "
            "'PongNoFrameskip-v4'. For others use stable_baselines3.common.env_util.make_vec_env"
        )


def _make_game(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make one game, which worker processes know only after they have imported ALE, too."""
    import ale_py

    gym.register_envs(ale_py)
    return gym.make(env_id, **{"render_mode": "rgb_array", **kwargs})  # as SB3 makes environments of names

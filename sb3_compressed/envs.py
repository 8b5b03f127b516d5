"""``make_env``: Atari games as agents see them, by SB3's own helpers."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

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
    :raises ValueError: if ``frame_stack`` is not positive
    """
    if frame_stack < 1:
        raise ValueError(f"frame_stack must be positive, got {frame_stack}")
    try:
        import ale_py  # noqa: F401
        import cv2  # noqa: F401  # what SB3's preprocessing scales frames with
    except ImportError as error:
        raise ImportError(
            f"Atari games need {error.name}, which is not installed: pip install 'sb3-compressed[atari]'",
            name=error.name,
        ) from error
    env: VecEnv = make_atari_env(partial(_make_game, env_id), n_envs, seed, **kwargs)
    return VecTransposeImage(VecFrameStack(env, frame_stack) if frame_stack > 1 else env)


def _make_game(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make one game, which worker processes know only after they have imported ALE, too."""
    import ale_py

    gym.register_envs(ale_py)
    return gym.make(env_id, **{"render_mode": "rgb_array", **kwargs})  # as SB3 makes environments of names

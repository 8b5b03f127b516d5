"""``make_env``: Atari environments with the usual preprocessing, built with SB3's helpers."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.common.extras import import_extra
from sb3_compressed.common.warning import warn_user

__all__ = ["make_env"]


def make_env(env_id: str, n_envs: int = 1, *, frame_stack: int = 4, seed: int | None = None, **kwargs: Any) -> VecEnv:
    """Create Atari environments with DeepMind's preprocessing and channel-first frame stacks.

    Their observation space is that of a model and its buffer, ``(frame_stack, 84, 84)`` of uint8: it includes the
    ``VecTransposeImage`` in which a model wraps a ``VecFrameStack``.

    >>> env = make_env("PongNoFrameskip-v4", n_envs=2, seed=0)
    >>> env.num_envs, env.observation_space.shape
    (2, (4, 84, 84))
    >>> env.close()

    :param env_id: an ALE environment without frame skip, e.g. ``PongNoFrameskip-v4``: the preprocessing skips frames
    :param n_envs: number of environments
    :param frame_stack: number of frames of an observation
    :param seed: seed of the first environment; the others use the following integers
    :param kwargs: further arguments of SB3's ``make_atari_env``, e.g. ``vec_env_cls=SubprocVecEnv``, ``env_kwargs`` or
        ``wrapper_kwargs``
    :raises ImportError: if ALE or OpenCV is not installed: ``pip install '.[atari]'``
    :raises ValueError: if the environment is not an Atari game, or ``n_envs`` or ``frame_stack`` is not positive
    :raises TypeError: if ``n_envs`` or ``frame_stack`` is not an integer, or an argument is unknown
    :raises gymnasium.error.UnregisteredEnv: if the environment does not exist; the message suggests one
    """
    validate_integer("n_envs", n_envs, 1)
    validate_integer("frame_stack", frame_stack, 1)
    for name in ("ale_py", "cv2"):  # SB3's preprocessing scales frames with cv2
        import_extra(name, "atari", "Atari environments")
    of_game = {**_validated_game(env_id), **(kwargs.get("env_kwargs") or {})}
    if of_game.get("frameskip", 1) != 1 and (kwargs.get("wrapper_kwargs") or {}).get("frame_skip", 4) > 1:
        warn_user(
            f"{env_id} skips frames itself, and the preprocessing skips frames of what is left: use a NoFrameskip-v4 "
            "environment, or env_kwargs=dict(frameskip=1)"
        )
    env: VecEnv = make_atari_env(partial(_make_game, env_id), n_envs, seed, **kwargs)
    return VecTransposeImage(VecFrameStack(env, frame_stack) if frame_stack > 1 else env)


def _validated_game(env_id: str) -> dict[str, Any]:
    """Return the arguments with which an Atari game is registered.

    :raises ValueError: if it is not an Atari game, before SB3's preprocessing fails with an obscure error
    :raises gymnasium.error.UnregisteredEnv: if it does not exist
    """
    import ale_py

    gym.register_envs(ale_py)
    module, _, name = env_id.rpartition(":")
    if module:  # of "module:name", registers its environments on import
        importlib.import_module(module)
    try:
        spec = gym.spec(name)
    except gym.error.Error as error:
        game = f"{name.removeprefix('ALE/').partition('-')[0]}NoFrameskip-v4"
        hint = f" Did you mean {game!r}?" if game in gym.registry else ""
        raise gym.error.UnregisteredEnv(f"{error}{hint}") from None
    entry_point = spec.entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if isinstance(creator, type) and not hasattr(creator, "get_action_meanings"):
        raise ValueError(
            f"{env_id} is not an Atari game but a {creator.__name__}; make_env needs an ALE environment such as "
            "'PongNoFrameskip-v4'. For others use stable_baselines3.common.env_util.make_vec_env"
        )
    return dict(spec.kwargs)


def _make_game(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Create one environment; worker processes have to register ALE's environments first."""
    import ale_py

    gym.register_envs(ale_py)
    return gym.make(env_id, **{"render_mode": "rgb_array", **kwargs})  # as SB3 creates environments by id

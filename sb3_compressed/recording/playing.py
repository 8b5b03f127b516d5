""":func:`record_episodes`: whole episodes of a policy, recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_compressed.datasets.episodes import trajectories
from sb3_compressed.progress import progress_bar as shown_progress
from sb3_compressed.recording.record_buffer import RecordBuffer

if TYPE_CHECKING:
    from stable_baselines3.common.type_aliases import PolicyPredictor

__all__ = ["record_episodes"]

Features = Callable[[Any], Any]
"""From observations ``(n_envs, *obs_shape)``, or a dict of them, to features ``(n_envs, *feature_shape)``."""


def record_episodes(
    model: PolicyPredictor,
    env: VecEnv | gym.Env[Any, Any],
    n_episodes: int = 10,
    recording: RecordBuffer | None = None,
    *,
    deterministic: bool = True,
    render: bool = False,
    features: Features | None = None,
    progress_bar: bool = False,
    **options: Any,
) -> RecordBuffer:
    """Let a policy play, and record as many whole episodes, one after the other.

    An episode is in the recording when it is over, so nothing is left half by an interruption. Of several environments
    each plays its share of the episodes, as for SB3's ``evaluate_policy``, so that short ones are no more frequent than
    they are; what an environment plays after its last one is not recorded.

    >>> from stable_baselines3 import PPO
    >>> from sb3_compressed.datasets import trajectories
    >>> from sb3_compressed.recording import record_episodes
    >>> model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0)
    >>> recording = record_episodes(model, model.get_env(), n_episodes=3)
    >>> [episode.has_end for episode in trajectories(recording.buffer)]
    [True, True, True]

    :param model: what has ``predict``: a model of SB3 or sb3-contrib, or a policy
    :param env: environments, reset at the beginning. What ends an episode is their ``done``: a life, with SB3's
        ``AtariWrapper``
    :param n_episodes: how many episodes
    :param recording: a recording of one environment to add them to; ``None`` for a new one
    :param deterministic: whether the most probable actions are taken
    :param render: whether rendered frames ``(height, width, 3)`` are recorded in the places of observations, of
        environments with ``render_mode="rgb_array"``. An episode's last one is the last but one once more: a ``VecEnv``
        has begun the next episode before it can be rendered
    :param features: what computes features that are recorded, too, from observations
    :param progress_bar: whether a progress bar is shown
    :param options: further arguments of the new :class:`RecordBuffer`, as ``storage`` or ``compression_method``
    :return: the recording
    :raises ValueError: if the recording does not fit, or environments cannot be rendered so
    """
    if not isinstance(env, VecEnv):
        env = DummyVecEnv([lambda: env])  # type: ignore[list-item, return-value]
    if n_episodes < 1:
        raise ValueError(f"n_episodes must be positive, got {n_episodes}")
    if recording is not None and options:
        raise ValueError(f"options are for a new recording, and one was passed, too: {sorted(options)}")
    if render and env.render_mode != "rgb_array":
        raise ValueError(f"environments have to be made with render_mode='rgb_array', got {env.render_mode!r}")
    obs: Any = env.reset()
    frames = _rendered(env) if render else obs
    if recording is None:
        options.setdefault("feature_space", None if features is None else _space_of(features(obs)))
        recording = RecordBuffer(_space_of(frames) if render else env.observation_space, env.action_space, **options)
    if recording.n_envs != 1:
        raise ValueError(f"episodes come one after the other, and the recording is of {recording.n_envs} environments")
    # What each environment plays at present.
    stages = [
        type(recording)(recording.observation_space, env.action_space, feature_space=recording.feature_space)
        for _ in range(env.num_envs)
    ]
    left = [(n_episodes + index) // env.num_envs for index in range(env.num_envs)]
    states, starts = None, np.ones(env.num_envs, np.bool_)
    with shown_progress(n_episodes, "recording episodes", is_shown=progress_bar) as advance:
        while any(left):
            actions, states = model.predict(obs, state=states, episode_start=starts, deterministic=deterministic)
            of_features = None if features is None else features(obs)
            before = frames
            obs, rewards, starts, infos = env.step(actions)
            frames = _rendered(env) if render else obs
            for index in range(env.num_envs):
                if not left[index]:
                    continue
                info = {**infos[index], "terminal_observation": before[index]} if render else infos[index]
                stages[index].record(
                    _of_env(before, index),
                    actions[index],
                    _of_env(frames, index),
                    rewards[index],
                    starts[index],
                    info,
                    features=_of_env(of_features, index),
                )
                if starts[index]:
                    _move(stages[index], recording)
                    left[index] -= 1
                    advance(1)
    return recording


def _move(stage: RecordBuffer, recording: RecordBuffer) -> None:
    """Move an episode that is over from where it was played to the recording."""
    for episode in trajectories(stage.buffer):
        recording.add_episode(episode)
    stage.buffer.reset()


def _rendered(env: VecEnv) -> NDArray[Any]:
    """Return what each environment shows, ``(n_envs, height, width, 3)``."""
    return np.stack([image for image in env.get_images() if image is not None])


def _space_of(values: Any) -> spaces.Space[Any]:
    """Return the space of values like these, ``(n_envs, *shape)`` or a dict of them."""
    if isinstance(values, dict):
        return spaces.Dict({key: _space_of(value) for key, value in values.items()})
    array = np.asarray(values)
    dtype: Any = array.dtype.type
    low, high = (0, 1) if array.dtype == np.bool_ else (-np.inf, np.inf)
    if array.dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return spaces.Box(low, high, array.shape[1:], dtype)


def _of_env(values: Any, index: int) -> Any:
    """Return what is one environment's."""
    if isinstance(values, dict):
        return {key: value[index] for key, value in values.items()}
    return None if values is None else values[index]

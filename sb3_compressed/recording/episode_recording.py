"""``record_episodes``: run a policy and record complete episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_compressed.common.progress import progress_bar as shown_progress
from sb3_compressed.common.spaces import unbounded_space
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.datasets.trajectory import trajectories
from sb3_compressed.recording.record_buffer import RecordBuffer

if TYPE_CHECKING:
    from stable_baselines3.common.type_aliases import PolicyPredictor

__all__ = ["record_episodes"]

Features = Callable[[Any], Any]
"""Maps observations ``(n_envs, *obs_shape)``, or a dict of such arrays, to features ``(n_envs, *feature_shape)``."""


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
    """Run a policy and record ``n_episodes`` complete episodes, one after the other.

    An episode is added to the recording when it ends, so an interruption leaves complete episodes only. As in SB3's
    ``evaluate_policy``, each environment contributes the same number of episodes, give or take one, so that short
    episodes are not overrepresented.

    :param model: an object with ``predict``: a model of SB3 or sb3-contrib, or a policy
    :param env: one or more environments, which are reset first. Episodes end with ``done``: with SB3's
        ``AtariWrapper``, when a life is lost
    :param n_episodes: number of episodes
    :param recording: a recording of one environment to append to; ``None`` for a new one
    :param deterministic: whether to use deterministic actions
    :param render: whether to record rendered frames ``(height, width, 3)`` instead of observations, which needs
        environments with ``render_mode="rgb_array"``. The last frame of an episode repeats the one before it, because
        a ``VecEnv`` resets the environment before it can be rendered
    :param features: function that computes features of observations to record
    :param progress_bar: whether to show a progress bar
    :param options: further arguments of the new :class:`RecordBuffer`, such as ``storage`` or ``compression_method``
    :return: the recording
    :raises ValueError: if the recording has other spaces or several environments, or an environment cannot be rendered
    """
    if not isinstance(env, VecEnv):
        env = DummyVecEnv([lambda: env])  # type: ignore[list-item, return-value]
    if n_episodes < 1:
        raise ValueError(f"n_episodes must be positive, got {n_episodes}")
    if recording is not None and options:
        raise ValueError(f"options are for a new recording, but a recording was passed, too: {sorted(options)}")
    if render and env.render_mode != "rgb_array":
        raise ValueError(f"render=True needs environments with render_mode='rgb_array', got {env.render_mode!r}")
    obs: Any = env.reset()
    frames = _rendered(env) if render else obs
    if recording is None:
        options.setdefault("feature_space", None if features is None else _space_of(features(obs)))
        recording = RecordBuffer(_space_of(frames) if render else env.observation_space, env.action_space, **options)
    if recording.n_envs != 1:
        raise ValueError(f"record_episodes needs a recording of one environment, got n_envs={recording.n_envs}")
    # The episode that each environment is in.
    current = [
        type(recording)(recording.observation_space, env.action_space, feature_space=recording.feature_space)
        for _ in range(env.num_envs)
    ]
    remaining = [(n_episodes + index) // env.num_envs for index in range(env.num_envs)]
    states, dones = None, np.ones(env.num_envs, np.bool_)
    with shown_progress(n_episodes, "recording episodes", is_shown=progress_bar) as advance:
        while any(remaining):
            actions, states = model.predict(obs, state=states, episode_start=dones, deterministic=deterministic)
            values = None if features is None else features(obs)
            obs, rewards, dones, infos = env.step(actions)
            new_frames = _rendered(env) if render else obs
            for index in np.flatnonzero(remaining).tolist():
                info = {**infos[index], "terminal_observation": frames[index]} if render else infos[index]
                before, action, after, value = (_of_env(each, index) for each in (frames, actions, new_frames, values))
                current[index].record(before, action, after, rewards[index], dones[index], info, features=value)
                if dones[index]:
                    for episode in trajectories(current[index].buffer):
                        recording.add_episode(episode)
                    current[index].buffer.reset()
                    remaining[index] -= 1
                    advance(1)
            frames = new_frames
    return recording


def _of_env(values: Any, index: int) -> Any:
    """Return the values of one environment, ``None`` for ``None``."""
    return None if values is None else tree_map(lambda array: array[index], values)


def _rendered(env: VecEnv) -> NDArray[Any]:
    """Return rendered frames of all environments, ``(n_envs, height, width, 3)``."""
    return np.stack([image for image in env.get_images() if image is not None])


def _space_of(values: Any) -> spaces.Space[Any]:
    """Return an unbounded space for values ``(n_envs, *shape)`` or a dict of such arrays."""
    found = tree_map(lambda array: unbounded_space(array.shape[1:], array.dtype), values)
    return spaces.Dict(found) if isinstance(found, dict) else found

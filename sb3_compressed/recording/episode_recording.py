"""``record_episodes``: run a policy and record complete episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_compressed.common.progress import progress_bar as shown_progress
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.datasets.trajectory import trajectories
from sb3_compressed.recording.record_buffer import RecordBuffer

if TYPE_CHECKING:
    from stable_baselines3.common.type_aliases import PolicyPredictor

__all__ = ["record_episodes"]


def record_episodes(
    model: PolicyPredictor,
    env: VecEnv | gym.Env[Any, Any],
    n_episodes: int = 10,
    recording: RecordBuffer | None = None,
    *,
    deterministic: bool = True,
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
    :param recording: a recording of one environment, without features, to append to; ``None`` for a new one
    :param deterministic: whether to use deterministic actions
    :param progress_bar: whether to show a progress bar
    :param options: further arguments of the new :class:`RecordBuffer`, such as ``storage`` or ``compression_method``
    :return: the recording
    :raises ValueError: if the recording has other spaces, several environments or features
    """
    if not isinstance(env, VecEnv):
        env = DummyVecEnv([lambda: env])  # type: ignore[list-item, return-value]
    if n_episodes < 1:
        raise ValueError(f"n_episodes must be positive, got {n_episodes}")
    if recording is not None and options:
        raise ValueError(f"options are for a new recording, but a recording was passed, too: {sorted(options)}")
    if recording is None:
        recording = RecordBuffer(env.observation_space, env.action_space, **options)
    if recording.n_envs != 1 or recording.feature_space is not None:
        raise ValueError(
            "record_episodes needs a recording of one environment without features, got "
            f"n_envs={recording.n_envs}, feature_space={recording.feature_space}"
        )
    # The episode that each environment is in.
    current = [type(recording)(recording.observation_space, env.action_space) for _ in range(env.num_envs)]
    remaining = [(n_episodes + index) // env.num_envs for index in range(env.num_envs)]
    obs: Any = env.reset()
    states, dones = None, np.ones(env.num_envs, np.bool_)
    with shown_progress(n_episodes, "recording episodes", is_shown=progress_bar) as advance:
        while any(remaining):
            actions, states = model.predict(obs, state=states, episode_start=dones, deterministic=deterministic)
            new_obs, rewards, dones, infos = env.step(actions)
            for index in np.flatnonzero(remaining).tolist():
                before, after = (tree_map(lambda values, at=index: values[at], each) for each in (obs, new_obs))
                current[index].record(before, actions[index], after, rewards[index], dones[index], infos[index])
                if dones[index]:
                    for episode in trajectories(current[index].buffer):
                        recording.add_episode(episode)
                    current[index].buffer.reset()
                    remaining[index] -= 1
                    advance(1)
            obs = new_obs
    return recording

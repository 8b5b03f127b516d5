"""``warm_up``: fills buffers before the training, at random or by a policy, exactly as SB3's algorithms fill them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from sb3_compressed.progress import progress_bar as shown_progress

__all__ = ["warm_up"]


def warm_up(
    buffers: ReplayBuffer | Sequence[ReplayBuffer],
    env: VecEnv,
    n_steps: int,
    model: PolicyPredictor | None = None,
    *,
    deterministic: bool = False,
    progress_bar: bool = True,
) -> None:
    """Play and add every transition to one or several replay buffers.

    What is added is what SB3's off-policy algorithms add: at an episode's end its last observation rather than the
    first of the next one, time limits, actions of a Box space scaled to -1..1, observations and rewards without the
    normalisation of a ``VecNormalize``. Episodes that are not over at the end are marked as cut off by a time limit,
    since the environment is reset before the training.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import CompressedReplayBuffer
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, learning_starts=0)
    >>> warm_up(model.replay_buffer, model.get_env(), 1_000, progress_bar=False)
    >>> model.replay_buffer.size()
    1000

    :param buffers: replay buffers, also SB3's own, with as many environments as ``env`` and its spaces
    :param env: what to play, ``model.get_env()`` of the model to train; it is reset first
    :param n_steps: environment steps, of all environments together, as SB3 counts them; rounded up to whole rows
    :param model: what plays: a model, or anything else with its ``predict``; ``None`` for random actions, of
        ``env.action_space``, whose ``seed`` makes them the same each time
    :param deterministic: whether the model plays without exploration
    :param progress_bar: whether a progress bar is shown
    :raises ValueError: if a buffer does not fit the environment, or ``n_steps`` is negative; nothing is added then
    """
    if n_steps < 0:
        raise ValueError(f"n_steps must not be negative, got {n_steps}")
    buffers = [buffers] if isinstance(buffers, ReplayBuffer) else list(buffers)
    for number, buffer in enumerate(buffers):
        _validate(buffer, env, f"buffer {number}" if len(buffers) > 1 else "the buffer")
    n_rows = -(-n_steps // env.num_envs)
    normalize = unwrap_vec_normalize(env)
    player = _Player(env, model, deterministic=deterministic)
    obs = env.reset()
    original = obs if normalize is None else normalize.get_original_obs()
    with shown_progress(n_rows * env.num_envs, "warming up", is_shown=progress_bar) as advance:
        for row in range(n_rows):
            actions, stored_actions = player.actions(obs)
            obs, rewards, dones, infos = env.step(actions)
            player.episode_starts = dones
            if normalize is not None:
                rewards = normalize.get_original_reward()
            new = obs if normalize is None else normalize.get_original_obs()
            next_obs = _with_last_observations(new, dones, infos, normalize)
            if row == n_rows - 1:
                infos = [info if done else {**info, "TimeLimit.truncated": True} for info, done in zip(infos, dones)]
                dones = np.ones_like(dones)
            for buffer in buffers:
                # SB3's Dict buffers write into the dicts they are given.
                buffer.add(_shallow(original), _shallow(next_obs), stored_actions, rewards, dones, infos)
            original = new
            advance(env.num_envs)


def _validate(buffer: ReplayBuffer, env: VecEnv, name: str) -> None:
    if buffer.n_envs != env.num_envs:
        raise ValueError(
            f"{name} is for {buffer.n_envs} environments, and {env.num_envs} are played; make it with "
            f"n_envs={env.num_envs}"
        )
    for kind in ("observation_space", "action_space"):
        ours, theirs = getattr(buffer, kind), getattr(env, kind)
        if ours != theirs:
            raise ValueError(
                f"{name} has the {kind} {ours}, and the environment {theirs}; play model.get_env(), around which the "
                "model has put what it needs"
            )


class _Player:
    """Chooses actions, and says how off-policy algorithms store them.

    :ivar episode_starts: where the observations are the first of an episode
    """

    def __init__(self, env: VecEnv, model: PolicyPredictor | None, *, deterministic: bool) -> None:
        self.episode_starts = np.ones(env.num_envs, dtype=bool)
        self._env, self._model, self._deterministic = env, model, deterministic
        self._state: tuple[NDArray[Any], ...] | None = None

    def actions(self, obs: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return what to do in each environment, and the same as it is stored."""
        space = self._env.action_space
        if self._model is None:
            actions = np.array([space.sample() for _ in range(self._env.num_envs)])
        else:
            actions, self._state = self._model.predict(
                obs, state=self._state, episode_start=self.episode_starts, deterministic=self._deterministic
            )
        if not isinstance(space, spaces.Box):
            return actions, actions
        # There and back, as SB3 does it, so that what is done is exactly what is stored.
        size = space.high - space.low
        stored = 2.0 * ((actions - space.low) / size) - 1.0
        return space.low + (0.5 * (stored + 1.0) * size), stored


def _with_last_observations(
    new: Any, dones: NDArray[Any], infos: list[dict[str, Any]], normalize: VecNormalize | None
) -> Any:
    """Return the observations that followed, where environments were reset in between the last ones before that."""
    following = copy.deepcopy(new)
    for env in np.flatnonzero(dones):
        last = infos[env].get("terminal_observation")
        if last is None:
            continue
        if normalize is not None:
            last = normalize.unnormalize_obs(last)
        if isinstance(following, dict):
            for key, values in following.items():
                values[env] = last[key]
        else:
            following[env] = last
    return following


def _shallow(obs: Any) -> Any:
    return dict(obs) if isinstance(obs, dict) else obs

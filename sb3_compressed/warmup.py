"""``warm_up``: prefills replay buffers with random actions or a policy, exactly like SB3's off-policy algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb3_compressed.common.action_scaling import scale_actions, unscale_actions
from sb3_compressed.common.progress import progress_bar as shown_progress
from sb3_compressed.step import with_last_observations

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
    """Prefill one or several replay buffers with transitions of an environment.

    Transitions are stored as SB3's off-policy algorithms store them: the next observation at the end of an episode is
    its last one rather than the first of the next episode, time limits are recorded, actions of a Box space are scaled
    to -1..1, and observations and rewards are not normalized by a ``VecNormalize``. Episodes that are unfinished at
    the end are marked as truncated by a time limit, since training begins with a reset.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import CompressedReplayBuffer
    >>> model = DQN(
    ...     "MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, learning_starts=0
    ... )
    >>> warm_up(model.replay_buffer, model.get_env(), 1_000, progress_bar=False)
    >>> model.replay_buffer.size()
    1000

    :param buffers: replay buffers, including SB3's own, with the number of environments and the spaces of ``env``
    :param env: the environment, ``model.get_env()`` of the model to train; it is reset first
    :param n_steps: number of environment steps over all environments, as in SB3; rounded up to whole rows
    :param model: a model, or any object with a compatible ``predict``; ``None`` for random actions from
        ``env.action_space``, whose ``seed`` makes them reproducible
    :param deterministic: whether the model acts without exploration
    :param progress_bar: whether to show a progress bar
    :raises ValueError: if a buffer does not match the environment, or ``n_steps`` is negative; nothing is added then
    """
    if n_steps < 0:
        raise ValueError(f"n_steps must not be negative, got {n_steps}")
    buffers = [buffers] if isinstance(buffers, ReplayBuffer) else list(buffers)
    for number, buffer in enumerate(buffers):
        _validate(buffer, env, f"buffer {number}" if len(buffers) > 1 else "the buffer")
    n_rows = -(-n_steps // env.num_envs)
    normalize = unwrap_vec_normalize(env)
    space = env.action_space
    state: tuple[NDArray[Any], ...] | None = None
    episode_starts = np.ones(env.num_envs, dtype=bool)
    obs: Any = env.reset()
    unnormalized = obs if normalize is None else normalize.get_original_obs()
    with shown_progress(n_rows * env.num_envs, "warming up", is_shown=progress_bar) as advance:
        for row in range(n_rows):
            if model is None:
                actions = np.array([space.sample() for _ in range(env.num_envs)])
            else:
                actions, state = model.predict(
                    obs, state=state, episode_start=episode_starts, deterministic=deterministic
                )
            stored_actions = actions
            if isinstance(space, spaces.Box):
                # Scale and unscale like SB3, so that the actions taken are exactly those stored.
                stored_actions = scale_actions(actions, space)
                actions = unscale_actions(stored_actions, space)
            obs, rewards, dones, infos = env.step(actions)
            episode_starts = dones
            if normalize is not None:
                rewards = normalize.get_original_reward()
            new = obs if normalize is None else normalize.get_original_obs()
            unnormalize = None if normalize is None else normalize.unnormalize_obs
            next_obs = with_last_observations(new, dones, infos, unnormalize)
            if row == n_rows - 1:
                infos = [info if done else {**info, "TimeLimit.truncated": True} for info, done in zip(infos, dones)]
                dones = np.ones_like(dones)
            for buffer in buffers:
                # SB3's Dict buffers write into the dicts that they receive.
                buffer.add(_shallow(unnormalized), _shallow(next_obs), stored_actions, rewards, dones, infos)
            unnormalized = new
            advance(env.num_envs)


def _validate(buffer: ReplayBuffer, env: VecEnv, name: str) -> None:
    if buffer.n_envs != env.num_envs:
        raise ValueError(
            f"{name} has n_envs={buffer.n_envs}, but the environment has {env.num_envs}; create the buffer with "
            f"n_envs={env.num_envs}"
        )
    for kind in ("observation_space", "action_space"):
        ours, theirs = getattr(buffer, kind), getattr(env, kind)
        if ours != theirs:
            raise ValueError(
                f"{name} has the {kind} {ours}, but the environment has {theirs}; pass model.get_env(), which has the "
                "wrappers of the model"
            )


def _shallow(obs: Any) -> Any:
    return dict(obs) if isinstance(obs, dict) else obs

"""``Collector``: steps environments with a copy of the policy, and sends the transitions to a shard.

It runs as an actor of Ray, see :class:`.CollectorGroup`, and can be used in the process of the caller as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, unwrap_vec_normalize
from stable_baselines3.common.vec_env.patch_gym import _patch_env

from sb3_compressed.distributed.exploration import ExplorationConfig, Explorer
from sb3_compressed.distributed.policy_copy import load_weights
from sb3_compressed.distributed.shard import ShardStatus, require_version
from sb3_compressed.distributed.writer import ReplayWriter
from sb3_compressed.step import with_last_observations

__all__ = ["CollectResult", "Collector", "CollectorNotPrepared", "CollectorSettings", "EpisodeEnd"]

#: What callbacks and the logs of SB3 read of the infos of a step.
LOGGED_INFOS = ("episode", "is_success")


class CollectorNotPrepared(LookupError):
    """A collector was restarted, so it has no environments yet."""


@dataclass(frozen=True)
class CollectorSettings:
    """What all collectors of a group have in common.

    :param make_env: returns an environment, or several that are vectorized
    :param observation_space: of the environments, as the learner wraps them
    :param action_space: of the environments
    :param new_policy: constructs the policy
    :param exploration: how to explore
    :param n_collectors: number of collectors
    :param seed: of all collectors; ``None`` for random ones
    """

    make_env: Callable[[], gym.Env[Any, Any] | VecEnv]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    new_policy: Callable[[], BasePolicy]
    exploration: ExplorationConfig
    n_collectors: int = 1
    seed: int | None = None


class EpisodeEnd(NamedTuple):
    """What SB3 logs of a step: nearly always the end of an episode.

    :param offset: the number of the transition among those of the result, which are counted step by step
    :param info: those entries of ``info`` that SB3 logs, ``"episode"`` of ``Monitor`` and ``"is_success"``
    :param done: whether the episode ended; SB3's Atari environments return its reward with the last of its lives
    """

    offset: int
    info: dict[str, Any]
    done: bool


class CollectResult(NamedTuple):
    """What a collector has done in one call.

    :param n_transitions: number of transitions that it collected, and that shards have acknowledged
    :param episodes: which episodes ended
    :param status: the state of the shard
    """

    n_transitions: int
    episodes: list[EpisodeEnd]
    status: ShardStatus | None


class Collector:
    """Steps environments with a copy of the policy.

    It has to be prepared and connected before it collects, also after an exception.
    """

    def __init__(self) -> None:
        self._env: VecEnv | None = None
        self._writer: ReplayWriter | None = None

    def prepare(self, version: str, settings: CollectorSettings, index: int, n_restarts: int = 0) -> int:
        """Create the environments and the policy, and return the number of environments.

        :param version: the version of this package that the learner has
        :param settings: what all collectors have in common
        :param index: the number of this collector
        :param n_restarts: how often it was restarted; it has another seed then, since it would repeat what it did
        :raises RuntimeError: if this process has another version of this package
        :raises ValueError: if the environments are not those that the policy was made for
        """
        require_version(version)
        th.set_num_threads(1)  # there are as many processes as cores, or more
        self._close_env()
        self._env = env = new_env(settings)
        n_envs = env.num_envs
        number = n_restarts * settings.n_collectors + index
        if settings.seed is not None:
            first = (settings.seed + number * n_envs) % 2**31
            set_random_seed(first)  # policies may draw from the generators of torch and NumPy
            env.seed(first)
        self._policy = settings.new_policy()
        self._policy.set_training_mode(False)
        self._explorer = Explorer(
            self._policy, settings.exploration, n_envs, collector=index, n_collectors=settings.n_collectors,
            seed=None if settings.seed is None else (settings.seed, n_restarts),
        )  # fmt: skip
        self._version = 0
        self._observations: Any = env.reset()
        return n_envs

    def connect(self, writer: ReplayWriter) -> None:
        """Send transitions to a shard from now on.

        :param writer: a new one, with the number of environments that :meth:`prepare` returned
        """
        self._writer = writer

    def collect(
        self,
        n_steps: int,
        version: int = 0,
        weights: Mapping[str, NDArray[Any]] | None = None,
        *,
        n_random_steps: int = 0,
    ) -> CollectResult:
        """Step all environments, and return when shards have acknowledged the transitions.

        :param n_steps: how often
        :param version: the version of the policy
        :param weights: those of that version; they are loaded if it is another one than before
        :param n_random_steps: the number of steps whose actions are random, since learning has not started
        :raises CollectorNotPrepared: before it was prepared, and after an exception or Ctrl-C
        """
        env, writer = self._env, self._writer
        if env is None or writer is None:
            raise CollectorNotPrepared("the collector has failed, or is new; call prepare() and connect()")
        try:
            if weights is not None and version != self._version:
                load_weights(self._policy, weights)
                self._version = version
            return self._collect(env, writer, n_steps, n_random_steps)
        except BaseException:
            # Calls that were made already must not continue, and after Ctrl-C between a step of the environments and
            # its end here, the next transition would begin with an earlier observation.
            self._writer = None
            raise

    def _collect(self, env: VecEnv, writer: ReplayWriter, n_steps: int, n_random_steps: int) -> CollectResult:
        episodes: list[EpisodeEnd] = []
        for step in range(n_steps):
            dones, infos = self._step(env, writer, is_random=step < n_random_steps)
            episodes += episode_ends(dones, infos, step * env.num_envs)
        writer.flush()
        return CollectResult(n_steps * env.num_envs, episodes, writer.status)

    def _step(
        self, env: VecEnv, writer: ReplayWriter, *, is_random: bool
    ) -> tuple[NDArray[Any], Sequence[dict[str, Any]]]:
        """Step all environments and add the transitions, as ``OffPolicyAlgorithm.collect_rollouts`` does."""
        actions, stored_actions = self._explorer.actions(self._observations, is_warmup=is_random)
        observations, rewards, dones, infos = env.step(actions)
        next_observations = with_last_observations(observations, dones, infos) if dones.any() else observations
        truncations = [{"TimeLimit.truncated": info.get("TimeLimit.truncated", False)} for info in infos]
        writer.add(self._observations, next_observations, stored_actions, rewards, dones, truncations)
        self._observations = observations
        self._explorer.end_episodes(dones)
        return dones, infos

    def close(self) -> None:
        """Close the environments, after everything was sent."""
        if self._writer is not None:
            self._writer.flush()
        self._close_env()

    def _close_env(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = self._writer = None


def new_env(settings: CollectorSettings) -> VecEnv:
    """Return the environments of a collector, wrapped as SB3's algorithms wrap theirs.

    :raises TypeError: if ``make_env`` returns something else
    :raises ValueError: if the spaces are not those of the learner, or the environments normalize
    """
    made = settings.make_env()
    if isinstance(made, VecEnv):
        if unwrap_vec_normalize(made) is not None:
            raise ValueError("make_env must return environments without VecNormalize, which collectors do not support")
        env = made
    elif isinstance(made, gym.Env):
        env = DummyVecEnv([lambda: _monitored(made)])
    else:
        raise TypeError(f"make_env must return a gymnasium.Env or a VecEnv, got {type(made).__name__}")
    env = BaseAlgorithm._wrap_env(env)
    for name, found, expected in (
        ("observation", env.observation_space, settings.observation_space),
        ("action", env.action_space, settings.action_space),
    ):
        if found != expected:
            env.close()
            raise ValueError(f"the environments of make_env have the {name} space {found}, the learner has {expected}")
    return env


def _monitored(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    patched = _patch_env(env)
    return patched if is_wrapped(patched, Monitor) else Monitor(patched)


def episode_ends(dones: NDArray[Any], infos: Sequence[Mapping[str, Any]], first: int) -> list[EpisodeEnd]:
    """Return what SB3 logs of a step.

    :param first: the number of the first transition of the step
    """
    return [
        EpisodeEnd(first + env, {name: info[name] for name in LOGGED_INFOS if name in info}, bool(done))
        for env, (done, info) in enumerate(zip(dones, infos, strict=True))
        if done or "episode" in info
    ]

"""``CompressedHerReplayBuffer``: hindsight experience replay."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_compressed.buffers.allocation import BaseConstructor
from sb3_compressed.buffers.base import Methods
from sb3_compressed.buffers.observations import as_indices
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.buffers.tensors import as_array
from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.buffers.weighted_samples import weighted_samples, weights_and_indices
from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.samplers import Draw

__all__ = ["CompressedHerReplayBuffer"]


class CompressedHerReplayBuffer(CompressedReplay, HerReplayBuffer, BaseConstructor):
    """SB3's ``HerReplayBuffer`` (hindsight experience replay, https://arxiv.org/abs/1707.01495), compressed.

    Arguments: those of ``HerReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    REIMPLEMENTED: ClassVar[Methods] = (
        *CompressedReplay.REIMPLEMENTED,
        HerReplayBuffer.add, HerReplayBuffer._get_real_samples, HerReplayBuffer._get_virtual_samples,
    )  # fmt: skip
    _extends_at_once = False

    def joint_commit(self, n_steps: int) -> AbstractContextManager[None]:
        """Do nothing: each ``add`` of hindsight replay is a transaction of its own."""
        return nullcontext()

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of every environment to the current episodes; see :meth:`.CompressedReplay.add`."""
        self._add(obs, next_obs, action, reward, done, infos, self._write_episode_steps)

    def _write_steps(
        self, n_steps: int, encoded: Any, action: Any, reward: Any, done: Any, timeouts: Any, infos: Any
    ) -> None:
        # A subclass that skips add() of this class, as by super(CompressedHerReplayBuffer, self).add(), tracks episodes
        # in its own way, which SB3's sampling follows.
        if self._bound_sampler is not None or self._storage is not None:
            raise TypeError(
                f"{type(self).__name__} skips CompressedHerReplayBuffer.add, so that its sampler or folder would not "
                "contain its episodes: call super().add(), or leave sampler= and storage= out; save_checkpoint works"
            )
        super()._write_steps(n_steps, encoded, action, reward, done, timeouts, infos)

    def _write_episode_steps(
        self, n_steps: int, encoded: Any, action: Any, reward: Any, done: Any, timeouts: Any, infos: Any
    ) -> None:
        """Write a step as :meth:`_write_steps` does, and its episodes."""
        # An episode of which a row is overwritten can no longer be sampled.
        row, n_rows, bound = self.pos, self.buffer_size, self._bound_sampler
        for env in np.flatnonzero(self.ep_length[row] > 0).tolist():
            # Where the episode wraps around, this is past it, so that all lengths are cleared, as in SB3.
            end = self.ep_start[row, env] + self.ep_length[row, env]
            rows = np.arange(row, min(end, row + n_rows)) % n_rows
            if bound is not None:  # before the lengths: if this is interrupted, the next add repeats both
                bound.sampler.remove(rows * self.n_envs + env)
            self.ep_length[rows, env] = 0
        self.ep_start[row] = self._current_ep_start
        if self.copy_info_dict:
            self.infos[row] = infos
        # An episode that ended without its length would continue with the next one.
        with deferred_interrupts() if np.any(done) else nullcontext():
            super()._write_steps(n_steps, encoded, action, reward, done, timeouts, infos)
            for env in range(self.n_envs):
                if done[env]:
                    self._compute_episode_length(env)

    def _validated_arguments(self, *given: Any) -> tuple[Any, ...]:
        validated = super()._validated_arguments(*given)
        if np.shape(validated[-1]) != (self.n_envs,):
            raise ValueError(
                f"done must have the shape ({self.n_envs},), since episodes end for each environment, got "
                f"{np.shape(validated[-1])}"
            )
        return validated

    def _compute_episode_length(self, env_idx: int) -> None:
        """Complete the current episode of an environment, as SB3's buffer does, and pass it to the sampler."""
        first = int(self._current_ep_start[env_idx])
        super()._compute_episode_length(env_idx)
        if (bound := self._bound_sampler) is not None:
            rows = np.arange(first, first + self.ep_length[first, env_idx]) % self.buffer_size
            bound.sampler.add(rows * self.n_envs + env_idx, self)

    def _get_real_samples(self, batch_indices: Any, env_indices: Any, env: VecNormalize | None = None) -> Any:
        return self._samples_at(batch_indices, env_indices, env)

    def _get_virtual_samples(self, batch_indices: Any, env_indices: Any, env: VecNormalize | None = None) -> Any:
        self._require_n_envs()
        transitions = self._transitions_at(as_indices(batch_indices) * self.n_envs + env_indices)
        observations, next_observations = self._read(transitions)
        infos: Any = [{} for _ in batch_indices]
        if self.copy_info_dict:
            infos = copy.deepcopy(self.infos[batch_indices, env_indices])
        goals = self._sample_goals(batch_indices, env_indices)
        observations["desired_goal"] = next_observations["desired_goal"] = goals
        assert self.env is not None, (
            "You must initialize HerReplayBuffer with a VecEnv so it can compute rewards for virtual transitions"
        )
        # All environments compute the same rewards, from the goals that were achieved by the actions.
        achieved = as_array(next_observations["achieved_goal"])
        rewards = self.env.env_method("compute_reward", achieved, goals, infos, indices=[0])[0]
        transitions = transitions._replace(rewards=rewards.astype(np.float32).reshape(-1, 1))
        # The environment may keep and change what it received.
        return self._to_tensors(transitions, observations, next_observations, env, copy=True)

    def truncate_last_trajectory(self) -> None:
        """End unfinished episodes, as SB3's buffer does, also in the buffer's folder."""
        super().truncate_last_trajectory()
        if self._storage is not None:
            self.flush()

    def _validate_sampling(self, batch_size: Any) -> None:
        validate_integer("batch_size", batch_size, 0)
        if not self.ep_length.any():  # the first episode is not over
            HerReplayBuffer.sample(self, batch_size)  # raises SB3's error

    def _draw(self, batch_size: int) -> Draw:
        self._validate_sampling(batch_size)
        return super()._draw(batch_size)

    def _in_batch_order(self, draw: Draw) -> Draw:
        # SB3 replaces the goals of the first transitions. A sampler may order them, for example by their position, so
        # they are shuffled. The batch begins with the real transitions.
        indices, weights = draw
        n_virtual = int(self.her_ratio * len(indices))
        order = np.roll(np.random.permutation(len(indices)), -n_virtual)  # noqa: NPY002  # what SB3 draws from
        return Draw(indices[order], None if weights is None else weights[order])

    def _samples_of(self, draw: Draw, env: Any) -> Any:
        n_virtual = int(self.her_ratio * len(draw.indices))
        n_real = len(draw.indices) - n_virtual
        rows, envs = np.divmod(draw.indices, self.n_envs)
        # Environments need not compute the rewards of no transitions, as in a small last batch of an epoch.
        parts = []
        if n_real or not n_virtual:
            parts.append(self._get_real_samples(rows[:n_real], envs[:n_real], env))
        if n_virtual:
            parts.append(self._get_virtual_samples(rows[n_real:], envs[n_real:], env))
        samples = parts[0] if len(parts) == 1 else type(parts[0])(*map(_concatenated, *parts))
        return weighted_samples(self._output(samples), *weights_and_indices(draw, self.device))


def _concatenated(first: Any, second: Any) -> Any:
    """Return one field of two batches."""
    return None if first is None else tree_map(lambda *parts: th.cat(parts), first, second)

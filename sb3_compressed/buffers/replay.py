"""Compressed replay buffers, one for each of SB3's."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_compressed.buffers.arguments import warn_of_time_limits
from sb3_compressed.buffers.base import Methods
from sb3_compressed.buffers.observation_batch import ObservationBatch, Transitions, as_indices, take
from sb3_compressed.buffers.replay_mixin import CompressedReplay
from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.buffers.weighted_samples import weighted_samples
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.samplers import Draw

__all__ = [
    "CompressedDictReplayBuffer",
    "CompressedHerReplayBuffer",
    "CompressedNStepReplayBuffer",
    "CompressedReplayBuffer",
]


class CompressedReplayBuffer(CompressedReplay, ReplayBuffer):
    """SB3's ``ReplayBuffer``, compressed: for DQN, SAC, TD3, DDPG, QR-DQN, TQC, CrossQ.

    >>> from stable_baselines3 import DQN
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer)

    Arguments: those of ``ReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _parent_optimizes = True


class _StepsOfReturns(NamedTuple):
    """The steps of a batch of returns of several steps.

    :ivar indices: their flat indices, ``(batch_size, n_steps)``
    :ivar last: the number of the last step that each return includes, ``(batch_size,)``
    :ivar dones: whether an episode terminates with that step, ``(batch_size,)``
    """

    indices: NDArray[np.int64]
    last: NDArray[np.int64]
    dones: NDArray[np.float32]


class CompressedNStepReplayBuffer(CompressedReplay, NStepReplayBuffer):
    """SB3's ``NStepReplayBuffer``, compressed.

    SB3 configures n-step returns for its own class only; for any other, pass ``n_steps`` and the model's ``gamma`` to
    the buffer. Without it, ``gamma`` is 0.99, as in SB3's class, whatever that of the model is:

    >>> from stable_baselines3 import DQN
    >>> model = DQN(
    ...     "MlpPolicy",
    ...     "CartPole-v1",
    ...     replay_buffer_class=CompressedNStepReplayBuffer,
    ...     replay_buffer_kwargs=dict(n_steps=3, gamma=0.99),
    ... )

    With ``handle_timeout_termination=False``, returns continue into the next episode where a time limit ended one, as
    in SB3's class; a warning says so.

    Arguments: those of ``NStepReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    REIMPLEMENTED: ClassVar[Methods] = (*CompressedReplay.REIMPLEMENTED, NStepReplayBuffer._get_samples)

    def _adapt_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments.get("n_steps", 3) > 1 and not arguments.get("handle_timeout_termination", True):
            warn_of_time_limits("n-step returns")
        return super()._adapt_arguments(arguments)

    def _transitions_at(
        self,
        rows: NDArray[np.int64],
        envs: NDArray[np.int64],
        env: VecNormalize | None = None,
    ) -> Transitions:
        rows, envs = as_indices(rows), as_indices(envs)
        steps = self._steps_of_returns(rows, envs)
        rewards = self._normalize_reward(take(self.rewards, steps.indices), env)
        is_included = np.arange(self.n_steps) <= steps.last[:, None]
        discounts = self.gamma ** np.arange(self.n_steps, dtype=np.float32)
        returns = (rewards * discounts * is_included).sum(axis=1, keepdims=True)
        return Transitions(
            self._observations_until(rows, envs, steps.last),
            take(self.actions, rows * self.n_envs + envs),
            steps.dones.reshape(-1, 1),
            returns,
            self.gamma ** is_included.sum(axis=1, keepdims=True).astype(np.float32),
        )

    def _steps_of_returns(self, rows: NDArray[np.int64], envs: NDArray[np.int64]) -> _StepsOfReturns:
        """Return the steps of the returns of the transitions at some rows and environments."""
        n_envs = self.n_envs
        indices = (rows[:, None] + np.arange(self.n_steps)) % self.buffer_size * n_envs + envs[:, None]
        dones, timeouts = take(self.dones, indices), take(self.timeouts, indices)
        # What follows the newest row is of another episode.
        is_newest = indices // n_envs == (self.pos - 1) % self.buffer_size
        timeouts = np.where(is_newest, (timeouts != 0) | (dones == 0), timeouts)
        is_last = (dones != 0) | (timeouts != 0)
        last = np.where(is_last.any(axis=1), is_last.argmax(axis=1), self.n_steps - 1)
        final = np.arange(len(rows)), last
        final_dones = dones[final].astype(np.float32) * (1.0 - timeouts[final].astype(np.float32))
        return _StepsOfReturns(indices, last, final_dones)

    def _observations_until(
        self, rows: NDArray[np.int64], envs: NDArray[np.int64], last: NDArray[np.int64]
    ) -> ObservationBatch:
        """Return the observations of returns, and the next observations of their last steps."""
        return ObservationBatch(
            self.__dict__["observations"],
            rows * self.n_envs + envs,
            self.__dict__["next_observations"],
            (rows + last) % self.buffer_size * self.n_envs + envs,
            partial(self._batch_pool.begin_batch, self.device.type),
        )


class CompressedDictReplayBuffer(CompressedReplay, DictReplayBuffer):
    """SB3's ``DictReplayBuffer``, compressed key by key: each key has its own array, compressed or plain.

    Arguments: those of ``DictReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """


class CompressedHerReplayBuffer(CompressedReplay, HerReplayBuffer):
    """SB3's ``HerReplayBuffer`` (hindsight experience replay, https://arxiv.org/abs/1707.01495), compressed.

    Arguments: those of ``HerReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    REIMPLEMENTED: ClassVar[Methods] = (
        *CompressedReplay.REIMPLEMENTED,
        HerReplayBuffer.add, HerReplayBuffer._get_real_samples, HerReplayBuffer._get_virtual_samples,
    )  # fmt: skip

    def joint_commit(self, n_steps: int) -> AbstractContextManager[None]:
        """Do nothing: each ``add`` of hindsight replay is a transaction of its own."""
        return nullcontext()

    def _state_before_writing(self) -> dict[str, Any]:
        return {**super()._state_before_writing(), "_current_ep_start": self._current_ep_start.copy()}

    def _write_steps(
        self, n_steps: int, encoded: Any, action: Any, reward: Any, done: Any, timeouts: Any, infos: Any
    ) -> None:
        # An episode of which a row is overwritten can no longer be sampled.
        row, n_rows = self.pos, self.buffer_size
        for env in np.flatnonzero(self.ep_length[row] > 0).tolist():
            # Where the episode wraps around, this is past it, so that all lengths are cleared, as in SB3.
            end = self.ep_start[row, env] + self.ep_length[row, env]
            if self._is_writing_again and end > row + n_rows:  # it is the episode that ends with this row
                end -= n_rows
            self.ep_length[np.arange(row, end) % n_rows, env] = 0
        self.ep_start[row] = self._current_ep_start
        if self.copy_info_dict:
            self.infos[row] = infos
        super()._write_steps(n_steps, encoded, action, reward, done, timeouts, infos)
        for env in range(self.n_envs):
            if done[env]:
                self._compute_episode_length(env)

    def _get_real_samples(self, batch_indices: Any, env_indices: Any, env: VecNormalize | None = None) -> Any:
        transitions = self._transitions_at(batch_indices, env_indices, env)
        transitions.observations.decode()
        return self._to_tensors(transitions, env, self._converter(env))

    def _get_virtual_samples(self, batch_indices: Any, env_indices: Any, env: VecNormalize | None = None) -> Any:
        transitions = self._transitions_at(batch_indices, env_indices)
        batch = transitions.observations
        batch.decode()
        infos: Any = [{} for _ in batch_indices]
        if self.copy_info_dict:
            infos = copy.deepcopy(self.infos[batch_indices, env_indices])
        goals = self._sample_goals(batch_indices, env_indices)
        batch.observations["desired_goal"] = batch.next_observations["desired_goal"] = goals
        assert self.env is not None, (
            "You must initialize HerReplayBuffer with a VecEnv so it can compute rewards for virtual transitions"
        )
        # All environments compute the same rewards, from the goals that were achieved by the actions.
        achieved = batch.next_observations["achieved_goal"]
        rewards = self.env.env_method("compute_reward", achieved, goals, infos, indices=[0])[0]
        transitions = transitions._replace(rewards=rewards.astype(np.float32).reshape(-1, 1))
        # The environment may keep and change what it received, so tensors are copies.
        return self._to_tensors(transitions, env)

    def truncate_last_trajectory(self) -> None:
        """End unfinished episodes, as SB3's buffer does, also in the buffer's folder."""
        super().truncate_last_trajectory()
        if self._storage is not None:
            self.flush()

    def _validate_sampling(self, batch_size: Any) -> None:
        validate_integer("batch_size", batch_size, 0)  # SB3 raises a clear error until the first episode is over

    def _require_transitions(self, batch_size: int) -> None:
        bound = self._bound_sampler
        assert bound is not None
        bound.synchronize(self)
        if bound.lacks_episodes:
            HerReplayBuffer.sample(self, batch_size)  # raises SB3's error

    def _draw(self, batch_size: int) -> Draw:
        self._require_transitions(batch_size)
        return super()._draw(batch_size)

    def _arranged(self, draw: Draw) -> Draw:
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
        return weighted_samples(self._output(samples), *self._weights_and_numbers(draw))


def _concatenated(first: Any, second: Any) -> Any:
    """Return one field of two batches."""
    return None if first is None else tree_map(lambda *parts: th.cat(parts), first, second)

"""Compressed replay buffers, one for each of SB3's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_compressed.buffers.replay_mixin import CompressedReplay
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


class CompressedNStepReplayBuffer(CompressedReplay, NStepReplayBuffer):
    """SB3's ``NStepReplayBuffer``, compressed.

    SB3 configures n-step returns for its own class only; for any other, pass them again:

    >>> from stable_baselines3 import DQN
    >>> model = DQN(
    ...     "MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedNStepReplayBuffer,
    ...     replay_buffer_kwargs=dict(n_steps=3, gamma=0.99),
    ... )

    Arguments: those of ``NStepReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _reads_same_rows = False


class CompressedDictReplayBuffer(CompressedReplay, DictReplayBuffer):
    """SB3's ``DictReplayBuffer``, compressed key by key: each key has its own array, compressed or plain.

    Arguments: those of ``DictReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """


class CompressedHerReplayBuffer(CompressedReplay, HerReplayBuffer):
    """SB3's ``HerReplayBuffer`` (hindsight experience replay, https://arxiv.org/abs/1707.01495), compressed.

    Arguments: those of ``HerReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    def truncate_last_trajectory(self) -> None:
        """End unfinished episodes, as SB3's buffer does, also in the buffer's folder."""
        super().truncate_last_trajectory()
        if self._storage is not None:
            self.flush()

    def _require_transitions(self, batch_size: int) -> None:
        bound = self._bound_sampler
        assert bound is not None
        bound.synchronize(self)
        if not bound.has_episodes:
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
        def make() -> Any:
            n_virtual = int(self.her_ratio * len(draw.indices))
            n_real = len(draw.indices) - n_virtual
            rows, envs = np.divmod(draw.indices, self.n_envs)
            # Environments need not compute the rewards of no transitions, as in a small last batch of an epoch.
            if not n_virtual:
                return self._get_real_samples(rows, envs, env)
            if not n_real:
                return self._get_virtual_samples(rows, envs, env)
            real = self._get_real_samples(rows[:n_real], envs[:n_real], env)
            virtual = self._get_virtual_samples(rows[n_real:], envs[n_real:], env)
            return type(real)(*map(_concatenated, real, virtual))

        return self._with_weights(self._batch(make, may_be_referenced=True), draw)


def _concatenated(first: Any, second: Any) -> Any:
    """Return one field of two batches."""
    return None if first is None else tree_map(lambda *parts: th.cat(parts), first, second)

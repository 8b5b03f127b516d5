"""Compressed replay buffers, one for each of SB3's."""

from __future__ import annotations

from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_compressed.buffers.replay_mixin import CompressedReplay

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

"""Compressed rollout buffers, one for each of SB3's."""

from __future__ import annotations

from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples

from sb3_compressed.buffers.rollout_mixin import CompressedMinibatches

__all__ = ["CompressedDictRolloutBuffer", "CompressedRolloutBuffer"]


class CompressedRolloutBuffer(CompressedMinibatches, RolloutBuffer):
    """SB3's ``RolloutBuffer``, compressed: for PPO, A2C, TRPO.

    >>> from stable_baselines3 import PPO
    >>> model = PPO(
    ...     "MlpPolicy", "CartPole-v1", rollout_buffer_class=CompressedRolloutBuffer, device="cpu"
    ... )

    Arguments: those of ``RolloutBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _samples_class = RolloutBufferSamples


class CompressedDictRolloutBuffer(CompressedMinibatches, DictRolloutBuffer):
    """SB3's ``DictRolloutBuffer``, compressed key by key: each key has its own array, compressed or plain.

    Arguments: those of ``DictRolloutBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _samples_class = DictRolloutBufferSamples

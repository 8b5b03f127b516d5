"""Compressed rollout buffers, one for each of SB3's."""

from __future__ import annotations

from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from sb3_compressed.buffers.rollout_mixin import CompressedRollout

__all__ = ["CompressedDictRolloutBuffer", "CompressedRolloutBuffer"]


class CompressedRolloutBuffer(CompressedRollout, RolloutBuffer):
    """SB3's ``RolloutBuffer``, compressed: for PPO, A2C, TRPO.

    >>> from stable_baselines3 import PPO
    >>> model = PPO("MlpPolicy", "CartPole-v1", rollout_buffer_class=CompressedRolloutBuffer, device="cpu")

    Arguments: those of ``RolloutBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """


class CompressedDictRolloutBuffer(CompressedRollout, DictRolloutBuffer):
    """SB3's ``DictRolloutBuffer``, compressed key by key: each key has its own array, compressed or plain.

    Arguments: those of ``DictRolloutBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

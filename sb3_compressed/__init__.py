"""Replay and rollout buffers for Stable-Baselines3 that store their observations compressed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sb3_compressed.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from sb3_compressed.arrays import CompressedArray
    from sb3_compressed.buffers import (
        CompressedDictReplayBuffer,
        CompressedDictRolloutBuffer,
        CompressedHerReplayBuffer,
        CompressedNStepReplayBuffer,
        CompressedReplayBuffer,
        CompressedRolloutBuffer,
        MixedReplayBuffer,
        buffer_statistics,
        load_checkpoint,
        save_checkpoint,
    )
    from sb3_compressed.buffers.dtypes import find_buffer_dtypes
    from sb3_compressed.callbacks import (
        BufferCheckpointCallback,
        BufferStatsCallback,
        PrioritizedReplayCallback,
        latest_checkpoint,
    )
    from sb3_compressed.codecs import Codec, available_codecs, get_codec, register_codec
    from sb3_compressed.errors import (
        BufferNotReady,
        CheckpointNotFound,
        CodecError,
        CorruptPayload,
        CorruptStorage,
        LossyDtypeWarning,
        ObservationSpaceError,
        StorageError,
    )
    from sb3_compressed.samplers import PrioritizedSampler, RecentSampler, Sampler, WithoutReplacementSampler
    from sb3_compressed.training.prioritized_replay import prioritize

__version__ = "0.4.1.dev0"

__all__ = [
    "BufferCheckpointCallback",
    "BufferNotReady",
    "BufferStatsCallback",
    "CheckpointNotFound",
    "Codec",
    "CodecError",
    "CompressedArray",
    "CompressedDictReplayBuffer",
    "CompressedDictRolloutBuffer",
    "CompressedHerReplayBuffer",
    "CompressedNStepReplayBuffer",
    "CompressedReplayBuffer",
    "CompressedRolloutBuffer",
    "CorruptPayload",
    "CorruptStorage",
    "LossyDtypeWarning",
    "MixedReplayBuffer",
    "ObservationSpaceError",
    "PrioritizedReplayCallback",
    "PrioritizedSampler",
    "RecentSampler",
    "Sampler",
    "StorageError",
    "WithoutReplacementSampler",
    "available_codecs",
    "buffer_statistics",
    "find_buffer_dtypes",
    "get_codec",
    "latest_checkpoint",
    "load_checkpoint",
    "prioritize",
    "register_codec",
    "save_checkpoint",
]

# Errors, codecs and arrays are useful without importing torch, which the buffers need.
__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    (
        "errors",
        "codecs",
        "arrays",
        "buffers.dtypes",
        "samplers",
        "buffers",
        "callbacks",
        "training.prioritized_replay",
    ),
)

"""Replay and rollout buffers for Stable-Baselines3 that store their observations compressed."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from sb3_compressed import legacy_names

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

__version__ = "0.2.0"

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

# Each name is imported on first use, from the first of these modules that exports it: arrays and codecs are useful
# without importing torch, which the buffers need.
_MODULES = ("errors", "codecs", "arrays", "buffers.dtypes", "samplers", "buffers", "callbacks", "training.prioritized_replay")

#: Names that were exported here, and the modules that export them.
_MOVED = {
    "buffers": ("BufferStatistics",),
    "datasets": (
        "Trajectory",
        "export_minari",
        "import_minari",
        "trajectories",
        "write_contact_sheet",
        "write_video",
    ),
    "envs": ("make_env",),
    "errors": ("InvalidShorthand", "LevelOutOfRange", "UnknownCodec"),
    "evaluation": ("Evaluation", "Quartiles", "evaluate"),
    "recording": ("DummyRecordBuffer", "FramelessRecordBuffer", "RecordBuffer", "record_episodes"),
    "storage": ("verify",),
    "warmup": ("warm_up",),
}

legacy_names.install()


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module_name in _MODULES:  # pragma: no branch  # they export all of these names
            module = importlib.import_module(f"{__name__}.{module_name}")
            if name in module.__all__:
                globals()[name] = getattr(module, name)
                return globals()[name]
    for module_name, names in _MOVED.items():
        if name in names:
            message = f"sb3_compressed.{name} is deprecated; use sb3_compressed.{module_name}.{name}"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(f"{__name__}.{module_name}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Replay and rollout buffers for Stable-Baselines3 that hold their observations compressed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sb3_compressed import renamed

if TYPE_CHECKING:
    from sb3_compressed.arrays import CompressedArray
    from sb3_compressed.buffers import (
        BufferStatistics,
        CompressedDictReplayBuffer,
        CompressedDictRolloutBuffer,
        CompressedHerReplayBuffer,
        CompressedNStepReplayBuffer,
        CompressedReplayBuffer,
        CompressedRolloutBuffer,
        buffer_statistics,
        load_checkpoint,
        save_checkpoint,
    )
    from sb3_compressed.callbacks import BufferCheckpointCallback, BufferStatsCallback, latest_checkpoint
    from sb3_compressed.codecs import Codec, available_codecs, get_codec, register_codec
    from sb3_compressed.datasets import (
        Trajectory,
        export_minari,
        import_minari,
        trajectories,
        write_contact_sheet,
        write_video,
    )
    from sb3_compressed.dtypes import find_buffer_dtypes
    from sb3_compressed.envs import make_env
    from sb3_compressed.errors import (
        BufferNotReady,
        CheckpointNotFound,
        CodecError,
        CorruptPayload,
        CorruptStorage,
        InvalidShorthand,
        LevelOutOfRange,
        LossyDtypeWarning,
        ObservationSpaceError,
        StorageError,
        UnknownCodec,
    )
    from sb3_compressed.evaluation import Evaluation, Quartiles, evaluate
    from sb3_compressed.recording import DummyRecordBuffer, FramelessRecordBuffer, RecordBuffer, record_episodes
    from sb3_compressed.storage import verify
    from sb3_compressed.warmup import warm_up

__version__ = "0.1.0"

__all__ = [
    "BufferCheckpointCallback",
    "BufferNotReady",
    "BufferStatistics",
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
    "DummyRecordBuffer",
    "Evaluation",
    "FramelessRecordBuffer",
    "InvalidShorthand",
    "LevelOutOfRange",
    "LossyDtypeWarning",
    "ObservationSpaceError",
    "Quartiles",
    "RecordBuffer",
    "StorageError",
    "Trajectory",
    "UnknownCodec",
    "available_codecs",
    "buffer_statistics",
    "evaluate",
    "export_minari",
    "find_buffer_dtypes",
    "get_codec",
    "import_minari",
    "latest_checkpoint",
    "load_checkpoint",
    "make_env",
    "record_episodes",
    "register_codec",
    "save_checkpoint",
    "trajectories",
    "verify",
    "warm_up",
    "write_contact_sheet",
    "write_video",
]

# Each name is imported when it is first used, from the first of these that has it: arrays and codecs are useful
# without waiting for torch, which the buffers need.
_HOMES = (
    "errors",
    "codecs",
    "arrays",
    "dtypes",
    "storage",
    "buffers",
    "callbacks",
    "datasets",
    "recording",
    "envs",
    "warmup",
    "evaluation",
)

renamed.install()


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"{__name__}.{home}")
            if name in module.__all__:
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Compressed counterparts of SB3's replay and rollout buffers; those of sb3-contrib's are in ``contrib``."""

from typing import TYPE_CHECKING

from sb3_compressed.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from sb3_compressed.buffers.her import CompressedHerReplayBuffer
    from sb3_compressed.buffers.loading import load_checkpoint, save_checkpoint
    from sb3_compressed.buffers.memory_statistics import BufferStatistics, buffer_statistics
    from sb3_compressed.buffers.mixed import MixedReplayBuffer
    from sb3_compressed.buffers.n_step import CompressedNStepReplayBuffer
    from sb3_compressed.buffers.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
    from sb3_compressed.buffers.rollout import CompressedDictRolloutBuffer, CompressedRolloutBuffer

__all__ = [
    "BufferStatistics",
    "CompressedDictReplayBuffer",
    "CompressedDictRolloutBuffer",
    "CompressedHerReplayBuffer",
    "CompressedNStepReplayBuffer",
    "CompressedReplayBuffer",
    "CompressedRolloutBuffer",
    "MixedReplayBuffer",
    "buffer_statistics",
    "load_checkpoint",
    "save_checkpoint",
]

MODULES = "replay", "n_step", "her", "rollout", "loading", "memory_statistics", "mixed"
__getattr__, __dir__ = lazy_names(__name__, __all__, MODULES)

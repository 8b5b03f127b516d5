"""Callbacks for SB3's algorithms."""

from typing import TYPE_CHECKING

from sb3_compressed.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from sb3_compressed.callbacks.checkpoint_callback import BufferCheckpointCallback, latest_checkpoint
    from sb3_compressed.callbacks.prioritized_replay_callback import PrioritizedReplayCallback
    from sb3_compressed.callbacks.stats_callback import BufferStatsCallback

__all__ = ["BufferCheckpointCallback", "BufferStatsCallback", "PrioritizedReplayCallback", "latest_checkpoint"]

__getattr__, __dir__ = lazy_names(
    __name__, __all__, ("checkpoint_callback", "prioritized_replay_callback", "stats_callback")
)

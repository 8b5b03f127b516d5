"""Callbacks for SB3's algorithms."""

from sb3_compressed.callbacks.checkpoint_callback import BufferCheckpointCallback, latest_checkpoint
from sb3_compressed.callbacks.prioritized_replay_callback import PrioritizedReplayCallback
from sb3_compressed.callbacks.stats_callback import BufferStatsCallback

__all__ = ["BufferCheckpointCallback", "BufferStatsCallback", "PrioritizedReplayCallback", "latest_checkpoint"]

"""Callbacks for SB3's algorithms."""

from sb3_compressed.callbacks.checkpoint_callback import BufferCheckpointCallback, latest_checkpoint
from sb3_compressed.callbacks.stats_callback import BufferStatsCallback

__all__ = ["BufferCheckpointCallback", "BufferStatsCallback", "latest_checkpoint"]

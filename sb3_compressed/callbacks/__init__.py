"""Callbacks for SB3's algorithms."""

from sb3_compressed.callbacks.checkpoint import BufferCheckpointCallback, latest_checkpoint
from sb3_compressed.callbacks.stats import BufferStatsCallback

__all__ = ["BufferCheckpointCallback", "BufferStatsCallback", "latest_checkpoint"]

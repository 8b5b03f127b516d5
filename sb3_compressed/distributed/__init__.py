"""Replay buffers beyond one machine: shards, writers and collectors are processes of Ray, here or on a cluster."""

from __future__ import annotations

from sb3_compressed.errors import install_command

try:
    import ray  # noqa: F401
except ImportError as error:
    message = f"sb3_compressed.distributed needs Ray, which is not installed: {install_command('ray')}"
    raise ImportError(message, name=error.name) from error

from sb3_compressed.distributed.collectors import Collectors
from sb3_compressed.distributed.exploration import EpsilonLadder
from sb3_compressed.distributed.remote_rollouts import CollectorStatistics
from sb3_compressed.distributed.replay_buffer import DistributedReplayBuffer, DistributedStatistics
from sb3_compressed.distributed.writer import ReplayWriter
from sb3_compressed.errors import ShardTimeout, ShardUnavailable

__all__ = [
    "CollectorStatistics",
    "Collectors",
    "DistributedReplayBuffer",
    "DistributedStatistics",
    "EpsilonLadder",
    "ReplayWriter",
    "ShardTimeout",
    "ShardUnavailable",
]

"""This package's buffers, with everything at its default but the compression method (and threads where asked)."""

from __future__ import annotations

from typing import Any

from contenders.base import Setup
from contenders.like_sb3 import ReplayLikeSB3, RolloutLikeSB3
from sb3_compressed import CompressedReplayBuffer, CompressedRolloutBuffer


def make_replay(method: str, setup: Setup, threads: int | None) -> ReplayLikeSB3:
    """Return a CompressedReplayBuffer."""
    return ReplayLikeSB3(CompressedReplayBuffer, setup, **_arguments(method, threads))


def make_rollout(method: str, setup: Setup, threads: int | None) -> RolloutLikeSB3:
    """Return a CompressedRolloutBuffer."""
    return RolloutLikeSB3(CompressedRolloutBuffer, setup, **_arguments(method, threads))


def _arguments(method: str, threads: int | None) -> dict[str, Any]:
    return {"compression_method": method, **({} if threads is None else {"num_threads": threads})}

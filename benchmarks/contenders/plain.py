"""Stable-Baselines3's own buffers, with everything at its default: what all others are compared with."""

from __future__ import annotations

from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

from contenders.base import Setup
from contenders.like_sb3 import ReplayLikeSB3, RolloutLikeSB3


def make_replay(method: str, setup: Setup, threads: int | None) -> ReplayLikeSB3:
    """Return SB3's ReplayBuffer."""
    return ReplayLikeSB3(ReplayBuffer, setup)


def make_rollout(method: str, setup: Setup, threads: int | None) -> RolloutLikeSB3:
    """Return SB3's RolloutBuffer."""
    return RolloutLikeSB3(RolloutBuffer, setup)

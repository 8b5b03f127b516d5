"""Stable-Baselines3's own buffers, with everything at its default: what all others are compared with."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer as REPLAY
from stable_baselines3.common.buffers import RolloutBuffer as ROLLOUT

__all__ = ["REPLAY", "ROLLOUT", "arguments"]


def arguments(method: str, space: spaces.Space[Any], threads: int | None) -> dict[str, Any]:
    """Return no further arguments."""
    return {}

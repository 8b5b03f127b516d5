"""This package's buffers, with everything at its default but the compression method (and threads where asked)."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from sb3_compressed import CompressedReplayBuffer as REPLAY
from sb3_compressed import CompressedRolloutBuffer as ROLLOUT

__all__ = ["REPLAY", "ROLLOUT", "arguments"]


def arguments(method: str, space: spaces.Space[Any], threads: int | None) -> dict[str, Any]:
    """Return what the constructors get besides what SB3's get."""
    return {"compression_method": method, **({} if threads is None else {"num_threads": threads})}

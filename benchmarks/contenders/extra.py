"""sb3-extra-buffers, constructed as its README has it: ``dtypes`` from ``find_buffer_dtypes``.

It keeps one ``bytes`` object for each observation and one for each next observation, whole stacks, compressed.
"""

from __future__ import annotations

from typing import Any

from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer, find_buffer_dtypes

from contenders.base import Setup
from contenders.like_sb3 import ReplayLikeSB3, RolloutLikeSB3


def make_replay(method: str, setup: Setup, threads: int | None) -> ReplayLikeSB3:
    """Return its CompressedReplayBuffer."""
    return ReplayLikeSB3(CompressedReplayBuffer, setup, **_arguments(method, setup))


def make_rollout(method: str, setup: Setup, threads: int | None) -> RolloutLikeSB3:
    """Return its CompressedRolloutBuffer."""
    return RolloutLikeSB3(CompressedRolloutBuffer, setup, **_arguments(method, setup))


def _arguments(method: str, setup: Setup) -> dict[str, Any]:
    space = setup.observation_space
    dtypes = find_buffer_dtypes(space.shape, elem_dtype=space.dtype, compression_method=method)
    return {"compression_method": method, "dtypes": dtypes}

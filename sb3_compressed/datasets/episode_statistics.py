"""Numbers, lengths and returns of episodes, and the episode with the highest return."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sb3_compressed.datasets.trajectory import Trajectory

__all__ = ["best_episode", "episode_statistics"]


def episode_statistics(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the number of episodes, and lengths and returns of the complete ones, as JSON values.

    :param episodes: the output of :func:`~sb3_compressed.datasets.trajectories`
    :return: ``episodes``; how many of them are ``whole``, ``without_begin`` or ``unfinished`` (or both); ``lengths``
        and ``returns`` of the whole ones, each as ``min``, ``median`` and ``max`` or ``None``; and the index of the
        ``best`` one, see :func:`best_episode`
    """
    whole = [episode for episode in episodes if episode.has_begin and episode.has_end]
    return {
        "episodes": len(episodes),
        "whole": len(whole),
        "without_begin": sum(not episode.has_begin for episode in episodes),
        "unfinished": sum(not episode.has_end for episode in episodes),
        "lengths": _summary([len(episode) for episode in whole]),
        "returns": _summary([episode.total_reward for episode in whole]),
        "best": best_episode(episodes),
    }


def best_episode(episodes: Sequence[Trajectory]) -> int | None:
    """Return the index of the complete episode with the highest return; on a tie, the last one.

    Incomplete episodes count only if there is no complete one.

    >>> best_episode([]) is None
    True
    """
    indices = range(len(episodes))
    whole = [index for index in indices if episodes[index].has_begin and episodes[index].has_end]
    return max(whole or indices, key=lambda index: (_comparable(episodes[index].total_reward), index), default=None)


def _comparable(total_reward: float) -> float:
    """Return NaN as the lowest return: every comparison with NaN is false."""
    return -math.inf if math.isnan(total_reward) else total_reward


def _summary(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"min": min(values), "median": float(np.median(values)), "max": max(values)}

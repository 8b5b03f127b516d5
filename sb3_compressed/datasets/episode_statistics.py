"""Episodes in numbers, and which of them is the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sb3_compressed.datasets.episodes import Trajectory

__all__ = ["best_episode", "statistics"]


def statistics(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Return how many episodes there are, and the lengths and returns of those that are whole, for JSON.

    :param episodes: what :func:`~sb3_compressed.datasets.trajectories` yields
    :return: ``episodes``, and of these ``whole``; ``without_begin`` and ``unfinished``, which may be the same ones;
        ``lengths`` and ``returns`` of the whole ones, each with ``min``, ``median`` and ``max``, or ``None``; and the
        number of the ``best``, as :func:`best_episode` finds it
    """
    whole = [episode for episode in episodes if episode.has_begin and episode.has_end]
    return {
        "episodes": len(episodes),
        "whole": len(whole),
        "without_begin": sum(not episode.has_begin for episode in episodes),
        "unfinished": sum(not episode.has_end for episode in episodes),
        "lengths": _spread([len(episode) for episode in whole]),
        "returns": _spread([episode.total_reward for episode in whole]),
        "best": best_episode(episodes),
    }


def best_episode(episodes: Sequence[Trajectory]) -> int | None:
    """Return the number of the whole episode with the highest return, the last of several, or of all if none is whole.

    >>> best_episode([]) is None
    True
    """
    numbers = range(len(episodes))
    whole = [number for number in numbers if episodes[number].has_begin and episodes[number].has_end]
    return max(whole or numbers, key=lambda number: (_comparable(episodes[number].total_reward), number), default=None)


def _comparable(total_reward: float) -> float:
    """Return NaN as the worst there is: whatever is compared to it, Python says no."""
    return -math.inf if math.isnan(total_reward) else total_reward


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"min": min(values), "median": float(np.median(values)), "max": max(values)}

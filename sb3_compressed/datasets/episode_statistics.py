"""``episode_statistics``: numbers, lengths and returns of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sb3_compressed.datasets.trajectory import Trajectory

__all__ = ["episode_statistics"]


def episode_statistics(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the number of episodes, and lengths and returns of the complete ones, as JSON values.

    :param episodes: the output of :func:`~sb3_compressed.datasets.trajectories`
    :return: ``episodes``; how many of them are ``whole``, ``without_begin`` or ``unfinished`` (or both); ``lengths``
        and ``returns`` of the whole ones, each as ``min``, ``median`` and ``max`` or ``None``
    """
    whole = [episode for episode in episodes if episode.has_begin and episode.has_end]
    return {
        "episodes": len(episodes),
        "whole": len(whole),
        "without_begin": sum(not episode.has_begin for episode in episodes),
        "unfinished": sum(not episode.has_end for episode in episodes),
        "lengths": _summary([len(episode) for episode in whole]),
        "returns": _summary([episode.total_reward for episode in whole]),
    }


def _summary(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"min": min(values), "median": float(np.median(values)), "max": max(values)}

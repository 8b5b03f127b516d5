"""An episode step by step, as the arguments of a replay buffer's ``add``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["transitions"]


def transitions(episode: Any) -> Iterator[tuple[Any, ...]]:
    """Yield each step of a decoded episode as a buffer of one environment takes it.

    :param episode: what has ``observations`` ``(n_steps + 1, ...)`` or a dict of them, ``actions``, ``rewards``,
        ``terminations`` and ``truncations``, as :meth:`Trajectory.part` returns it, or Minari
    """
    for step in range(len(episode.rewards)):
        ended, cut = bool(episode.terminations[step]), bool(episode.truncations[step])
        yield (
            _at(episode.observations, step),
            _at(episode.observations, step + 1),
            np.asarray(episode.actions[step])[np.newaxis],
            episode.rewards[step : step + 1],
            np.array([ended or cut]),
            [{"TimeLimit.truncated": cut and not ended}],
        )


def _at(observations: Any, index: int) -> Any:
    """Return one observation with the axis of environments."""
    if isinstance(observations, dict):
        return {key: value[index : index + 1] for key, value in observations.items()}
    return observations[index : index + 1]

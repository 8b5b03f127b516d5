"""``Transitions``: what a batch of a replay buffer consists of, before it becomes tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from sb3_compressed.buffers.observation_batch import ObservationBatch

__all__ = ["Transitions"]


class Transitions(NamedTuple):
    """A batch of transitions. Its observations must be decoded before they are read.

    :param observations: its observations and next observations
    :param actions: actions ``(batch_size, action_dim)``
    :param dones: 1 where an episode ends, except by a time limit, else 0; ``(batch_size, 1)`` of float32
    :param rewards: rewards of one step, as they were added, or returns of several steps; ``(batch_size, 1)`` of float32
    :param discounts: by which the values of next observations are multiplied, ``(batch_size, 1)``; ``None`` for those
        of one step
    """

    observations: ObservationBatch
    actions: NDArray[Any]
    dones: NDArray[Any]
    rewards: NDArray[Any]
    discounts: NDArray[Any] | None = None

"""The batches of buffers with a sampler: SB3's samples with importance weights and the indices of transitions."""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples, TensorDict

from sb3_compressed.samplers import Draw

__all__ = ["WeightedDictReplayBufferSamples", "WeightedReplayBufferSamples", "weighted_samples", "weights_and_indices"]


class WeightedReplayBufferSamples(NamedTuple):
    """SB3's ``ReplayBufferSamples``, and two more fields.

    :param weights: importance weights ``(batch_size, 1)`` of float32, by which to multiply the losses
    :param indices: flat indices ``row * n_envs + env`` of the transitions, ``(batch_size,)`` of int64 in NumPy, for
        ``update_priorities``
    """

    observations: th.Tensor
    actions: th.Tensor
    next_observations: th.Tensor
    dones: th.Tensor
    rewards: th.Tensor
    discounts: th.Tensor | None
    weights: th.Tensor
    indices: NDArray[np.int64]


class WeightedDictReplayBufferSamples(NamedTuple):
    """SB3's ``DictReplayBufferSamples``, and two more fields.

    :param weights: importance weights ``(batch_size, 1)`` of float32, by which to multiply the losses
    :param indices: flat indices ``row * n_envs + env`` of the transitions, ``(batch_size,)`` of int64 in NumPy, for
        ``update_priorities``
    """

    observations: TensorDict
    actions: th.Tensor
    next_observations: TensorDict
    dones: th.Tensor
    rewards: th.Tensor
    discounts: th.Tensor | None
    weights: th.Tensor
    indices: NDArray[np.int64]


_CLASSES: dict[type[Any], type[Any]] = {
    ReplayBufferSamples: WeightedReplayBufferSamples,
    DictReplayBufferSamples: WeightedDictReplayBufferSamples,
}


def weighted_samples(samples: Any, weights: th.Tensor, indices: NDArray[np.int64]) -> Any:
    """Return samples with the two more fields.

    :param samples: a NamedTuple, of SB3 or of a user's buffer
    """
    samples_class: Any = type(samples)
    return _class_for(samples_class)(*samples, weights, indices)


def weights_and_indices(draw: Draw, device: th.device) -> tuple[th.Tensor, NDArray[np.int64]]:
    """Return the importance weights ``(batch_size, 1)`` and flat indices ``(batch_size,)`` of transitions.

    They are copies: a sampler may reuse its arrays.
    """
    if draw.weights is None:
        weights = th.ones((len(draw.indices), 1), device=device)
    else:
        weights = th.tensor(draw.weights.reshape(-1, 1), dtype=th.float32, device=device)
    return weights, np.array(draw.indices, dtype=np.int64)


@cache
def _class_for(samples_class: Any) -> type[Any]:
    if samples_class in _CLASSES:
        return _CLASSES[samples_class]
    return namedtuple(f"Weighted{samples_class.__name__}", (*samples_class._fields, "weights", "indices"))

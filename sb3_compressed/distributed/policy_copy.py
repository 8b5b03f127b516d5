"""Copies of a policy in other processes: how one is constructed, and its weights as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy

__all__ = ["load_weights", "policy_factory", "policy_weights"]


def policy_factory(policy: BasePolicy) -> Callable[[], BasePolicy]:
    """Return what constructs such a policy with random weights, on the CPU; it can be sent to another process.

    The policy itself cannot, since it may have hooks, such as those of prioritized replay during training.
    """
    return partial(type(policy), **policy._get_constructor_parameters())


def policy_weights(policy: BasePolicy) -> dict[str, NDArray[Any]]:
    """Return the ``state_dict`` of a policy as arrays, which Ray sends without pickling them.

    On a CPU, they are the weights of the policy itself, not copies.
    """
    return {name: tensor.detach().cpu().numpy() for name, tensor in policy.state_dict().items()}


def load_weights(policy: BasePolicy, weights: Mapping[str, NDArray[Any]]) -> None:
    """Copy weights to a policy on the CPU.

    :raises RuntimeError: if they are those of another policy
    """
    policy.load_state_dict({name: th.tensor(array) for name, array in weights.items()})

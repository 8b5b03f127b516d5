"""Copies of a policy in other processes: how one is constructed, and the weights that it needs to choose actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy

__all__ = ["UniformPolicy", "load_weights", "policy_factory", "policy_weights"]

#: The module that chooses actions, by the method that uses it; all others, such as target networks, are not sent.
ACTING_MODULES = {
    "DQNPolicy._predict": "q_net",
    "QRDQNPolicy._predict": "quantile_net",
    "SACPolicy._predict": "actor",
    "TD3Policy._predict": "actor",
    "TQCPolicy._predict": "actor",
}


def policy_factory(policy: BasePolicy) -> Callable[[], BasePolicy]:
    """Return what constructs such a policy with random weights, on the CPU; it can be sent to another process.

    The policy itself cannot, since it may have hooks, such as those of prioritized replay during training.
    """
    return partial(type(policy), **policy._get_constructor_parameters())


def policy_weights(policy: BasePolicy) -> dict[str, NDArray[Any]]:
    """Return the weights that a policy needs to choose actions, by their names in its ``state_dict``.

    On a CPU, they are those of the policy itself, not copies.
    """
    acting = ACTING_MODULES.get(type(policy)._predict.__qualname__)
    return {
        name: tensor.detach().cpu().numpy()
        for name, tensor in policy.state_dict().items()
        if acting is None or name.startswith(f"{acting}.")
    }


def load_weights(policy: BasePolicy, weights: Mapping[str, NDArray[Any]]) -> None:
    """Copy weights to a policy on the CPU.

    :raises ValueError: if they are those of another policy
    """
    own = policy.state_dict()
    for name, array in weights.items():
        if name not in own or tuple(own[name].shape) != array.shape:
            expected = tuple(own[name].shape) if name in own else "no such weights"
            raise ValueError(
                f"{name} has the shape {array.shape}, but {type(policy).__name__} has {expected}: the arguments that "
                "its _get_constructor_parameters() returns must construct the same policy"
            )
        np.copyto(own[name].numpy(), array)  # torch warns of read-only arrays, such as those in Ray's memory


class UniformPolicy(BasePolicy):
    """Chooses each action with the same probability, like SB3's algorithms before learning starts."""

    def _predict(self, observation: Any, deterministic: bool = False) -> th.Tensor:
        n_envs = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        return th.as_tensor(np.array([self.action_space.sample() for _ in range(n_envs)]))

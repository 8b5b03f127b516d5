"""Copies of policies act like the originals, without hooks."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch as th
from sb3_contrib import QRDQN, TQC
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.dqn.policies import DQNPolicy

from distributed.collected_envs import cart, pendulum
from sb3_compressed.distributed.policy_copy import load_weights, policy_factory, policy_weights

ALGORITHMS = [DQN, QRDQN, DDPG, TD3, SAC, TQC]


def model_of(algorithm: Any, **arguments: Any) -> Any:
    env = cart() if algorithm in (DQN, QRDQN) else pendulum()
    return algorithm("MlpPolicy", env, seed=0, device="cpu", buffer_size=100, **arguments)


def read_only(weights: dict[str, Any]) -> dict[str, Any]:
    """Return copies of weights as Ray delivers them."""
    copied = {name: np.array(array) for name, array in weights.items()}
    for array in copied.values():
        array.flags.writeable = False
    return copied


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_copy_acts_like_the_policy(algorithm: Any) -> None:
    model = model_of(algorithm)
    model.policy.register_forward_hook(lambda *_: None)  # cannot be pickled
    policy = pickle.loads(cloudpickle.dumps(policy_factory(model.policy)))()
    observations = np.array([model.observation_space.sample() for _ in range(9)])
    load_weights(policy, read_only(policy_weights(model.policy)))
    expected, _ = model.policy.predict(observations, deterministic=True)
    actions, _ = policy.predict(observations, deterministic=True)
    np.testing.assert_array_equal(actions, expected)
    assert not policy._forward_hooks


def test_statistics_of_normalization_layers_are_sent() -> None:
    class Normalized(DQNPolicy):
        def make_q_net(self) -> Any:
            net = super().make_q_net()
            net.q_net.append(th.nn.BatchNorm1d(2))
            return net

    model = DQN(Normalized, cart(), seed=0, device="cpu", buffer_size=100)
    original: Any = model.policy
    original.q_net.q_net[-1].running_mean += 3
    policy: Any = policy_factory(model.policy)()
    load_weights(policy, read_only(policy_weights(model.policy)))
    assert policy.q_net.q_net[-1].running_mean.tolist() == [3, 3]


def test_weights_of_another_policy_are_refused() -> None:
    wide, narrow = (model_of(DQN, policy_kwargs={"net_arch": [size]}) for size in (32, 16))
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_weights(narrow.policy, policy_weights(wide.policy))

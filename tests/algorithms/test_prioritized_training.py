"""Training with ``prioritize`` equals training with explicit weighted losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch as th
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from support import atari_env
from weighted_losses import (
    DoubleDQN,
    LapSAC,
    LapTD3,
    WeightedDoubleDQN,
    WeightedDQN,
    WeightedQRDQN,
    double_dqn_errors,
)

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
)
from sb3_compressed.samplers import PrioritizedSampler
from sb3_compressed.training.prioritized_replay import prioritize

QUANTILES = {"n_quantiles": 16, "net_arch": [32]}
HER = {"n_sampled_goal": 4, "goal_selection_strategy": "future"}


def cart_pole(n_envs: int = 2) -> VecEnv:
    return make_vec_env("CartPole-v1", n_envs)


def pendulum() -> VecEnv:
    return make_vec_env("Pendulum-v1", 2)


def bit_flipping() -> VecEnv:
    return make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 6})


@dataclass
class Pair:
    """An algorithm as SB3 has it, to call ``prioritize`` with, and with explicit losses.

    :param ours: class of the algorithm
    :param explicit: class with explicit losses
    :param env: creates the environments
    :param tolerance: largest difference of weights, gradients and Adam states; 0 for equal bits
    :param td_error: argument of ``prioritize``
    :param arguments: for both models
    """

    ours: type[Any]
    explicit: type[Any]
    env: Callable[[], VecEnv] = cart_pole
    tolerance: float = 0.0
    td_error: Any = None
    mode: Literal["per", "lap"] = "per"
    policy: str = "MlpPolicy"
    buffer: type[Any] = CompressedReplayBuffer
    buffer_kwargs: dict[str, Any] = field(default_factory=dict)
    steps: int = 360
    n_updates: int = 140
    arguments: dict[str, Any] = field(default_factory=dict)

    def model(self, algorithm: type[Any]) -> Any:
        """Return an untrained model whose buffer is overwritten during the training."""
        set_random_seed(1)
        arguments = {
            "buffer_size": 300, "learning_starts": 60, "batch_size": 32, "train_freq": 1, "learning_rate": 1e-3,
            "policy_kwargs": {"net_arch": [32]}, **self.arguments,
        }  # fmt: skip
        if not issubclass(algorithm, (SAC, TD3)):
            arguments = {"target_update_interval": 50, **arguments}
        buffer_kwargs = {"sampler": PrioritizedSampler(beta_steps=150, mode=self.mode), **self.buffer_kwargs}
        env = self.env()
        env.seed(1)
        return algorithm(
            self.policy, env, seed=1, device="cpu", replay_buffer_class=self.buffer,
            replay_buffer_kwargs=buffer_kwargs, **arguments,
        )  # fmt: skip


N_STEP: dict[str, Any] = {"buffer": CompressedNStepReplayBuffer, "buffer_kwargs": {"n_steps": 3, "gamma": 0.99}}
#: Of convolutions, which take most of the time: few updates, in a buffer that is overwritten by then.
FEW: dict[str, Any] = {"steps": 140, "n_updates": 35}
CNN: dict[str, Any] = {"policy_kwargs": {"net_arch": [32], "features_extractor_kwargs": {"features_dim": 32}}}

PAIRS = {
    "DQN": Pair(DQN, WeightedDQN),
    "DQN-n-step": Pair(DQN, WeightedDQN, **N_STEP),
    "DQN-lap": Pair(DQN, WeightedDQN, mode="lap"),

    "DQN-four-gradient-steps": Pair(DQN, WeightedDQN, arguments={"train_freq": 4, "gradient_steps": 4}),
    "DQN-after-episodes": Pair(
        DQN, WeightedDQN, lambda: cart_pole(1), arguments={"train_freq": (1, "episode"), "gradient_steps": -1},
    ),
    "DQN-normalized": Pair(DQN, WeightedDQN, lambda: VecNormalize(cart_pole())),
    "DQN-cnn": Pair(
        DQN, WeightedDQN, lambda: atari_env("Breakout", 2), policy="CnnPolicy", **FEW,
        arguments={"buffer_size": 120, **CNN},
    ),
    "DQN-dict": Pair(
        DQN, WeightedDQN, lambda: make_vec_env(SimpleMultiObsEnv, 2), policy="MultiInputPolicy",
        buffer=CompressedDictReplayBuffer, **FEW, arguments={"buffer_size": 120},
    ),
    "DQN-her": Pair(
        DQN, WeightedDQN, bit_flipping, policy="MultiInputPolicy", buffer=CompressedHerReplayBuffer,
        buffer_kwargs=HER,
    ),
    "Double-DQN": Pair(DoubleDQN, WeightedDoubleDQN, td_error=double_dqn_errors),
    "QRDQN": Pair(QRDQN, WeightedQRDQN, arguments={"policy_kwargs": QUANTILES}, tolerance=1e-6),

    "QRDQN-of-25-quantiles": Pair(
        QRDQN, WeightedQRDQN, arguments={"policy_kwargs": {"n_quantiles": 25, "net_arch": [32]}, "batch_size": 24},
        tolerance=1e-6,
    ),
    "TD3": Pair(TD3, LapTD3, pendulum, mode="lap", tolerance=1e-6),
    "SAC": Pair(SAC, LapSAC, pendulum, mode="lap", tolerance=1e-6, arguments={"ent_coef": 0.1}),
}  # fmt: skip


def tensors_of(model: Any) -> dict[str, th.Tensor]:
    """Return weights, the last gradients, and the states of all optimizers."""
    named = dict(model.policy.state_dict())
    for name, parameter in model.policy.named_parameters():
        if parameter.grad is not None:
            named[f"gradient of {name}"] = parameter.grad
    optimizers = {"": getattr(model.policy, "optimizer", None)}
    optimizers |= {part: getattr(model, part).optimizer for part in ("actor", "critic") if hasattr(model, part)}
    for part, optimizer in optimizers.items():
        for index, state in optimizer.state_dict()["state"].items() if optimizer is not None else ():
            named |= {f"{key} of {part} {index}": th.as_tensor(value) for key, value in state.items()}
    return named


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in ("DQN", "QRDQN", "TD3") else [pytest.mark.slow]) for name in PAIRS
])  # fmt: skip
def test_training_equals_one_with_explicit_weighted_losses(name: str) -> None:
    pair = PAIRS[name]
    explicit, ours = pair.model(pair.explicit), pair.model(pair.ours)
    initial = {key: value.clone() for key, value in tensors_of(ours).items()}
    prioritize(ours, td_error=pair.td_error)
    for model in (explicit, ours):
        set_random_seed(1)
        model.env.seed(1)
        model.learn(pair.steps)
    assert ours._n_updates == explicit._n_updates >= pair.n_updates
    theirs = tensors_of(explicit)
    for key, value in tensors_of(ours).items():
        th.testing.assert_close(value, theirs[key], rtol=pair.tolerance, atol=pair.tolerance, msg=key)
    assert any(not th.equal(value, initial[key]) for key, value in ours.policy.state_dict().items())
    weights = ours.replay_buffer.sample(32).weights
    assert (weights.min() < 1) == (pair.mode == "per"), "importance weights differ"
    for model in (ours, explicit):
        model.env.close()

"""A training of each algorithm, with SB3's buffer and with a compressed one; and comparison of weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch as th
from sb3_contrib import QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from support import atari_env

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_compressed.contrib import CompressedMaskableRolloutBuffer, compress_rollout_buffer

# "auto" does not compress observations of these environments, which are small.
ZSTD = {"compression_method": "zstd-3"}
SMALL_NET = {"net_arch": [32]}
SMALL_CNN = {"net_arch": [32], "features_extractor_kwargs": {"features_dim": 32}}


@dataclass
class Training:
    """One algorithm on one environment, with SB3's buffer or the compressed one.

    :param algorithm: class of the algorithm
    :param policy: name of the policy
    :param env: creates the environment
    :param steps: environment steps
    :param ours: arguments for the compressed buffer
    :param theirs: arguments for SB3's buffer, if it is not the default
    :param common: arguments for both
    :param finish: called on the compressed model after construction, for algorithms without an argument for the class
    """

    algorithm: type[BaseAlgorithm]
    policy: str
    env: Callable[[], VecEnv]
    steps: int
    ours: dict[str, Any]
    common: dict[str, Any]
    theirs: dict[str, Any] = field(default_factory=dict)
    finish: Callable[[Any], Any] = lambda model: model

    def model(self, compressed: bool, device: str = "cpu") -> Any:
        """Return an untrained model."""
        set_random_seed(1)  # some environments use the global generators
        arguments = copy.deepcopy({**self.common, **(self.ours if compressed else self.theirs)})  # SB3 modifies them
        model = self.algorithm(self.policy, self.env(), seed=1, device=device, **arguments)
        return self.finish(model) if compressed else model


def pendulum() -> VecEnv:
    return make_vec_env("Pendulum-v1", 2)


def off_policy(algorithm: Any, **common: Any) -> Training:
    """Return a training of continuous control with float observations, normalised by VecNormalize."""
    common = {"buffer_size": 200, "learning_starts": 60, "batch_size": 32, "policy_kwargs": SMALL_NET, **common}
    ours = {"replay_buffer_class": CompressedReplayBuffer, "replay_buffer_kwargs": ZSTD}
    return Training(algorithm, "MlpPolicy", lambda: VecNormalize(pendulum()), 420, ours, common)


def on_policy(algorithm: Any, **common: Any) -> Training:
    ours = {"rollout_buffer_class": CompressedRolloutBuffer, "rollout_buffer_kwargs": ZSTD}
    return Training(algorithm, "MlpPolicy", pendulum, 300, ours, {"n_steps": 64, "policy_kwargs": SMALL_NET, **common})


def atari_dqn(buffer: Any, theirs: dict[str, Any] | None = None, **common: Any) -> Training:
    """Return DQN or a variant on an Atari game, with a buffer that is overwritten more than once."""
    common = {
        "buffer_size": 200, "learning_starts": 60, "train_freq": 8, "target_update_interval": 200,
        "policy_kwargs": SMALL_CNN, **common,
    }  # fmt: skip
    return Training(
        common.pop("algorithm", DQN),
        "CnnPolicy",
        lambda: atari_env("Breakout", 2),
        420,
        {"replay_buffer_class": buffer, **common.pop("ours", {})},
        common,
        theirs or {},
    )


N_STEP = {"replay_buffer_kwargs": {"n_steps": 3, "gamma": 0.97}}
HER = {"n_sampled_goal": 4, "goal_selection_strategy": "future"}

TRAININGS = {
    "DQN": atari_dqn(CompressedReplayBuffer),
    "DQN-n-step": atari_dqn(
        CompressedNStepReplayBuffer, {"replay_buffer_class": NStepReplayBuffer}, **N_STEP
    ),
    "DQN-optimize-memory": atari_dqn(
        CompressedReplayBuffer, optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
    ),
    "QRDQN": atari_dqn(CompressedReplayBuffer, algorithm=QRDQN),
    "DQN-dict": Training(
        DQN, "MultiInputPolicy", lambda: make_vec_env(SimpleMultiObsEnv, 2), 420,
        {"replay_buffer_class": CompressedDictReplayBuffer},
        {"buffer_size": 200, "learning_starts": 60, "policy_kwargs": SMALL_NET},
    ),
    "DQN-her": Training(
        DQN, "MultiInputPolicy",
        lambda: make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 4, "image_obs_space": True}), 420,
        {"replay_buffer_class": CompressedHerReplayBuffer},
        {"buffer_size": 200, "learning_starts": 60, "policy_kwargs": SMALL_NET, "replay_buffer_kwargs": HER},
        {"replay_buffer_class": HerReplayBuffer},
    ),
    "SAC-her": Training(
        SAC, "MultiInputPolicy",
        lambda: make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 4, "continuous": True}), 420,
        {"replay_buffer_class": CompressedHerReplayBuffer, "replay_buffer_kwargs": {**HER, **ZSTD}},
        {"buffer_size": 200, "learning_starts": 60, "policy_kwargs": SMALL_NET},
        {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": HER},
    ),
    "SAC": off_policy(SAC),
    "TD3": off_policy(TD3),
    "DDPG": off_policy(DDPG),
    "TQC": off_policy(TQC),
    "CrossQ": off_policy(CrossQ),
    "PPO": Training(
        PPO, "CnnPolicy", lambda: atari_env("Pong", 4), 512,
        {"rollout_buffer_class": CompressedRolloutBuffer},
        {"n_steps": 64, "batch_size": 64, "n_epochs": 2, "policy_kwargs": SMALL_CNN},
    ),
    "PPO-dict": Training(
        PPO, "MultiInputPolicy", lambda: make_vec_env(SimpleMultiObsEnv, 2), 512,
        {"rollout_buffer_class": CompressedDictRolloutBuffer},
        {"n_steps": 128, "batch_size": 64, "n_epochs": 2, "policy_kwargs": SMALL_NET},
    ),
    "PPO-vector": on_policy(PPO, batch_size=32, n_epochs=2),
    "A2C": on_policy(A2C),
    "TRPO": on_policy(TRPO, batch_size=32),
    "MaskablePPO": Training(
        MaskablePPO, "MlpPolicy",
        lambda: make_vec_env(InvalidActionEnvDiscrete, 2, seed=1, env_kwargs={"dim": 20, "n_invalid_actions": 10}), 512,
        {"rollout_buffer_class": CompressedMaskableRolloutBuffer, "rollout_buffer_kwargs": ZSTD},
        {"n_steps": 64, "batch_size": 32, "policy_kwargs": SMALL_NET},
    ),
    "RecurrentPPO": Training(
        RecurrentPPO, "CnnLstmPolicy", lambda: atari_env("Pong", 2), 256, {},
        {"n_steps": 64, "batch_size": 64, "n_epochs": 1, "policy_kwargs": {"lstm_hidden_size": 16}},
        finish=compress_rollout_buffer,
    ),
}  # fmt: skip


def assert_same_weights(ours: Any, theirs: Any) -> None:
    """Assert that two trees of parameters and optimizer states are on the same device and equal, bit for bit."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same_weights(ours[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for our_part, their_part in zip(ours, theirs, strict=True):
            assert_same_weights(our_part, their_part)
    elif isinstance(theirs, th.Tensor):
        assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)
        assert ours.cpu().numpy().tobytes() == theirs.cpu().numpy().tobytes()
    else:
        assert ours == theirs

"""Hyperparameters of RL Baselines3 Zoo for Atari games and CarRacing, adapted to training on a CPU."""

from __future__ import annotations

from typing import Any

__all__ = ["N_ENVS", "SETTINGS"]

DQN: dict[str, Any] = {
    "buffer_size": 100_000,
    "learning_starts": 1_000,  # 100,000 in the Zoo; most of the time should be training
    "train_freq": 4,
    "batch_size": 32,
    "learning_rate": 1e-4,
    "target_update_interval": 1_000,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.01,
}
N_ENVS = {"DQN": 1, "PrioritizedDQN": 1, "SAC": 1, "PPO": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "DQN": DQN,
    "PrioritizedDQN": DQN,
    "SAC": {
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "train_freq": 8,
        "gradient_steps": 2,  # 10 in the Zoo, and batches of 256
        "batch_size": 64,
        "learning_rate": 7.3e-4,
        "tau": 0.02,
        "policy_kwargs": {"net_arch": [64, 64]},
    },
    "PPO": {
        "n_steps": 128,
        "batch_size": 256,
        "n_epochs": 4,
        "learning_rate": 2.5e-4,
        "clip_range": 0.1,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
    },
}

"""Half-trained policies, trained once and cached; their observations differ from those of random actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch as th
from sb3_envs import wrap_as_sb3
from settings import N_ENVS, SETTINGS
from sources import CACHE, Source
from stable_baselines3 import PPO


def train(source: Source) -> Path:
    """Train PPO if there is no cached model, and return its file."""
    path = CACHE / "policies" / f"{source.environment}-ppo-{source.training_steps}steps.zip"
    if not path.exists():
        th.set_num_threads(2)
        env = wrap_as_sb3(source.make(N_ENVS["PPO"]), source.n_stack)
        model = PPO("CnnPolicy", env, seed=0, **SETTINGS["PPO"])
        model.learn(source.training_steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save(path)
    return path


def trained_policy(source: Source) -> Callable[[Any], Any]:
    """Return the trained policy, which samples actions as in training."""
    model = PPO.load(train(source), device="cpu")
    th.manual_seed(0)
    return lambda obs: model.predict(obs)[0]

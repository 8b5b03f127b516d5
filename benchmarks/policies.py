"""Half-trained policies, trained once and cached: frames of someone who plays a little are not those of random play."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch as th
from settings import N_ENVS, SETTINGS
from sources import CACHE, Source
from stable_baselines3 import PPO

from sb3_compressed.benchmarking.frame_recording import as_trained_on


def train(source: Source) -> Path:
    """Train PPO if that has not been done, and return the file."""
    path = CACHE / "policies" / f"{source.environment}-ppo-{source.training_steps}steps.zip"
    if not path.exists():
        th.set_num_threads(2)
        env = as_trained_on(source.make(N_ENVS["PPO"]), source.n_stack)
        model = PPO("CnnPolicy", env, seed=0, **SETTINGS["PPO"])
        model.learn(source.training_steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save(path)
    return path


def player(source: Source) -> Callable[[Any], Any]:
    """Return what chooses actions for stacked observations, at random as the policy would have it, as in training."""
    model = PPO.load(train(source), device="cpu")
    th.manual_seed(0)
    return lambda obs: model.predict(obs)[0]

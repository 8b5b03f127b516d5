"""Offline reinforcement learning: write experience to a Minari dataset and train an agent on the dataset alone.

The game is Catch (https://arxiv.org/abs/1406.6247): a ball falls, and a paddle at the bottom moves left or right to
catch it. Random play catches few balls; from this data alone, DQN learns to catch nearly all of them.

python examples/offline.py
python examples/offline.py --folder datasets  # keep the dataset for other libraries
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch as th
import typer
from common import Method, NEnvs, Seed, memory_table
from gymnasium import spaces
from numpy.typing import NDArray
from rich.console import Console
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import polyak_update

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.datasets import export_minari, import_minari
from sb3_compressed.evaluation import evaluate
from sb3_compressed.warmup import warm_up

DATASET = "catch/random-v0"
TARGET_INTERVAL = 100  # gradient steps between two updates of the target network


class Catch(gym.Env[NDArray[np.uint8], np.int64]):
    """A ball falls one row per step; the final reward is 1 if the paddle is below the ball, otherwise -1."""

    SIZE, PIXELS = 10, 4  # a field of 10x10 squares of 4x4 pixels

    def __init__(self) -> None:
        length = self.SIZE * self.PIXELS
        self.observation_space = spaces.Box(0, 255, (1, length, length), np.uint8)
        self.action_space = spaces.Discrete(3)  # left, stay, right
        self._ball, self._column, self._paddle = 0, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Place a new ball at the top."""
        super().reset(seed=seed)
        self._ball, (self._column, self._paddle) = 0, self.np_random.integers(self.SIZE, size=2)
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the paddle and the ball."""
        self._paddle = int(np.clip(self._paddle + action - 1, 0, self.SIZE - 1))
        self._ball += 1
        has_ended = self._ball == self.SIZE - 1
        reward = (1.0 if self._column == self._paddle else -1.0) if has_ended else 0.0
        return self._image(), reward, has_ended, False, {}

    def _image(self) -> NDArray[np.uint8]:
        field = np.zeros((self.SIZE, self.SIZE), dtype=np.uint8)
        field[-1, self._paddle] = 128
        field[self._ball, self._column] = 255
        return np.kron(field, np.ones((self.PIXELS, self.PIXELS), dtype=np.uint8))[np.newaxis]


def main(
    experience: Annotated[int, typer.Option(min=100, help="Transitions of random play in the dataset.")] = 20_000,
    gradient_steps: Annotated[int, typer.Option(min=1, help="Gradient steps of the training.")] = 6_000,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per evaluation.")] = 100,
    folder: Annotated[Path | None, typer.Option(help="Folder for the dataset; temporary by default.")] = None,
    method: Method = "auto",
    n_envs: NEnvs = 4,
    seed: Seed = 0,
) -> None:
    """Record random play as a Minari dataset, train DQN on it offline, and evaluate."""
    th.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["MINARI_DATASETS_PATH"] = str(folder or temporary)
        record(experience, n_envs, seed)
        # From here on, only the dataset is used.
        dataset = import_minari(DATASET, compression_method=method, device="cpu")
    Console().print(memory_table(dataset))
    env = make_vec_env(Catch, 1, seed)
    model = DQN("MlpPolicy", env, buffer_size=1, learning_rate=1e-3, gamma=0.95, device="cpu", seed=seed)
    model.replay_buffer = dataset
    print("Before:", evaluate(model, env, episodes))
    learn_offline(model, gradient_steps)
    print("After:", evaluate(model, env, episodes))


def record(n_steps: int, n_envs: int, seed: int) -> None:
    """Write random play to a dataset."""
    env = make_vec_env(Catch, n_envs, seed)
    env.action_space.seed(seed)
    buffer = CompressedReplayBuffer(n_steps, env.observation_space, env.action_space, "cpu", n_envs=n_envs)
    warm_up(buffer, env, n_steps)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")  # metadata recommended for published datasets
        dataset = export_minari(buffer, DATASET, algorithm_name="random", author="examples/offline.py")
    print(f"{DATASET}: {dataset.total_episodes:,} episodes, {dataset.total_steps:,} steps.")


def learn_offline(model: DQN, gradient_steps: int) -> None:
    """Train on the model's replay buffer without an environment."""
    model.set_logger(configure(None, []))  # as learn() does
    for _ in range(0, gradient_steps, TARGET_INTERVAL):
        model.train(TARGET_INTERVAL, batch_size=64)
        # DQN does this while it collects experience.
        polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 1.0)


if __name__ == "__main__":
    typer.run(main)

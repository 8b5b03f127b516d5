"""Offline reinforcement learning: write experience to a data set, import it into a folder, and train in epochs.

The game is Catch (https://arxiv.org/abs/1406.6247): a ball falls, and a paddle at the bottom moves left or right to
catch it. Random play catches few balls; from this data alone, DQN learns to catch nearly all of them. Each epoch uses
each transition once, in random order, and reads it from the folder, so the data may be larger than the memory.

python examples/offline.py
python examples/offline.py --folder datasets  # keep the data set and the folder
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
import torch.nn.functional as F
import typer
from common import Method, NEnvs, Seed, memory_table
from gymnasium import spaces
from numpy.typing import NDArray
from rich.console import Console
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import polyak_update

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.datasets import export_minari, import_minari
from sb3_compressed.warmup import warm_up

DATASET = "catch/random-v0"
TARGET_INTERVAL = 100  # gradient steps between two updates of the target network
BATCH_SIZE = 64


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
    experience: Annotated[int, typer.Option(min=100, help="Transitions of random play in the data set.")] = 20_000,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the training.")] = 20,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per evaluation.")] = 100,
    folder: Annotated[Path | None, typer.Option(help="Folder for all files; temporary by default.")] = None,
    method: Method = "auto",
    n_envs: NEnvs = 4,
    seed: Seed = 0,
) -> None:
    """Write random play to a data set, train DQN on it offline, and evaluate."""
    th.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        root = new_folder(folder) if folder else Path(temporary)
        os.environ["MINARI_DATASETS_PATH"] = str(root)
        record(experience, n_envs, seed)
        # From here on, only the data set is used.
        buffer: Any = import_minari(
            DATASET,
            compression_method=method,
            device="cpu",
            sampler="without-replacement",
            storage=root / "buffer",
        )
        Console().print(memory_table(buffer))
        env = make_vec_env(Catch, 1, seed)
        model = DQN("MlpPolicy", env, buffer_size=1, learning_rate=1e-3, gamma=0.95, device="cpu", seed=seed)
        print("Before: return {:.2f} ± {:.2f}".format(*evaluate_policy(model, env, episodes)))
        learn_offline(model, buffer, epochs)
        print("After: return {:.2f} ± {:.2f}".format(*evaluate_policy(model, env, episodes)))
        buffer.close()


def new_folder(folder: Path) -> Path:
    """Create a folder, and return its absolute path, which Minari needs."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} is not empty; pass a new folder")
    return folder.resolve()


def record(n_steps: int, n_envs: int, seed: int) -> None:
    """Write random play to a Minari dataset."""
    env = make_vec_env(Catch, n_envs, seed)
    env.action_space.seed(seed)
    buffer = CompressedReplayBuffer(n_steps, env.observation_space, env.action_space, "cpu", n_envs=n_envs)
    warm_up(buffer, env, n_steps)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")  # metadata recommended for published datasets
        dataset = export_minari(buffer, DATASET, algorithm_name="random", author="examples/offline.py")
    print(f"{DATASET}: {dataset.total_episodes:,} episodes, {dataset.total_steps:,} steps.")


def learn_offline(model: DQN, buffer: Any, epochs: int) -> None:
    """Train on a buffer without an environment, as ``DQN.train`` does, but with each transition once an epoch."""
    model.policy.set_training_mode(True)
    for step, batch in enumerate(buffer.iterate(BATCH_SIZE, epochs)):
        with th.no_grad():
            next_values = model.q_net_target(batch.next_observations).max(dim=1, keepdim=True).values
            targets = batch.rewards + (1 - batch.dones) * model.gamma * next_values
        values = model.q_net(batch.observations).gather(1, batch.actions.long())
        loss = F.smooth_l1_loss(values, targets)
        model.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        th.nn.utils.clip_grad_norm_(model.policy.parameters(), model.max_grad_norm)
        model.policy.optimizer.step()
        if step % TARGET_INTERVAL == 0:
            polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 1.0)


if __name__ == "__main__":
    typer.run(main)

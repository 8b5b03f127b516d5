"""One training of the demo, in a process of its own: DQN with SB3's buffer, or with a compressed one.

    python examples/demo_training.py compressed /tmp

It prints a JSON object per line as it goes, which ``demo.py`` reads, and writes the weights to the folder, and with the
compressed buffer a GIF of its frames.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch as th
import typer
from common import Game, Seed, make_atari, resident_nbytes
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

N_ENVS = 4
#: Steps of each environment between two updates of the network: 200 updates follow the first 3,000 of 15,000
#: transitions.
TRAIN_FREQ = 15
#: Share of the transitions that are added before the first update, and half of that between two target networks.
SHARE_BEFORE_UPDATES = 0.2
#: How often the memory is measured.
N_MEASUREMENTS = 30
#: The length of the GIF, ten seconds.
N_FRAMES = 150
GIF_SIZE = 252, 252


class Buffer(str, Enum):
    """The buffer to train with."""

    SB3 = "sb3"
    COMPRESSED = "compressed"


def main(
    buffer: Buffer,
    folder: Annotated[Path, typer.Argument(help="Folder for the weights and the GIF.")],
    game: Game = "MsPacman",
    transitions: Annotated[int, typer.Option(min=300, help="Transitions to collect.")] = 15_000,
    seed: Seed = 0,
) -> None:
    """Train DQN with one buffer, and report memory, time and weights."""
    th.set_num_threads(1)
    # From now on, the C library keeps freed memory, as with a compressed buffer, so that times show the buffers alone.
    np.empty(30 << 20, np.uint8)
    report(stage="creating buffer and games")
    buffer_class = None
    if buffer is Buffer.COMPRESSED:
        from sb3_compressed import CompressedReplayBuffer  # here, so that the other process takes no memory for it

        buffer_class = CompressedReplayBuffer
    n_before_updates = int(SHARE_BEFORE_UPDATES * transitions)
    model = DQN(
        "CnnPolicy",
        make_atari(game, N_ENVS, seed),
        buffer_size=transitions,
        replay_buffer_class=buffer_class,
        learning_starts=n_before_updates,
        train_freq=TRAIN_FREQ,
        target_update_interval=n_before_updates // 2,
        exploration_fraction=1.0,
        seed=seed,
    )
    before = weights_of(model)
    model.learn(transitions, callback=MemoryCallback(transitions))
    after = weights_of(model)
    np.savez(folder / f"{buffer.value}.npz", **after)  # type: ignore[arg-type]
    report(n_changed=sum(int(np.count_nonzero(before[name] != after[name])) for name in before))
    if buffer is Buffer.COMPRESSED:
        report(stage="writing frames")
        write_gif(model, folder / "frames.gif")


class MemoryCallback(BaseCallback):
    """Reports the resident memory of the process while the buffer fills."""

    def __init__(self, transitions: int) -> None:
        super().__init__()
        self._interval = max(transitions // N_MEASUREMENTS, 1)
        self._next = 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self._next:
            self._next += self._interval
            self._report()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._report()

    def _report(self) -> None:
        report(transitions=self.num_timesteps, updates=self.model._n_updates, rss=resident_nbytes())


def weights_of(model: DQN) -> dict[str, NDArray[Any]]:
    """Return copies of all parameters of the network and the target network."""
    return {name: tensor.numpy().copy() for name, tensor in model.policy.state_dict().items()}


def write_gif(model: DQN, path: Path) -> None:
    """Write the end of the best episode in the buffer of the model."""
    from PIL import Image

    from sb3_compressed.datasets import trajectories

    episode = max(trajectories(model.replay_buffer), key=lambda each: each.total_reward)  # type: ignore[arg-type]
    part = episode.part(max(len(episode) - N_FRAMES, 0), len(episode))
    images = [Image.fromarray(stack[-1]).resize(GIF_SIZE, Image.Resampling.NEAREST) for stack in part.observations]
    images[0].save(path, save_all=True, append_images=images[1:], duration=66, loop=0)


def report(**values: Any) -> None:
    """Print values for ``demo.py``."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    typer.run(main)

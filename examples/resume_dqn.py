"""DQN that resumes after a crash with the model and the replay buffer of the latest checkpoint.

python examples/resume_dqn.py  # end it in any way, even with kill -9, and run it again to resume
python examples/resume_dqn.py --crash-at 4000  # ends itself like a crash
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from common import Game, NEnvs, Seed, Steps, make_atari, train
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from sb3_compressed import BufferCheckpointCallback, CompressedReplayBuffer, latest_checkpoint


class Crash(BaseCallback):
    """Ends the process during training, without a chance to clean up."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.at:
            os._exit(1)  # no code for exceptions, or for the end of the program, runs
        return True


def main(
    game: Game = "Pong",
    steps: Steps = 10_000,
    folder: Annotated[Path, typer.Option(help="Folder of the checkpoints.")] = Path("checkpoints"),
    save_freq: Annotated[int, typer.Option(min=1, help="Environment steps between two checkpoints.")] = 1_000,
    crash_at: Annotated[int | None, typer.Option(min=1, help="Steps after which the process crashes.")] = None,
    n_envs: NEnvs = 4,
    seed: Seed = 0,
) -> None:
    """Train DQN on an Atari game with checkpoints, and resume from the latest one if there is one."""
    env = make_atari(game, n_envs, seed)
    latest = latest_checkpoint(folder, missing_ok=True)
    if latest is None:
        model = DQN(
            "CnnPolicy", env, buffer_size=100_000, learning_starts=500, train_freq=8,
            replay_buffer_class=CompressedReplayBuffer, seed=seed,
        )  # fmt: skip
    else:
        model = DQN.load(latest / "model", env=env)
        model.replay_buffer = CompressedReplayBuffer.from_checkpoint(latest / "buffer", device=model.device)
        print(f"Resuming from {latest}: {model.num_timesteps:,} steps.")
    callbacks: list[BaseCallback] = [BufferCheckpointCallback(save_freq, folder, keep=2, verbose=1, resume=True)]
    callbacks += [Crash(crash_at)] if crash_at is not None else []
    train(model, steps, callbacks)


if __name__ == "__main__":
    typer.run(main)

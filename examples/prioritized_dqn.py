"""DQN with prioritized replay on an Atari game: SB3's DQN, with one call before the training.

python examples/prioritized_dqn.py  # two minutes; Ctrl-C ends it early and still prints the table
python examples/prioritized_dqn.py --game Breakout --alpha 0.5 --beta 0.5
python examples/prioritized_dqn.py --uniform  # the same training without priorities
"""

from __future__ import annotations

from typing import Annotated

import typer
from common import Game, Method, NEnvs, Seed, Steps, make_atari, train
from stable_baselines3 import DQN

from sb3_compressed import CompressedReplayBuffer, prioritize
from sb3_compressed.samplers import PrioritizedSampler


def main(
    game: Game = "Pong",
    steps: Steps = 20_000,
    buffer_size: Annotated[int, typer.Option(min=1, help="Capacity of the buffer in transitions.")] = 100_000,
    alpha: Annotated[float, typer.Option(min=0, help="Exponent of the priorities; 0 for uniform sampling.")] = 0.6,
    beta: Annotated[float, typer.Option(min=0, max=1, help="First exponent of the importance weights.")] = 0.4,
    method: Method = "auto",
    n_envs: NEnvs = 4,
    seed: Seed = 0,
    uniform: Annotated[bool, typer.Option("--uniform", help="Sample all transitions equally often.")] = False,
) -> None:
    """Train DQN with prioritized replay on an Atari game."""
    gradient_steps = n_envs  # one per 8 transitions, half of the usual number, for a demo of two minutes
    updates = max(1, steps // (8 * n_envs)) * gradient_steps
    sampler = PrioritizedSampler(alpha=alpha, beta=beta, beta_steps=updates)  # beta rises to 1 during the training
    model = DQN(
        "CnnPolicy",
        make_atari(game, n_envs, seed),
        buffer_size=buffer_size,
        learning_rate=1e-4 if uniform else 1e-4 / 4,  # as in the paper: prioritized updates have larger gradients
        replay_buffer_class=CompressedReplayBuffer,
        replay_buffer_kwargs={"compression_method": method, "sampler": "uniform" if uniform else sampler},
        train_freq=8,
        gradient_steps=gradient_steps,
        seed=seed,
    )
    if not uniform:
        prioritize(model)
    train(model, steps)


if __name__ == "__main__":
    typer.run(main)

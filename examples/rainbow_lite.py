"""Three parts of Rainbow (https://arxiv.org/abs/1710.02298) on an Atari game, with the algorithms of SB3 as they are.

Prioritized replay, 3-step returns, and distributions of values, here the quantiles of sb3-contrib's QR-DQN.

python examples/rainbow_lite.py  # two minutes; Ctrl-C ends it early and still prints the table
python examples/rainbow_lite.py --game Breakout --n-steps 5
"""

from __future__ import annotations

from typing import Annotated

import typer
from common import Game, Method, NEnvs, Seed, Steps, make_atari, train
from sb3_contrib import QRDQN

from sb3_compressed import CompressedNStepReplayBuffer, prioritize
from sb3_compressed.samplers import PrioritizedSampler

GAMMA = 0.99


def main(
    game: Game = "Pong",
    steps: Steps = 16_000,
    buffer_size: Annotated[int, typer.Option(min=1, help="Capacity of the buffer in transitions.")] = 100_000,
    n_steps: Annotated[int, typer.Option(min=1, help="Rewards that are added up before bootstrapping.")] = 3,
    n_quantiles: Annotated[int, typer.Option(min=1, help="Quantiles of the value of each action.")] = 50,
    method: Method = "auto",
    n_envs: NEnvs = 4,
    seed: Seed = 0,
) -> None:
    """Train QR-DQN with n-step returns and prioritized replay on an Atari game."""
    sampler = PrioritizedSampler(alpha=0.5, beta=0.4, beta_steps=max(1, steps // 8))  # alpha and beta as in Rainbow
    model = QRDQN(
        "CnnPolicy",
        make_atari(game, n_envs, seed),
        gamma=GAMMA,
        buffer_size=buffer_size,
        learning_starts=1_000,
        learning_rate=6.25e-5,
        replay_buffer_class=CompressedNStepReplayBuffer,
        # SB3 sets up n-step returns for its own class only.
        replay_buffer_kwargs={
            "n_steps": n_steps, "gamma": GAMMA, "sampler": sampler, "compression_method": method,
        },
        train_freq=8,
        gradient_steps=n_envs,
        policy_kwargs={"n_quantiles": n_quantiles},
        seed=seed,
    )  # fmt: skip
    prioritize(model)
    train(model, steps)


if __name__ == "__main__":
    typer.run(main)

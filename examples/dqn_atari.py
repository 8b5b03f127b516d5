"""DQN on an Atari game with a compressed replay buffer, and a comparison of its memory with SB3's.

python examples/dqn_atari.py  # two minutes; Ctrl-C ends it early and still prints the table
python examples/dqn_atari.py --game Breakout --method zstd-5
python examples/dqn_atari.py --plain  # the same training with SB3's own buffer
"""

from __future__ import annotations

from typing import Annotated

import typer
from common import Game, Method, NEnvs, Seed, Steps, make_atari, train
from stable_baselines3 import DQN

from sb3_compressed import CompressedReplayBuffer


def main(
    game: Game = "Pong",
    steps: Steps = 20_000,
    buffer_size: Annotated[int, typer.Option(min=1, help="Capacity of the buffer in transitions.")] = 100_000,
    method: Method = "auto",
    n_envs: NEnvs = 4,
    seed: Seed = 0,
    plain: Annotated[bool, typer.Option("--plain", help="Use SB3's own buffer.")] = False,
) -> None:
    """Train DQN on an Atari game with a compressed replay buffer and compare its memory with SB3's."""
    model = DQN(
        "CnnPolicy",
        make_atari(game, n_envs, seed),
        buffer_size=buffer_size,
        replay_buffer_class=None if plain else CompressedReplayBuffer,
        replay_buffer_kwargs=None if plain else {"compression_method": method},
        train_freq=8,
        gradient_steps=n_envs,  # one per 8 transitions, half of the usual number, for a demo of two minutes
        seed=seed,
    )
    train(model, steps)


if __name__ == "__main__":
    typer.run(main)

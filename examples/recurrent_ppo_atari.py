"""sb3-contrib's RecurrentPPO on an Atari game. It has no rollout_buffer_class, so its buffer is compressed afterwards.

python examples/recurrent_ppo_atari.py --game Breakout --method zstd3
"""

from __future__ import annotations

from typing import Annotated

import typer
from common import Game, Method, NEnvs, Seed, Steps, make_atari, train
from sb3_contrib import RecurrentPPO

from sb3_compressed.contrib import compress_rollout_buffer


def main(
    game: Game = "Pong",
    steps: Steps = 8_192,
    n_steps: Annotated[int, typer.Option(min=2, help="Steps of each environment per rollout.")] = 512,
    lstm_size: Annotated[int, typer.Option(min=1, help="Units of the LSTM.")] = 64,
    method: Method = "auto",
    n_envs: NEnvs = 4,
    seed: Seed = 0,
) -> None:
    """Train RecurrentPPO on an Atari game with a compressed rollout buffer."""
    model = RecurrentPPO(
        "CnnLstmPolicy",
        make_atari(game, n_envs, seed, n_stack=1),  # no frame stack: the LSTM has memory
        n_steps=n_steps,
        batch_size=256,
        n_epochs=4,
        # LSTM states are stored for every step, uncompressed: 16 bytes per unit.
        policy_kwargs={"lstm_hidden_size": lstm_size},
        seed=seed,
    )
    train(compress_rollout_buffer(model, compression_method=method), steps)


if __name__ == "__main__":
    typer.run(main)

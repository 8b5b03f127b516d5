"""PPO on an Atari game with environments in worker processes and a compressed rollout buffer.

python examples/ppo_atari_subproc.py --game Breakout --start-method spawn --method rle-jit
"""

from __future__ import annotations

import signal
from enum import Enum
from typing import Annotated

import typer
from common import Game, Method, NEnvs, Seed, Steps, make_atari, train
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_compressed import CompressedRolloutBuffer, find_buffer_dtypes


class StartMethod(str, Enum):
    """Start methods of Python's multiprocessing; availability depends on the platform."""

    fork = "fork"
    forkserver = "forkserver"
    spawn = "spawn"


def main(
    game: Game = "Pong",
    steps: Steps = 20_000,
    n_steps: Annotated[int, typer.Option(min=2, help="Steps of each environment per rollout.")] = 512,
    method: Method = "auto",
    n_envs: NEnvs = 4,
    start_method: Annotated[StartMethod, typer.Option(help="How worker processes start.")] = StartMethod.forkserver,
    seed: Seed = 0,
) -> None:
    """Train PPO on an Atari game in worker processes with a compressed rollout buffer."""
    # Some codecs compile machine code. Do that now, before workers compete for the cores.
    single = make_atari(game, n_envs=1, seed=seed)
    dtypes = find_buffer_dtypes(single.observation_space, compression_method=method)
    single.close()

    # Ctrl-C reaches every process of a terminal. Workers inherit that it is ignored.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    env = make_atari(game, n_envs, seed, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": start_method.value})
    signal.signal(signal.SIGINT, handler)

    model = PPO(
        "CnnPolicy",
        env,
        n_steps=n_steps,
        batch_size=256,
        n_epochs=4,
        rollout_buffer_class=CompressedRolloutBuffer,
        rollout_buffer_kwargs={"compression_method": method, "dtypes": dtypes},
        seed=seed,
    )
    train(model, steps)
    env.close()


if __name__ == "__main__":  # spawned workers import this file
    typer.run(main)

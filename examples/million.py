"""A replay buffer of a million Atari transitions on a laptop; SB3's buffer needs 56 GB.

python examples/million.py  # the game itself takes most of the time
python examples/million.py --game MsPacman --size 100_000
"""

from __future__ import annotations

import time
from typing import Annotated

import typer
from common import SUFFIX, Game, Method, NEnvs, Seed, memory_table, resident_nbytes
from rich.console import Console
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.envs import make_env
from sb3_compressed.warmup import warm_up

BATCHES = 100


def main(
    game: Game = "Pong",
    size: Annotated[int, typer.Option(min=100, help="Number of transitions.")] = 1_000_000,
    method: Method = "auto",
    n_envs: NEnvs = 4,
    seed: Seed = 0,
) -> None:
    """Fill a compressed replay buffer with random play and print its memory."""
    env = make_env(f"{game}{SUFFIX}", n_envs, seed=seed, vec_env_cls=SubprocVecEnv)
    env.action_space.seed(seed)
    buffer = CompressedReplayBuffer(
        size, env.observation_space, env.action_space, "cpu", n_envs=n_envs, compression_method=method
    )
    warm_up(buffer, env, n_envs)  # one step, to exclude the memory of the game and the libraries below
    before = resident_nbytes()
    warm_up(buffer, env, size - n_envs)
    measured = resident_nbytes() - before
    env.close()
    begin = time.perf_counter()
    for _ in range(BATCHES):
        buffer.sample(32)
    seconds = time.perf_counter() - begin
    Console().print(memory_table(buffer, measured))
    print(f"{BATCHES} batches of 32 in {1e3 * seconds:.1f} ms.")


if __name__ == "__main__":
    typer.run(main)

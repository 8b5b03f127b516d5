"""Ape-X DQN on an Atari game (Horgan et al. 2018, https://arxiv.org/abs/1803.00933): collectors, shards and a learner.

Prioritized replay, returns of three steps, and an exploration of its own for each collector.

python examples/apex_dqn.py  # some minutes on two cores; Ctrl-C ends it early and still prints the table
python examples/apex_dqn.py --game Breakout --collectors 8 --shards 2 --steps 1000000
python examples/apex_dqn.py --address auto --collectors 256 --shards 8  # on a Ray cluster
python examples/apex_dqn.py --storage replay  # shards survive kills; the next call continues with them
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from common import Game, Seed, Steps, make_atari
from rich.console import Console
from rich.table import Table
from stable_baselines3 import DQN

from sb3_compressed import PrioritizedSampler, prioritize
from sb3_compressed.distributed import Collectors, DistributedReplayBuffer, DistributedStatistics

N_STEPS, GAMMA = 3, 0.99


def main(
    game: Game = "Pong",
    steps: Steps = 20_000,
    buffer_size: Annotated[int, typer.Option(min=1, help="Capacity of all shards in transitions.")] = 200_000,
    collectors: Annotated[int, typer.Option(min=1, help="Number of collectors.")] = 2,
    envs: Annotated[int, typer.Option(min=1, help="Environments of each collector.")] = 4,
    shards: Annotated[int, typer.Option(min=1, help="Number of shards.")] = 1,
    samples_per_insert: Annotated[float, typer.Option(min=0.1, help="Sampled for each collected transition.")] = 4.0,
    address: Annotated[str | None, typer.Option(help="Ray cluster, for example auto; this machine by default.")] = None,
    storage: Annotated[Path | None, typer.Option(help="Folder of the shards; in memory by default.")] = None,
    seed: Seed = 0,
) -> None:
    """Train DQN on an Atari game with remote collectors."""
    options: dict[str, Any] = {"n_shards": shards, "sampler": PrioritizedSampler(), "n_steps": N_STEPS, "gamma": GAMMA}
    if storage is not None:
        options |= {"storage": storage, "storage_mode": "resume" if storage.exists() else "create"}
    model = DQN(
        "CnnPolicy",
        make_atari(game, 1, seed),
        buffer_size=buffer_size,
        learning_rate=1e-4 / 4,
        learning_starts=min(2_000, steps // 2),
        batch_size=64,
        gamma=GAMMA,
        gradient_steps=1,
        target_update_interval=2_000,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={**options, "address": address},
        seed=seed,
        verbose=1,
    )
    prioritize(model)
    make_env = partial(make_atari, game, envs, seed)
    callback = Collectors(make_env, collectors, samples_per_insert=samples_per_insert)
    try:
        model.learn(steps, callback=callback)
    except KeyboardInterrupt:
        print("interrupted")
    buffer: Any = model.replay_buffer
    show(model.num_timesteps, buffer.statistics())
    buffer.close()


def show(n_steps: int, statistics: DistributedStatistics) -> None:
    """Print what was collected, sampled and sent."""
    raw = 2 * 84 * 84 * 4
    table = Table(title=f"{n_steps:,} steps")
    table.add_column("")
    table.add_column("collectors to shards", justify="right")
    table.add_column("shards to learner", justify="right")
    rows = [
        ("transitions", f"{statistics.n_inserted:,}", f"{statistics.n_sampled:,}"),
        (
            "bytes of each", f"{statistics.n_bytes_inserted / max(statistics.n_inserted, 1):,.0f}",
            f"{statistics.n_bytes_sampled / max(statistics.n_sampled, 1):,.0f}",
        ),
        ("uncompressed", f"{raw:,}", f"{raw:,}"),
        ("lost with shards", f"{statistics.n_lost:,}", ""),
        ("requests that failed", "", f"{statistics.n_failed + statistics.n_late:,}"),
    ]  # fmt: skip
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

"""Record a dataset with several processes: collectors fill a folder, which is exported to Minari.

python examples/collect_dataset.py  # a minute on two cores; random actions
python examples/collect_dataset.py --model dqn.zip --epsilon 0.05 --steps 100000 --collectors 8
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from common import Game, Seed, Steps, make_atari
from stable_baselines3 import DQN

from sb3_compressed import load_checkpoint
from sb3_compressed.datasets import export_minari
from sb3_compressed.distributed import Collectors, DistributedReplayBuffer


def main(
    game: Game = "Pong",
    steps: Steps = 4_000,
    folder: Annotated[Path, typer.Option(help="A new folder for the transitions.")] = Path("recording"),
    collectors: Annotated[int, typer.Option(min=1, help="Number of collectors.")] = 2,
    envs: Annotated[int, typer.Option(min=1, help="Environments of each collector.")] = 2,
    model: Annotated[Path | None, typer.Option(help="A DQN that was saved; random actions by default.")] = None,
    epsilon: Annotated[float, typer.Option(min=0, max=1, help="Probability of random actions of the model.")] = 0.05,
    dataset: Annotated[str, typer.Option(help="Name of the Minari dataset, without the version.")] = "pong/random",
    seed: Seed = 0,
) -> None:
    """Record transitions of an Atari game to a folder and export them to Minari."""
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists; pass another --folder, or delete it")
    make_env = partial(make_atari, game, envs, seed)
    # All collectors have rings of the same size, although some may add more than others.
    options: dict[str, Any] = {
        "buffer_size": steps * collectors, "gradient_steps": 0, "learning_starts": steps if model is None else 0,
        "replay_buffer_class": DistributedReplayBuffer, "replay_buffer_kwargs": {"storage": folder}, "seed": seed,
    }  # fmt: skip
    env = make_atari(game, 1, seed)
    policy = DQN("CnnPolicy", env, **options) if model is None else DQN.load(model, env, **options)
    # Without gradient steps, nothing is trained, and until learning starts, actions are random.
    policy.learn(steps, callback=Collectors(make_env, collectors, exploration=epsilon))
    buffer: Any = policy.replay_buffer
    print(f"{buffer.n_transitions:,} transitions")
    buffer.close()
    # The folder of each ring is that of a compressed replay buffer.
    for number, ring in enumerate(sorted(folder.glob("shard-*/ring-*"))):
        name = f"{dataset}-{ring.name.removeprefix('ring-')}-v0"
        exported = export_minari(load_checkpoint(ring), name, progress_bar=False, env=f"{game}NoFrameskip-v4")
        print(f"{number + 1}: {ring} -> {name}, {exported.total_episodes} episodes, {exported.total_steps:,} steps")


if __name__ == "__main__":
    typer.run(main)

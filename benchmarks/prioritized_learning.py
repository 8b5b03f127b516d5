"""Train DQN on MinAtar games with and without prioritized replay, and compare the returns.

    pip install --no-deps minatar
    nice python benchmarks/prioritized_learning.py --runs runs.jsonl --out results.json --plot returns.svg

MinAtar (https://arxiv.org/abs/1903.03176) reduces five Atari games to 10 x 10 pixels. The network is that of its paper.
Both kinds of training have the same settings, none of which were tuned. A run of 100,000 steps takes about a minute on
one core.

Each finished run is a line of ``--runs``; started again, the script continues with the missing ones. The score of a run
is the mean return of the episodes in its last tenth. Scores are aggregated as rliable does
(https://arxiv.org/abs/2108.13264): interquartile means over all runs, with confidence intervals of 95% from a
bootstrap that resamples the seeds of each game. To aggregate several games, scores are divided by the mean of all runs
of the game.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from session import CONSOLE, parser, save
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from tables import markdown
from torch import nn

from sb3_compressed import CompressedReplayBuffer, prioritize
from sb3_compressed.samplers import PrioritizedSampler

GAMES = ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"]
N_POINTS = 20  # of a learning curve
N_RESAMPLES = 5000
SETTINGS: dict[str, Any] = {
    "learning_rate": 2.5e-4,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "batch_size": 32,
    "gamma": 0.99,
    "train_freq": 4,
    "target_update_interval": 1_000,
    "exploration_fraction": 0.2,
    "exploration_final_eps": 0.05,
}
#: Kinds of replay, and the samplers of buffers for a number of updates.
REPLAYS: dict[str, Callable[[int], Any]] = {
    "uniform": lambda updates: "uniform",
    "prioritized": lambda updates: PrioritizedSampler(beta_steps=updates),
    "lap": lambda updates: PrioritizedSampler(mode="lap", alpha=0.4),
}

Scores = dict[str, dict[str, list[float]]]
"""Scores of all seeds by game and kind of replay."""


class MinAtarNetwork(BaseFeaturesExtractor):
    """The network of MinAtar's paper: a convolution and a fully connected layer; observations are channel-last."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, features_dim=128)
        height, width, channels = observation_space.shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * (height - 2) * (width - 2), 128),
            nn.ReLU(),
        )

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """Return the features of observations ``(batch_size, height, width, channels)``."""
        features: th.Tensor = self.layers(observations.permute(0, 3, 1, 2))
        return features


class ReturnsCallback(BaseCallback):
    """Records the step at which each episode ended, and its return."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append((self.num_timesteps, info["episode"]["r"]))
        return True

    def between(self, begin: int, end: int) -> float | None:
        """Return the mean return of the episodes that ended after step ``begin``, up to ``end``; ``None`` without."""
        found = [value for step, value in self.returns if begin < step <= end]
        return float(np.mean(found)) if found else None


def train(game: str, replay: str, seed: int, steps: int) -> dict[str, Any]:
    """Train once and return the score and the learning curve."""
    if f"MinAtar/{game}-v1" not in gym.registry:
        importlib.import_module("minatar.gym").register_envs()
    th.set_num_threads(1)
    env = make_vec_env(f"MinAtar/{game}-v1", seed=seed)
    updates = max(1, (steps - SETTINGS["learning_starts"]) // SETTINGS["train_freq"])
    model = DQN(
        "MlpPolicy",
        env,
        replay_buffer_class=CompressedReplayBuffer,
        replay_buffer_kwargs={"sampler": REPLAYS[replay](updates)},
        policy_kwargs={"features_extractor_class": MinAtarNetwork, "net_arch": []},
        seed=seed,
        device="cpu",
        **SETTINGS,
    )
    if replay != "uniform":
        prioritize(model)
    callback, begin = ReturnsCallback(), time.process_time()
    model.learn(steps, callback=callback)
    return run_of(callback, game, replay, seed, steps, time.process_time() - begin)


def run_of(callback: ReturnsCallback, game: str, replay: str, seed: int, steps: int, seconds: float) -> dict[str, Any]:
    """Return the score and the learning curve of a run."""
    limits = np.linspace(0, steps, N_POINTS + 1).astype(int).tolist()
    return {
        "game": game, "replay": replay, "seed": seed, "steps": steps,
        "score": callback.between(steps - steps // 10, steps) or 0.0,
        "curve": [callback.between(*pair) for pair in itertools.pairwise(limits)],
        "cpu_seconds": seconds,
    }  # fmt: skip


def finished_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs in a file; a line that was cut off is ignored."""
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    complete = [line for line in lines if line.endswith("}")]
    if len(complete) < len(lines):
        CONSOLE.print(f"ignoring {len(lines) - len(complete)} incomplete lines of {path}")
    return [json.loads(line) for line in complete]


def append_run(path: Path, run: dict[str, Any]) -> None:
    """Append a run to a file, after a line break if the last line was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(run).encode() + b"\n")


def scores_of(runs: Sequence[dict[str, Any]]) -> Scores:
    """Return the scores of the seeds that were trained with all kinds of replay."""
    replays = list(dict.fromkeys(run["replay"] for run in runs))
    by_key = {(run["game"], run["replay"], run["seed"]): run["score"] for run in runs}
    scores: Scores = {}
    for game in dict.fromkeys(run["game"] for run in runs):
        seeds = sorted({run["seed"] for run in runs if run["game"] == game})
        complete = [seed for seed in seeds if all((game, replay, seed) in by_key for replay in replays)]
        if complete:
            scores[game] = {replay: [by_key[game, replay, seed] for seed in complete] for replay in replays}
    return scores


# -- statistics ------------------------------------------------------------------------------------------------


def interquartile_mean(scores: NDArray[np.float64]) -> Any:
    """Return the mean of the middle half along the last axis, as ``scipy.stats.trim_mean(scores, 0.25)`` does."""
    cut = scores.shape[-1] // 4
    return np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(axis=-1)


def interval(games: Sequence[NDArray[np.float64]]) -> tuple[float, float, float]:
    """Return the interquartile mean of the scores of all games, and its confidence interval.

    :param games: scores ``(n_seeds,)`` of each game, which are resampled game by game
    """
    generator = np.random.default_rng(0)
    resampled = [scores[generator.integers(len(scores), size=(N_RESAMPLES, len(scores)))] for scores in games]
    low, high = np.percentile(interquartile_mean(np.concatenate(resampled, axis=1)), (2.5, 97.5))
    return float(interquartile_mean(np.concatenate(games))), float(low), float(high)


def normalized(scores: Scores) -> dict[str, list[NDArray[np.float64]]]:
    """Return by kind of replay the scores of each game, divided by the mean of all runs of the game."""
    by_replay: dict[str, list[NDArray[np.float64]]] = {}
    for of_game in scores.values():
        mean = np.mean([score for of_replay in of_game.values() for score in of_replay])
        for replay, of_replay in of_game.items():
            by_replay.setdefault(replay, []).append(np.asarray(of_replay) / (mean or 1.0))
    return by_replay


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return a row per game, and one for all games, with the interquartile mean of each kind of replay."""
    scores = {
        game: {replay: measured["scores"] for replay, measured in of_game.items()} for game, of_game in results.items()
    }
    replays = list(next(iter(scores.values())))
    rows = [
        [game, str(len(of_game[replays[0]])), *(_cell([np.asarray(of_game[replay])]) for replay in replays)]
        for game, of_game in scores.items()
    ]
    n_runs = sum(len(of_game[replays[0]]) for of_game in scores.values())
    by_replay = normalized(scores)
    rows.append(["all, normalized", str(n_runs), *(_cell(by_replay[replay]) for replay in replays)])
    return markdown(["game", "runs", *replays], rows)


def _cell(games: Sequence[NDArray[np.float64]]) -> str:
    center, low, high = interval(games)
    return f"{center:.3g} ({low:.3g} to {high:.3g})"


def results_of(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return scores and mean learning curves by game and kind of replay."""
    results: dict[str, dict[str, Any]] = {}
    for game, of_game in scores_of(runs).items():
        results[game] = {}
        for replay, scores in of_game.items():
            curves = [run["curve"] for run in runs if (run["game"], run["replay"]) == (game, replay)][: len(scores)]
            results[game][replay] = {"scores": scores, "curves": curves}
    return results


def plot(results: dict[str, dict[str, Any]], steps: int, path: Path) -> None:
    """Plot the learning curves of each game: interquartile means over the seeds, with confidence intervals."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from plots import STYLE

    colors = {"uniform": "#1a1a19", "prioritized": "#2a78d6", "lap": "#d95926", "collectors": "#2a78d6"}
    positions = (np.arange(N_POINTS) + 0.5) * steps / N_POINTS / 1000
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(results), figsize=(2.2 * len(results), 2.4), squeeze=False)
        for panel, (game, of_game) in zip(axes[0], results.items()):
            for replay, measured in of_game.items():
                curves = np.asarray(measured["curves"], dtype=np.float64).T
                points = [interval([values[~np.isnan(values)]]) for values in curves if not np.isnan(values).all()]
                shown = positions[[not np.isnan(values).all() for values in curves]]
                center, low, high = np.transpose(points)
                panel.plot(shown, center, color=colors[replay], lw=1.4, label=replay)
                panel.fill_between(shown, low, high, color=colors[replay], alpha=0.15, lw=0)
            panel.set(title=game, xlabel="thousand steps")
        axes[0, 0].set_ylabel("return")
        axes[0, 0].legend(frameon=False)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def main() -> None:
    """Run from the command line."""
    compare(__doc__, "prioritized_learning", train, list(REPLAYS), ["uniform", "prioritized"])


def compare(
    description: str | None,
    name: str,
    train: Callable[[str, str, int, int], dict[str, Any]],
    replays: Sequence[str],
    default: Sequence[str],
) -> None:
    """Run a benchmark of kinds of replay from the command line.

    :param description: of the script
    :param name: of the benchmark
    :param train: trains once, as :func:`train` does
    :param replays: the kinds of replay that it knows
    :param default: those that are compared by default
    """
    flags: argparse.ArgumentParser = parser(description, rounds=10)
    flags.add_argument("--games", nargs="+", default=GAMES, choices=GAMES)
    flags.add_argument("--replays", nargs="+", default=default, choices=replays)
    flags.add_argument("--steps", type=int, default=100_000, help="environment steps of a run (default: %(default)s)")
    flags.add_argument("--runs", type=Path, help="file to which finished runs are appended")
    flags.add_argument("--plot", type=Path, help="write learning curves to this file")
    flags.add_argument("--limit", type=int, help="end after that many runs")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.rounds, arguments.steps, arguments.games = 1, 2_000, arguments.games[:1]
    finished = finished_runs(arguments.runs) if arguments.runs else []
    finished = [run for run in finished if run["steps"] == arguments.steps]
    done = {(run["seed"], run["game"], run["replay"]) for run in finished}
    # Seed by seed, so that unfinished results are those of fewer seeds.
    wanted = [
        (seed, game, replay)
        for seed in range(arguments.rounds)
        for game in arguments.games
        for replay in arguments.replays
    ]
    missing = [key for key in wanted if key not in done][: arguments.limit]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=CONSOLE) as progress:
        task = progress.add_task("", total=len(missing))
        for seed, game, replay in missing:
            progress.update(task, description=f"{game}, {replay}, seed {seed}")
            run = train(game, replay, seed, arguments.steps)
            finished.append(run)
            if arguments.runs:
                append_run(arguments.runs, run)
            progress.advance(task)
    results = results_of([run for run in finished if (run["seed"], run["game"], run["replay"]) in wanted])
    if not results:
        print("no seed is finished with all kinds of replay")
        return
    options = {"steps": arguments.steps, "seeds": arguments.rounds, "settings": SETTINGS}
    save(arguments.out, name, options, results, arguments.peers)
    if arguments.plot:
        plot(results, arguments.steps, arguments.plot)
    print(table(results))


if __name__ == "__main__":
    main()

"""Replay buffers on real frames: memory from the operating system, times as ratios to SB3's buffer in the same run.

    python benchmarks/replay.py --games Pong MsPacman --methods auto zstd-1 --size 40000

Every buffer gets a process of its own, buffers take turns over several rounds, medians are reported. ``add`` is timed
on the second lap over the ring, with observations in the memory layout of real training.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from gymnasium import spaces
from recording import play, record
from rich.console import Console
from rich.progress import Progress

GAMES = ["MsPacman", "Pong", "Breakout", "Seaquest", "Qbert", "Riverraid"]
BATCH_SIZES = (32, 256, 1024)
TIMED_STEPS = 500  # of add, on the second lap
N_ENVS = 4


def measure(method: str, game: str, size: int) -> dict[str, float]:
    """Fill one buffer and return its memory in bytes and its times in microseconds; for a process of its own."""
    import torch as th
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_compressed import CompressedReplayBuffer

    th.set_num_threads(1)
    rows = size // N_ENVS
    path = record(game, N_ENVS, rows + TIMED_STEPS)
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    arguments: dict[str, Any] = {"device": "cpu", "n_envs": N_ENVS}
    buffer: ReplayBuffer
    if method == "SB3":
        buffer = ReplayBuffer(size, space, spaces.Discrete(18), **arguments)
    else:
        buffer = CompressedReplayBuffer(size, space, spaces.Discrete(18), compression_method=method, **arguments)
    steps = play(path, N_ENVS)

    def add_next() -> float:
        step = next(steps)
        begin = time.perf_counter()
        buffer.add(step.obs, step.next_obs, step.action, step.reward, step.done, step.infos)
        return time.perf_counter() - begin

    for _ in range(100):  # caches, allocator, whatever is made at first use
        add_next()
    buffer.sample(max(BATCH_SIZES))
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range(rows - 100):
        add_next()
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    result = {"rss": grown / (rows - 100) / N_ENVS}
    result["add"] = statistics.median(add_next() for _ in islice(range(TIMED_STEPS), TIMED_STEPS - 1)) * 1e6 / N_ENVS
    for batch_size in BATCH_SIZES:
        times = []
        for _ in range(6400 // batch_size + 20):
            begin = time.perf_counter()
            buffer.sample(batch_size)
            times.append(time.perf_counter() - begin)
        result[f"sample({batch_size})"] = statistics.median(times) * 1e6
    return result


def run(games: list[str], methods: list[str], size: int, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Measure every buffer on every game and return ``{game: {method: medians}}``."""
    results: dict[str, dict[str, list[dict[str, float]]]] = {
        game: {method: [] for method in ["SB3", *methods]} for game in games
    }
    console = Console(stderr=True)
    with Progress(console=console) as progress:
        task = progress.add_task("measuring", total=rounds * len(games) * (len(methods) + 1))
        for game in games:
            progress.update(task, description=f"recording {game}")
            record(game, N_ENVS, size // N_ENVS + TIMED_STEPS)
            for _ in range(rounds):
                for method in results[game]:
                    progress.update(task, description=f"{game}, {method}")
                    command = [sys.executable, __file__, "--one", method, "--games", game, "--size", str(size)]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    results[game][method].append(json.loads(done.stdout))
                    progress.advance(task)
    return {
        game: {
            method: {key: statistics.median(one[key] for one in runs) for key in runs[0]}
            for method, runs in of_game.items()
        }
        for game, of_game in results.items()
    }


def markdown(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return a table of the geometric means over the games, all relative to SB3's buffer."""
    games = list(results)
    methods = [method for method in results[games[0]] if method != "SB3"]
    keys = list(results[games[0]]["SB3"])
    lines = [
        "| method | memory (RSS) | worst game | " + " | ".join(f"`{key}` time" for key in keys[1:]) + " |",
        "|---|" + "---|" * (len(keys) + 1),
    ]
    for method in methods:
        ratios = {key: [results[game][method][key] / results[game]["SB3"][key] for game in games] for key in keys}
        means = {key: statistics.geometric_mean(values) for key, values in ratios.items()}
        cells = [f"{means['rss']:.2%}", f"{max(ratios['rss']):.2%}", *(f"{means[key]:.2f}x" for key in keys[1:])]
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=GAMES, help="Atari games, as Pong")
    parser.add_argument("--methods", nargs="+", default=["auto"], help="compression methods, as zstd-5")
    parser.add_argument("--size", type=int, default=100_000, help="transitions in the buffer")
    parser.add_argument("--rounds", type=int, default=3, help="how often each buffer is measured")
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.games[0], arguments.size)))
        return
    results = run(arguments.games, arguments.methods, arguments.size, arguments.rounds)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(
            json.dumps({"arguments": {"size": arguments.size}, "results": results}, indent=1) + "\n"
        )
    print(markdown(results))


if __name__ == "__main__":
    main()

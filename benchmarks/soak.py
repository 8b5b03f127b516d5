"""Add many transitions of drifting images to a small buffer, and check that its memory stays flat and its content true.

Frames of Atari games change their game and their colors every few thousand steps, so that the codec is trained again
and again. Every few steps a batch is sampled and compared with the frames that it was made of. The resident memory
(RSS) after the first tenth is compared with the end.

    python benchmarks/soak.py --adds 20000000
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
from gymnasium import spaces
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sb3_envs import make_env

from sb3_compressed import CompressedReplayBuffer

GAMES = "Pong", "MsPacman", "Riverraid"
N_STACK = 4
MAX_GROWTH = 0.05


class DriftingFrames:
    """Frames of some games, ``(n_envs, 84, 84)`` a step, whose game and colors change.

    :param n_steps: recorded steps of each game, which are repeated
    :param phase: steps between two changes
    """

    def __init__(self, games: tuple[str, ...], n_envs: int, n_steps: int, phase: int) -> None:
        self._games = [np.stack([*_record(game, n_envs, n_steps)]) for game in games]
        self._phase = phase

    def __getitem__(self, step: int) -> NDArray[np.uint8]:
        change = step // self._phase
        frames = self._games[change % len(self._games)]
        colors = np.random.default_rng(change).permutation(256).astype(np.uint8)
        result: NDArray[np.uint8] = colors[frames[step % len(frames)]]
        return result


def _record(game: str, n_envs: int, n_steps: int) -> Iterator[NDArray[np.uint8]]:
    env = make_env(f"{game}NoFrameskip-v4", n_envs, atari=True)
    env.action_space.seed(0)
    env.reset()
    for _ in range(n_steps):
        obs: Any = env.step(np.array([env.action_space.sample() for _ in range(n_envs)]))[0]
        yield obs[..., 0]
    env.close()


def run(adds: int, rows: int, n_envs: int, n_steps: int, phase: int, sample_every: int) -> list[tuple[int, float, int]]:
    """Fill the buffer; return transitions, RSS in MB and sampled batches at each tenth.

    :raises AssertionError: if a sampled observation differs from what was added
    """
    frames, process = DriftingFrames(GAMES, n_envs, n_steps, phase), psutil.Process()
    space = spaces.Box(0, 255, (N_STACK, 84, 84), np.uint8)
    buffer = CompressedReplayBuffer(rows * n_envs, space, spaces.Discrete(6), "cpu", n_envs=n_envs)
    stack = np.zeros((n_envs, 84, 84, N_STACK), np.uint8)  # channel-last, as VecFrameStack has it
    infos: list[dict[str, object]] = [{} for _ in range(n_envs)]
    nothing = np.zeros(n_envs, np.float32)
    rows_to_check = np.random.default_rng(0)
    results, n_batches, total = [], 0, -(-adds // n_envs)
    for step in range(total):
        before, stack = stack, np.concatenate([stack[..., 1:], frames[step][..., np.newaxis]], axis=-1)
        # The reward is the step, by which the content of a sample is known.
        obs, next_obs = before.transpose(0, 3, 1, 2), stack.transpose(0, 3, 1, 2)
        buffer.add(obs, next_obs, nothing[:, np.newaxis].astype(np.int64), nothing + step % 2**20, nothing, infos)
        if step % sample_every == 0 and step >= N_STACK:
            buffer.sample(32)
            _check(buffer, frames, step, int(rows_to_check.integers(buffer.size())))
            n_batches += 1
        if (step + 1) % max(total // 10, 1) == 0:
            results.append(((step + 1) * n_envs, process.memory_info().rss / 1e6, n_batches))
    return results


def _check(buffer: CompressedReplayBuffer, frames: DriftingFrames, step: int, row: int) -> None:
    age = (buffer.pos - 1 - row) % buffer.buffer_size
    then = step - age
    expected = [frames[then - k] if then >= k else np.zeros_like(frames[0]) for k in range(N_STACK)][::-1]
    stored = np.asarray(buffer.next_observations[row])
    assert np.array_equal(stored, np.stack(expected, axis=1)), f"row {row} differs after {step} steps"


def main() -> int:
    """Run, print a table, and return 1 if the memory grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adds", type=int, default=20_000_000, help="transitions to add (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=2_000, help="rows of the buffer (default: %(default)s)")
    parser.add_argument("--n-envs", type=int, default=16, help="environments (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1_000, help="recorded steps of each game (default: %(default)s)")
    parser.add_argument("--phase", type=int, default=5_000, help="steps between two changes (default: %(default)s)")
    parser.add_argument("--sample-every", type=int, default=50, help="steps between two samples (default: %(default)s)")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    results = run(
        arguments.adds, arguments.rows, arguments.n_envs, arguments.steps, arguments.phase, arguments.sample_every
    )
    table = Table("transitions", "RSS in MB", "sampled batches")
    for n_added, rss, n_batches in results:
        table.add_row(f"{n_added:,}", f"{rss:.1f}", f"{n_batches:,}")
    growth = results[-1][1] / results[0][1] - 1
    Console().print(table, f"RSS grew by {growth:.1%} in {time.perf_counter() - begin:.0f} s")
    return int(growth > MAX_GROWTH)


if __name__ == "__main__":
    sys.exit(main())

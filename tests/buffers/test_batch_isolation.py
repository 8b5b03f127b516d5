"""A batch is private: whatever else reads or changes arrays while it is sampled does not change it."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from lines import before_lines
from stable_baselines3.common.buffers import ReplayBuffer
from support import assert_same_batch, same_draws

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.arrays import compressed_array, decoding
from sb3_compressed.buffers import base

SPACE, ACTIONS = spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Discrete(4)


def fill(buffer: Any, n_steps: int = 60) -> Any:
    rng = np.random.default_rng(0)
    stack = np.zeros((1, 4, 36, 36), np.uint8)
    for step in range(n_steps):
        following = np.roll(stack, -1, axis=1)
        following[:, -1] = rng.integers(0, 4, (36, 36)) * 60
        done = np.array([step % 17 == 16])
        buffer.add(stack, following, np.zeros((1, 1)), np.zeros(1), done, [{}])
        stack = np.zeros_like(following) if done[0] else following
    return buffer


def compressed(codec: str = "zstd3", **options: Any) -> Any:
    return fill(CompressedReplayBuffer(64, SPACE, ACTIONS, "cpu", compression_method=codec, frame_stack=4, **options))


@pytest.mark.parametrize("where", ["instance", "class"])
@pytest.mark.parametrize("codec", ["zstd3", "delta"])
def test_replaced_methods_may_change_observations_in_place(
    codec: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = compressed(codec), fill(ReplayBuffer(64, SPACE, ACTIONS, "cpu"))
    seen: list[Any] = []

    def invert(observations: Any, env: Any = None) -> Any:
        observations[...] = 255 - observations
        seen.append(observations)
        return observations

    if where == "class":
        monkeypatch.setattr(ReplayBuffer, "_normalize_obs", staticmethod(invert))
    else:
        ours._normalize_obs = theirs._normalize_obs = invert
    batch, expected = same_draws(lambda: ours.sample(50), lambda: theirs.sample(50), seed=0)
    assert_same_batch(batch, expected)
    for array in seen:
        assert not np.shares_memory(array, batch.observations.numpy())
        assert not np.shares_memory(array, batch.next_observations.numpy())


@pytest.mark.parametrize("codec", ["zstd3", "delta"])
@pytest.mark.parametrize("optimize", [False, True])
def test_reads_of_the_same_rows_within_a_sample_do_not_change_it(codec: str, optimize: bool) -> None:
    """As by a signal handler, which runs between any two lines."""
    buffer = compressed(codec, optimize_memory_usage=optimize)
    [expected] = same_draws(lambda: buffer.sample(20), seed=0)
    [rows] = same_draws(lambda: np.random.randint(0, 60, size=20), seed=0)  # noqa: NPY002  # as SB3 draws them
    n_reads = 0

    def read_and_overwrite() -> None:
        nonlocal n_reads
        for array in (buffer.observations, buffer.next_observations) if not optimize else (buffer.observations,):
            array[rows, 0][...] = 7
            array[rows, np.zeros(20, int)][...] = 7
            n_reads += 1

    for line in count():
        before = n_reads
        with before_lines([line], read_and_overwrite, base, compressed_array, decoding):
            [batch] = same_draws(lambda: buffer.sample(20), seed=0)
        assert_same_batch(batch, expected)
        if n_reads == before:
            break
    assert n_reads > 20

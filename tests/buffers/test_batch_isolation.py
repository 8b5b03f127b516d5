"""A batch is private: whatever else reads or changes arrays while it is sampled does not change it."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
import stable_baselines3.common.buffers
from gymnasium import spaces
from lines import before_lines
from numbered import COUNTER, IMAGES, add_steps
from stable_baselines3.common.buffers import ReplayBuffer
from support import assert_same_batch, same_draws

import sb3_compressed
from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.arrays import compressed_array, decoding
from sb3_compressed.buffers import base, observation_batch, replay_mixin
from sb3_compressed.common.tree_map import tree_map


def new(codec: str = "zstd3", cls: Any = CompressedReplayBuffer, **options: Any) -> Any:
    if cls is CompressedReplayBuffer:
        options.update(compression_method=codec, frame_stack=4)
    buffer = cls(64, IMAGES, COUNTER, "cpu", **options)
    add_steps(buffer, range(60))
    return buffer


@pytest.mark.parametrize("where", ["instance", "class"])
@pytest.mark.parametrize("codec", ["zstd3", "delta"])
def test_replaced_methods_may_change_observations_in_place(
    codec: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = new(codec), new(cls=ReplayBuffer)
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


@pytest.mark.parametrize("kind", ["Replay", "NStepReplay", "DictReplay"])
def test_replaced_methods_may_draw_random_numbers(kind: str) -> None:
    """As for random shifts of images: SB3's classes call them in different orders."""
    space = spaces.Box(-1, 1, (3,), np.float32)

    def shift(observations: Any, env: Any = None) -> Any:
        return tree_map(lambda part: part + np.random.rand(*part.shape).astype(np.float32), observations)  # noqa: NPY002

    buffers: list[Any] = []
    for module, name in ((sb3_compressed, "Compressed"), (stable_baselines3.common.buffers, "")):
        whole = spaces.Dict(a=space, b=space) if kind == "DictReplay" else space
        buffer = getattr(module, f"{name}{kind}Buffer")(8, whole, spaces.Discrete(4), "cpu")
        for step in range(6):
            row = np.full((1, 3), step, np.float32)
            obs = {"a": row, "b": row} if kind == "DictReplay" else row
            buffer.add(obs, dict(obs) if isinstance(obs, dict) else obs + 1, *[np.zeros(1)] * 3, [{}])
        buffer._normalize_obs = buffer._normalize_reward = shift
        buffers.append(buffer)
    batch, expected = same_draws(lambda: buffers[0].sample(20), lambda: buffers[1].sample(20), seed=0)
    assert_same_batch(batch, expected)


@pytest.mark.parametrize("codec", ["zstd3", "delta"])
@pytest.mark.parametrize("optimize", [False, True])
def test_reads_of_the_same_rows_within_a_sample_do_not_change_it(codec: str, optimize: bool) -> None:
    """As by a signal handler, which runs between any two lines."""
    buffer = new(codec, optimize_memory_usage=optimize)
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
        with before_lines(
            [line], read_and_overwrite, base, replay_mixin, observation_batch, compressed_array, decoding
        ):
            [batch] = same_draws(lambda: buffer.sample(20), seed=0)
        assert_same_batch(batch, expected)
        if n_reads == before:
            break
    assert n_reads > 20

"""Batches are the same with any number of threads, and on any device."""

from __future__ import annotations

from functools import partial

import pytest
import torch as th
from conftest import Stream
from stable_baselines3.common.buffers import ReplayBuffer
from support import add_all, assert_same_batch, filled, same_draws

from sb3_compressed import CompressedReplayBuffer


@pytest.mark.parametrize("num_threads", [1, 3, 16])
@pytest.mark.parametrize("method", ["auto", "zstd3"])
def test_any_number_of_threads_gives_the_same_batches(stream: Stream, method: str, num_threads: int) -> None:
    ours = filled(stream, 120, 100, num_threads=num_threads, compression_method=method)
    theirs = filled(stream, 120, 100, ReplayBuffer)
    for seed, batch_size in enumerate((1, 32, 256, 1000)):
        samplers = [partial(buffer.sample, batch_size) for buffer in (ours, theirs)]
        assert_same_batch(*same_draws(*samplers, seed=seed))


def test_batches_in_use_are_never_overwritten(stream: Stream) -> None:
    ours = filled(stream, None, 200)
    kept = [ours.sample(64) for _ in range(6)]
    copies = [batch.observations.clone() for batch in kept]
    parts = [ours.sample(64).next_observations[3:5] for _ in range(4)]
    part_copies = [part.clone() for part in parts]
    for _ in range(20):
        ours.sample(64)
    assert all(th.equal(batch.observations, copy) for batch, copy in zip(kept, copies, strict=True))
    assert all(th.equal(part, copy) for part, copy in zip(parts, part_copies, strict=True))


def test_a_cuda_device_gets_the_same_batches(stream: Stream) -> None:
    if not th.cuda.is_available():
        pytest.skip("there is no CUDA device")
    space, action_space, n_envs, transitions = stream
    ours, theirs = (
        cls(200 * n_envs, space, action_space, "cuda", n_envs) for cls in (CompressedReplayBuffer, ReplayBuffer)
    )
    add_all(transitions, ours, theirs)
    for seed in range(20):  # memory that a copy still reads from must not be written to
        assert_same_batch(*same_draws(lambda: ours.sample(256), lambda: theirs.sample(256), seed=seed))

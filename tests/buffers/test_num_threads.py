"""Batches are the same with any number of threads."""

from __future__ import annotations

from functools import partial

import pytest
import torch as th
from conftest import Stream
from stable_baselines3.common.buffers import ReplayBuffer
from support import assert_same_batch, filled, same_draws


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

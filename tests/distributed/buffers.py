"""Distributed buffers, their content, and their shards, for several tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ray

from distributed.emitted import NUMBERS, SPACES, observation, transition
from sb3_compressed.distributed import DistributedReplayBuffer
from sb3_compressed.distributed.sample_pipeline import SamplePipeline

#: Transitions of other writers than the learner begin here.
REMOTE = 700_000


def new_buffer(kind: str, n_rows: int, n_envs: int = 1, **options: Any) -> DistributedReplayBuffer:
    defaults = {"device": "cpu", "segment_length": 10, "timeout": 60.0}
    return DistributedReplayBuffer(n_rows * n_envs, SPACES[kind], NUMBERS, n_envs=n_envs, **{**defaults, **options})


def add_rows(buffer: Any, kind: str, numbers: range) -> None:
    """Add transitions of all environments; the actions of a row are consecutive."""
    for number in numbers:
        transition(kind, number, buffer.n_envs, action=number * buffer.n_envs).add_to(buffer)


def actions_of(batch: Any) -> list[int]:
    """Return the numbers of the transitions in a batch."""
    return [*map(int, batch.actions.reshape(-1))]


def assert_true(
    batch: Any, kind: str, n_envs: int = 1, convert: Callable[[Any], Any] = lambda value: value
) -> list[int]:
    """Assert that a batch consists of what was added; return the numbers of its transitions."""
    actions = actions_of(batch)
    assert batch.rewards.reshape(-1).tolist() == actions
    for row, action in enumerate(actions):
        number, env = (action, 0) if action >= REMOTE else divmod(action, n_envs)
        for found, each in ((batch.observations, number), (batch.next_observations, number + 1)):
            expected = observation(kind, each, env)
            for key, value in expected.items() if isinstance(expected, dict) else [("", expected)]:
                tensor = (found[key] if key else found)[row]
                np.testing.assert_array_equal(tensor.numpy().reshape(value.shape), convert(value))
    return actions


def pipeline_of(buffer: DistributedReplayBuffer, prefetch: int, timeout: float = 60.0) -> SamplePipeline:
    """Return another pipeline for the shards of a buffer."""
    return SamplePipeline(buffer._group, prefetch, timeout, np.random.default_rng(0), buffer.flush, lambda shard: None)


def refreshed(buffer: DistributedReplayBuffer) -> None:
    """Let the buffer know the present state of all shards, and discard what was sampled before."""
    buffer.flush()
    buffer._group.refresh_all()
    buffer._pipeline.discard()


def pid_of(buffer: DistributedReplayBuffer, shard: int = 0) -> int:
    """Return the process of a shard."""
    pid: int = ray.get(buffer._group.shards[shard].actor.ping.remote())
    return pid


def stored(buffer: DistributedReplayBuffer) -> dict[str, int]:
    """Return how many transitions each ring contains."""
    return {name: size for rings in buffer._group.call("rings") for name, (_, size) in rings.items()}


def write(buffer: DistributedReplayBuffer, kind: str, writers: dict[str, Any], numbers: range, repeat: int = 1) -> None:
    """Add transitions with writers in this process, a part at a time; ``repeat`` of each with the first one."""
    for first in range(numbers.start, numbers.stop, 10):
        for index, writer in enumerate(writers.values()):
            n = 10 * (repeat if index == 0 else 1)
            begin = REMOTE + 50_000 * index + first * (n // 10)
            for number in range(begin, begin + n):
                transition(kind, number).add_to(writer)
            writer.flush()
            buffer.record_status(writer.name, writer.status)

"""Batches are the same with any number of threads, from several callers at once, after a fork, and on any device."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import Stream
from gymnasium import spaces
from programs import run
from stable_baselines3.common.buffers import ReplayBuffer
from support import assert_same_batch, same_draws

import sb3_compressed.buffers
from sb3_compressed import CompressedReplayBuffer, CompressedRolloutBuffer, contrib


def pair(stream: Stream, **options: Any) -> tuple[CompressedReplayBuffer, ReplayBuffer]:
    observation_space, action_space, n_envs, transitions = stream
    arguments: Any = (200 * n_envs, observation_space, action_space, "cpu", n_envs)
    buffers = CompressedReplayBuffer(*arguments, **options), ReplayBuffer(*arguments)
    for transition in transitions:
        for buffer in buffers:
            transition.add_to(buffer)
    return buffers


@pytest.mark.parametrize("num_threads", [1, 2, 3, 16, None])
@pytest.mark.parametrize("method", ["auto", "zstd3", "none"])
def test_any_number_of_threads_gives_the_same_batches(stream: Stream, method: str, num_threads: int | None) -> None:
    ours, theirs = pair(stream, num_threads=num_threads, compression_method=method)
    for seed, batch_size in enumerate((1, 32, 256, 1000)):
        samplers = [partial(buffer.sample, batch_size) for buffer in (ours, theirs)]
        assert_same_batch(*same_draws(*samplers, seed=seed))


@pytest.mark.parametrize("name", [name for name in sb3_compressed.buffers.__all__ if name.startswith("Compressed")])
def test_every_buffer_accepts_num_threads(name: str) -> None:
    buffer_class = getattr(sb3_compressed, name)
    assert "num_threads" in buffer_class.__signature__.parameters
    with pytest.raises(ValueError, match="num_threads must be None or a positive int"):
        buffer_class(8, spaces.Box(0, 255, (3, 36, 36), np.uint8), spaces.Discrete(2), num_threads=0)


def test_every_buffer_of_contrib_accepts_num_threads() -> None:
    for name in contrib.__all__:
        if name.endswith("Buffer"):
            assert "num_threads" in getattr(contrib, name).__signature__.parameters


def test_several_python_threads_sample_at_once(stream: Stream) -> None:
    ours, theirs = pair(stream, num_threads=2)
    inds = np.random.default_rng(0).integers(0, 200, (4, 300))
    expected = [theirs.observations[rows, 0] for rows in inds]
    wrong: list[int] = []

    def read(k: int) -> None:
        for _ in range(20):
            if not np.array_equal(ours.observations[inds[k], 0], expected[k]):
                wrong.append(k)
            batch = ours.sample(150)
            kept = batch.observations.clone()
            ours.sample(150)
            if not th.equal(kept, batch.observations):
                wrong.append(k)

    readers = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert not wrong


def test_batches_in_use_are_never_overwritten(stream: Stream) -> None:
    ours, _ = pair(stream)
    kept = [ours.sample(64) for _ in range(6)]
    copies = [batch.observations.clone() for batch in kept]
    parts = [ours.sample(64).next_observations[3:5] for _ in range(4)]
    part_copies = [part.clone() for part in parts]
    for _ in range(20):
        ours.sample(64)
    assert all(th.equal(batch.observations, copy) for batch, copy in zip(kept, copies, strict=True))
    assert all(th.equal(part, copy) for part, copy in zip(parts, part_copies, strict=True))


def test_buffer_works_in_a_forked_child() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    code = """
import os
import numpy as np
import torch as th
from gymnasium import spaces
from sb3_compressed import CompressedReplayBuffer
space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
buffer = CompressedReplayBuffer(600, space, spaces.Discrete(2), "cpu", num_threads=2, compression_method="delta")
stack = np.zeros((1, 4, 84, 84), np.uint8)
for step in range(600):
    before, stack = stack, np.roll(stack, -1, axis=1)
    stack[0, 3] = step % 251
    buffer.add(before, stack, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    if step % 100 == 99:
        buffer.observations.copy()  # which waits for trainings
assert len(buffer.observations.codec.references)
def mean():  # by NumPy: the threads that torch computes with do not survive a fork
    np.random.seed(0)
    return buffer.sample(512).observations.numpy().mean()
expected = mean()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0 if mean() == expected else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
assert mean() == expected
"""
    run(code, PYTHONWARNINGS="ignore::DeprecationWarning")


def test_rollouts_are_the_same_with_threads(stream: Stream) -> None:
    observation_space, action_space, n_envs, transitions = stream
    made = []
    for num_threads in (1, 4):
        buffer = CompressedRolloutBuffer(
            128, observation_space, action_space, "cpu", n_envs=n_envs, num_threads=num_threads
        )
        rng = np.random.default_rng(0)
        for transition in transitions[:128]:
            transition.add_to_rollout(buffer, np.zeros(n_envs), rng)
        buffer.compute_returns_and_advantage(th.zeros(n_envs), np.zeros(n_envs))
        np.random.seed(0)  # noqa: NPY002
        made.append(list(buffer.get(256)))
    for ours, theirs in zip(*made, strict=True):
        assert_same_batch(ours, theirs)


def test_a_cuda_device_gets_the_same_batches(stream: Stream) -> None:
    if not th.cuda.is_available():
        pytest.skip("there is no CUDA device")
    observation_space, action_space, n_envs, transitions = stream
    arguments: Any = (200 * n_envs, observation_space, action_space, "cuda", n_envs)
    ours, theirs = CompressedReplayBuffer(*arguments), ReplayBuffer(*arguments)
    for transition in transitions:
        transition.add_to(ours)
        transition.add_to(theirs)
    for seed in range(20):  # memory that a copy still reads from must not be written to
        batches = same_draws(lambda: ours.sample(256), lambda: theirs.sample(256), seed=seed)
        assert_same_batch(*batches)

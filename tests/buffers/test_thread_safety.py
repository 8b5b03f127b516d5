"""While one thread adds transitions, others sample and save: each transition that they read is one that was added."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import FACTOR
from gymnasium import spaces
from numpy.typing import NDArray
from support import run_in_fork

from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer, MixedReplayBuffer, load_checkpoint
from sb3_compressed.samplers import PrioritizedSampler

IMAGE, VECTOR = spaces.Box(0, 255, (2, 36, 36), np.uint8), spaces.Box(0, 1 << 20, (3,), np.float32)
BUTTONS = spaces.Discrete(7)
N_ROWS = 6
N_BATCHES = 400 * int(FACTOR) if FACTOR else 100
BACKGROUND = np.random.default_rng(0).integers(0, 256, IMAGE.shape, np.uint8)


@pytest.fixture(autouse=True)
def _frequent_switches() -> Iterator[None]:
    """Switch between threads so often that each pair of lines is separated soon."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def image(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the observations of some steps, ``(n, 2, 36, 36)``, whose frames contain their numbers."""
    stacks = np.repeat(BACKGROUND[np.newaxis], len(numbers), axis=0)
    frames = numbers[:, np.newaxis].astype(np.int64) + np.arange(2)
    stacks[:, :, 0, 0], stacks[:, :, 35, 35] = frames % 256, frames // 256 % 256
    return stacks


def vector(numbers: NDArray[Any]) -> NDArray[np.float32]:
    return np.repeat(numbers[:, np.newaxis], 3, axis=1).astype(np.float32)


def observation(space: spaces.Space[Any], numbers: NDArray[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {"image": image(numbers), "vector": vector(numbers)}
    return image(numbers) if space is IMAGE else vector(numbers)


def add(buffer: Any, step: int) -> None:
    numbers = step + 1000 * np.arange(buffer.n_envs)
    obs, next_obs = (observation(buffer.observation_space, each) for each in (numbers, numbers + 1))
    actions, rewards, dones = (numbers % 7).reshape(-1, 1), numbers.astype(np.float32), numbers % 5 == 0
    infos = [{"TimeLimit.truncated": bool(number % 10 == 0)} for number in numbers]
    buffer.add(obs, next_obs, actions, rewards, dones, infos)


def assert_consistent(space: spaces.Space[Any], batch: Any, n_per_batch: int) -> None:
    """Assert that all parts of each transition have the same number."""
    numbers = np.asarray(batch.rewards)[:, 0].astype(np.int64)
    assert len(numbers) == n_per_batch
    for found, expected in (
        (batch.observations, observation(space, numbers)),
        (batch.next_observations, observation(space, numbers + 1)),
        (batch.actions, (numbers % 7).reshape(-1, 1)),
        (batch.dones, ((numbers % 5 == 0) & (numbers % 10 != 0)).reshape(-1, 1)),
    ):
        parts = expected if isinstance(expected, dict) else {"": expected}
        for key, part in parts.items():
            np.testing.assert_array_equal(np.asarray(found[key] if key else found), part)


def run_beside_adds(buffer: Any, *others: Any, n_joint: int = 0) -> None:
    """Run functions in threads while another thread adds steps, some of them in joint commits if requested."""
    stop = threading.Event()

    def keep_adding() -> None:
        for first in cycle(range(N_ROWS, 60_000, n_joint or 1)):
            if stop.is_set():
                break
            with buffer.joint_commit(n_joint) if n_joint else nullcontext():
                for step in range(first, first + (n_joint or 1)):
                    add(buffer, step)

    for step in range(N_ROWS + 2):
        add(buffer, step)
    with ThreadPoolExecutor(len(others) + 1) as pool:
        adding = pool.submit(keep_adding)
        running = [pool.submit(other) for other in others]
        try:
            for each in running:
                each.result()
        finally:
            stop.set()
        adding.result()


def assert_same_content(loaded: Any, buffer: Any) -> None:
    for name in ("rewards", "actions", "dones", "timeouts"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(buffer, name))


SPACES: dict[str, spaces.Space[Any]] = {
    "image": IMAGE,
    "vector": VECTOR,
    "dict": spaces.Dict(image=IMAGE, vector=VECTOR),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "optimized": {"optimize_memory_usage": True},
    "prioritized": {"sampler": "prioritized"},
    "recent": {"sampler": "recent"},
    "without-replacement": {"sampler": "without-replacement"},
    "delta": {"compression_method": "delta"},
}


def new(space: str, **options: Any) -> Any:
    cls = CompressedDictReplayBuffer if space == "dict" else CompressedReplayBuffer
    return cls(2 * N_ROWS, SPACES[space], BUTTONS, "cpu", 2, **{"compression_method": "zstd1", **options})


@pytest.mark.parametrize(
    ("space", "options"), [*(("vector", options) for options in OPTIONS), ("image", "delta"), ("dict", "plain")]
)
def test_samples_beside_adds_are_transitions_that_were_added(space: str, options: str) -> None:
    buffer = new(space, **OPTIONS[options])

    def sample() -> None:
        for _ in range(N_BATCHES if space == "vector" else N_BATCHES // 5):
            batch = buffer.sample(16)
            assert_consistent(SPACES[space], batch, 16)
            if options == "prioritized":
                buffer.update_priorities(batch.indices, np.ones(16))

    run_beside_adds(buffer, sample, sample)


def test_sequences_beside_adds_are_consecutive() -> None:
    buffer = new("vector")

    def sample() -> None:
        for _ in range(N_BATCHES // 5):
            batch = buffer.sample_sequences(8, 2, pad="end")
            mask = np.asarray(batch.mask).reshape(-1)
            numbers, rewards = np.asarray(batch.observations)[..., 0].reshape(-1), np.asarray(batch.rewards).reshape(-1)
            np.testing.assert_array_equal(numbers * mask, rewards * mask)

    run_beside_adds(buffer, sample)


def test_epochs_beside_adds_contain_transitions_once() -> None:
    buffer = new("vector", sampler="without-replacement")

    def iterate() -> None:
        for _ in range(N_BATCHES // 10):
            for batch in buffer.iterate(5):
                assert_consistent(VECTOR, batch, len(batch.indices))

    run_beside_adds(buffer, iterate)


@pytest.mark.parametrize(("space", "options"), [("image", "optimized"), ("vector", "prioritized"), ("dict", "plain")])
@pytest.mark.parametrize("is_stored", [False, True])
def test_saves_beside_adds_and_samples_are_complete(space: str, options: str, is_stored: bool, tmp_path: Path) -> None:
    storage = {"storage": tmp_path / "folder"} if is_stored else {}
    buffer = new(space, **OPTIONS[options], **storage)

    def sample() -> None:
        for _ in range(N_BATCHES // 10):
            assert_consistent(SPACES[space], buffer.sample(16), 16)

    def save() -> None:
        for _ in range(5):
            buffer.save_checkpoint(tmp_path / "folder")
            if not is_stored:  # nothing else writes to the folder until the next save
                loaded = load_checkpoint(tmp_path / "folder", device="cpu")
                assert_consistent(SPACES[space], loaded.sample(64), 64)

    run_beside_adds(buffer, sample, save)
    buffer.close()
    buffer.save_checkpoint(tmp_path / "end", overwrite=True)
    for folder in ("end", "folder") if is_stored else ("end",):
        loaded = load_checkpoint(tmp_path / folder, device="cpu")
        assert_same_content(loaded, buffer)
        assert_consistent(SPACES[space], loaded.sample(64), 64)


def test_joint_commits_beside_flushes_and_samples_are_complete(tmp_path: Path) -> None:
    cls = CompressedReplayBuffer
    buffer = cls(400, VECTOR, BUTTONS, "cpu", 2, storage=tmp_path, sampler="prioritized", compression_method="zstd1")

    def flush() -> None:
        for _ in range(20):
            buffer.flush()
            assert_consistent(VECTOR, load_checkpoint(tmp_path, device="cpu").sample(64), 64)
            assert_consistent(VECTOR, buffer.sample(16), 16)

    run_beside_adds(buffer, flush, n_joint=20)
    buffer.close()
    assert_same_content(load_checkpoint(tmp_path, device="cpu"), buffer)


def test_mixed_buffers_beside_adds() -> None:
    demonstrations = new("vector")
    for step in range(N_ROWS):
        add(demonstrations, step)
    online = new("vector", sampler="prioritized")
    mixed = MixedReplayBuffer.from_buffers([online, demonstrations], weights=[1, 1])

    def sample() -> None:
        for _ in range(N_BATCHES // 5):
            assert_consistent(VECTOR, mixed.sample(16), 16)

    run_beside_adds(online, sample)


class OneThreadSampler(PrioritizedSampler):
    """Raises if two threads use it at once."""

    is_used = False

    def add(self, indices: NDArray[np.int64], buffer: Any = None) -> None:
        assert not self.is_used
        self.is_used = True
        time.sleep(0)  # so that another thread runs
        super().add(indices, buffer)
        self.is_used = False


def test_priorities_of_mixed_buffers_are_updated_beside_samples() -> None:
    buffers = [new("vector", sampler=OneThreadSampler()) for _ in range(2)]
    for step in range(N_ROWS):
        add(buffers[1], step)
    mixed = MixedReplayBuffer.from_buffers(buffers, weights=[1, 1])

    def sample_and_update() -> None:
        for _ in range(N_BATCHES // 5):
            mixed.update_priorities(mixed.sample(16).indices, np.ones(16))

    run_beside_adds(buffers[0], sample_and_update, sample_and_update)


def test_a_subclass_that_adds_and_samples_within_add_does_not_wait_for_itself() -> None:
    class Recursive(CompressedReplayBuffer):
        def add(self, *args: Any) -> None:
            super().add(*args)
            assert self.sample(1) is not None

        def _get_samples(self, batch_inds: NDArray[Any], env: Any = None) -> Any:
            if self.pos == 3:
                add(self, 3)  # a callback of the user
            return super()._get_samples(batch_inds, env)

    buffer = Recursive(20, VECTOR, BUTTONS, "cpu")
    for step in range(3):
        add(buffer, step)
    assert buffer.size() == 4
    assert_consistent(VECTOR, buffer.sample(16), 16)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("space", ["image", "vector"])
def test_a_fork_while_other_threads_add_and_sample_can_use_the_buffer(space: str) -> None:
    buffer = new(space, num_threads=2)

    def add_and_sample() -> None:
        add(buffer, 3)
        assert_consistent(SPACES[space], buffer.sample(64), 64)

    def fork() -> None:
        for _ in range(8):
            run_in_fork(add_and_sample)

    def sample() -> None:
        for _ in range(N_BATCHES // 10):
            assert_consistent(SPACES[space], buffer.sample(64), 64)

    run_beside_adds(buffer, fork, sample)

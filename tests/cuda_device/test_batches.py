"""Batches on a CUDA device equal those of SB3's buffers there, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS, SB3_OPTIMIZED
from numbered import COUNTER, IMAGES, add_steps
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import ImageEnv, add_all, assert_same_batch, filled, new_buffer, recorded, same_draws

from sb3_compressed import CompressedReplayBuffer, MixedReplayBuffer

BATCH_SIZES = (1, 32, 256, 1024)
STREAMS = {"replay": "atari", "n-step": "atari", "dict": "console", "her": "bits"}
ROLLOUT_STREAMS = {"plain": "atari", "dict": "console"}


def filled_pair(kind: str, stream: str, n_steps: int = 300, n_rows: int = 200, **options: Any) -> tuple[Any, Any]:
    """Return a compressed buffer and SB3's on the device, with the same transitions; ``options`` are of the first."""
    ours, theirs = REPLAY_PAIRS[kind]
    return (
        filled(stream, n_steps, n_rows, ours, device="cuda", **options),
        filled(stream, n_steps, n_rows, theirs, device="cuda"),
    )


def assert_same_samples(
    ours: Any, theirs: Any, env: Any = None, n_batches: int = 4, batch_sizes: Sequence[int] = BATCH_SIZES
) -> None:
    """Assert that batches of all sizes are the same, several of each."""
    for seed, batch_size in enumerate(batch_sizes):
        batches = [partial(draws, buffer, n_batches, batch_size, env) for buffer in (ours, theirs)]
        for batch, expected in zip(*same_draws(*batches, seed=seed), strict=True):
            assert_same_batch(batch, expected)


def draws(buffer: Any, n_batches: int, batch_size: int, env: Any = None) -> list[Any]:
    return [buffer.sample(batch_size, env=env) for _ in range(n_batches)]


@pytest.mark.parametrize(
    ("method", "storage"),
    [("auto", "memory"), ("zstd3", "memory"), ("none", "memory"), ("auto", "device"), ("none", "device")],
)
@pytest.mark.parametrize("kind", REPLAY_PAIRS)
def test_batches_are_those_of_sb3(kind: str, method: str, storage: str) -> None:
    # SB3's hindsight replay computes no rewards for a batch of one transition of its own goal.
    batch_sizes = BATCH_SIZES[1:] if kind == "her" else BATCH_SIZES
    pair = filled_pair(kind, STREAMS[kind], compression_method=method, storage=storage)
    assert_same_samples(*pair, batch_sizes=batch_sizes)


@pytest.mark.parametrize("storage", ["memory", "device"])
@pytest.mark.parametrize("stream", ["atari-single", "atari-channel-last", "pendulum", "multi-binary"])
def test_batches_of_other_observations_are_those_of_sb3(stream: str, storage: str) -> None:
    assert_same_samples(*filled_pair("replay", stream, storage=storage))


@pytest.mark.parametrize("num_threads", [1, 4])
def test_any_number_of_threads_gives_the_same_batches(num_threads: int) -> None:
    assert_same_samples(*filled_pair("replay", "atari", num_threads=num_threads))


def test_optimized_buffers_have_the_same_batches() -> None:
    ours = filled("atari", 300, 200, CompressedReplayBuffer, device="cuda", **SB3_OPTIMIZED)
    assert_same_samples(ours, filled("atari", 300, 200, ReplayBuffer, device="cuda", **SB3_OPTIMIZED))


@pytest.mark.parametrize("storage", ["memory", "device"])
def test_batches_are_normalized_as_by_sb3(storage: str) -> None:
    space, action_space, _, transitions = recorded("atari")
    env = VecNormalize(DummyVecEnv([lambda: ImageEnv(space, action_space)]))
    env.obs_rms.update(np.concatenate([transition.obs for transition in transitions]))
    ours, theirs = filled_pair("replay", "atari", storage=storage)
    assert_same_samples(ours, theirs, env)


def test_observations_are_converted_on_the_device() -> None:
    ours, theirs = filled_pair("replay", "atari", output_dtype="float", normalize_images=True)
    batch, expected = same_draws(lambda: ours.sample(64), lambda: theirs.sample(64), seed=0)
    assert batch.observations.device.type == "cuda"
    assert th.equal(batch.observations, expected.observations.float() / 255)
    assert th.equal(batch.next_observations, expected.next_observations.float() / 255)


@pytest.mark.parametrize("storage", ["memory", "device"])
@pytest.mark.parametrize("kind", ROLLOUT_STREAMS)
def test_rollouts_are_those_of_sb3(kind: str, storage: str) -> None:
    space, action_space, n_envs, transitions = recorded(ROLLOUT_STREAMS[kind])
    batches = []
    for cls, options in zip(ROLLOUT_PAIRS[kind], ({"storage": storage}, {}), strict=True):
        buffer = cls(64, space, action_space, "cuda", n_envs=n_envs, **options)
        rng = np.random.default_rng(0)
        start = np.ones(n_envs)
        for transition in transitions[:64]:
            transition.add_to_rollout(buffer, start, rng)
            start = transition.done
        buffer.compute_returns_and_advantage(th.zeros(n_envs), start)
        np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
        batches.append([copy.copy(batch) for _ in range(2) for batch in buffer.get(32)])
    for batch, expected in zip(*batches, strict=True):
        assert_same_batch(batch, expected)


@pytest.mark.parametrize("sampler", ["prioritized", "without-replacement"])
def test_batches_of_samplers_are_those_of_a_buffer_on_the_cpu(sampler: str) -> None:
    buffers = [
        filled("atari", 300, 200, CompressedReplayBuffer, device=device, sampler=sampler) for device in ("cuda", "cpu")
    ]
    results: list[list[Any]] = []
    for buffer in buffers:
        np.random.seed(1)  # noqa: NPY002  # what SB3 draws from
        batches = []
        for _ in range(20):
            batch = buffer.sample(64)
            batches.append(batch)
            if sampler == "prioritized":
                buffer.update_priorities(batch.indices, batch.rewards.reshape(-1).abs() + 0.1)
        results.append(batches)
    for batch, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(batch.indices, expected.indices)
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "weights"):
            found = getattr(batch, name)
            assert found.device.type == "cuda"
            assert th.equal(found.cpu(), getattr(expected, name)), name


def mixed_buffer(device: str) -> MixedReplayBuffer:
    parts = []
    for first in (0, 100_000):
        part = CompressedReplayBuffer(100, IMAGES, COUNTER, device)
        add_steps(part, range(first, first + 50))
        parts.append(part)
    return MixedReplayBuffer.from_buffers(parts, (0.5, 0.5))


def test_mixed_buffers_concatenate_on_the_device() -> None:
    mixed, on_cpu = (mixed_buffer(device) for device in ("cuda", "cpu"))
    batches = [partial(draws, buffer, 6, 32) for buffer in (mixed, on_cpu)]
    for batch, expected in zip(*same_draws(*batches, seed=0), strict=True):
        assert batch.observations.device.type == "cuda"
        assert th.equal(batch.observations.cpu(), expected.observations)
        assert th.equal(batch.next_observations.cpu(), expected.next_observations)
        assert th.equal(batch.actions.cpu(), expected.actions)


def test_sequences_are_those_of_a_buffer_on_the_cpu() -> None:
    on_device, on_cpu = (filled("atari", 300, 200, CompressedReplayBuffer, device=device) for device in ("cuda", "cpu"))
    for seed in range(3):
        ours, theirs = same_draws(
            lambda: on_device.sample_sequences(8, 16), lambda: on_cpu.sample_sequences(8, 16), seed=seed
        )
        assert ours.observations.device.type == "cuda"
        assert th.equal(ours.observations.cpu(), theirs.observations)
        assert th.equal(ours.rewards.cpu(), theirs.rewards)


@pytest.mark.parametrize("num_threads", [1, 4])
def test_memory_is_not_reused_before_copies_from_it_are_complete(num_threads: int) -> None:
    ours, theirs = filled_pair("replay", "atari", num_threads=num_threads)
    expected = draws_of_seed(theirs, 30)
    with th.cuda.stream(new_stream(200_000_000)):  # about 0.1 s: all copies wait behind it
        found = draws_of_seed(ours, 30)
        for batch, other in zip(found, expected, strict=True):
            assert_same_batch(batch, other)


def test_a_batch_may_be_used_on_another_stream() -> None:
    options: dict[str, Any] = {"sampler": "without-replacement"}
    ours, on_cpu = (
        filled("atari", 300, 200, CompressedReplayBuffer, device=device, **options) for device in ("cuda", "cpu")
    )
    expected = [batch.observations for batch in draws_of_seed(on_cpu, 20)]
    sums = []
    np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
    for number in range(20):
        with th.cuda.stream(new_stream(2_000_000 * (number % 3))):
            sums.append(ours.sample(256).observations.sum())  # its memory is free at once
    th.cuda.synchronize()  # the sums are on other streams than the one that reads them
    assert [int(each) for each in sums] == [int(each.sum()) for each in expected]


def new_stream(n_cycles: int) -> th.cuda.Stream:
    """Return a stream that is busy for so many cycles of the device."""
    cuda: Any = th.cuda  # whose functions have no types
    stream: th.cuda.Stream = cuda.Stream()
    with th.cuda.stream(stream):
        cuda._sleep(n_cycles)
    return stream


def draws_of_seed(buffer: Any, n_batches: int) -> list[Any]:
    np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
    return draws(buffer, n_batches, 256)


def test_too_little_memory_on_the_device_is_an_error_that_loses_nothing() -> None:
    ours, theirs = filled_pair("replay", "atari")
    th.cuda.empty_cache()
    total = th.cuda.get_device_properties(0).total_memory
    th.cuda.set_per_process_memory_fraction((th.cuda.memory_reserved() + 2e8) / total)
    try:
        with pytest.raises(th.cuda.OutOfMemoryError):
            ours.sample(10_000)
    finally:
        th.cuda.set_per_process_memory_fraction(1.0)
    assert_same_samples(ours, theirs)
    transitions = recorded("atari")[-1][300:]
    add_all(transitions, ours, theirs)
    assert_same_samples(ours, theirs)


def test_memory_does_not_grow() -> None:
    buffer = filled("atari", 300, 200, CompressedReplayBuffer, device="cuda")

    def used() -> tuple[int, int]:
        return th.cuda.memory_reserved(), psutil.Process().memory_info().rss

    for number in range(10_000):
        if number == 1000:
            on_device, on_host = used()
        buffer.sample(64).rewards.sum().item()  # waits for the device, as trainings do when they log a loss
    now = used()
    assert now[0] <= on_device
    assert now[1] <= on_host + 30_000_000


@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_buffer_is_saved_with_one_device_and_loaded_with_another(devices: tuple[str, str], tmp_path: Path) -> None:
    before, after = devices
    saved = filled("atari", 300, 200, CompressedReplayBuffer, device=before)
    saved.save_checkpoint(tmp_path / "checkpoint")
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path / "checkpoint", device=after)
    theirs = filled("atari", 300, 200, ReplayBuffer, device=after)
    assert_same_samples(loaded, theirs)


def test_a_folder_is_resumed_on_the_device(tmp_path: Path) -> None:
    first = filled("atari", 300, 200, CompressedReplayBuffer, storage=tmp_path / "folder")
    first.close()
    resumed = new_buffer(
        CompressedReplayBuffer, "atari", 200, device="cuda", storage=tmp_path / "folder", storage_mode="resume"
    )
    assert_same_samples(resumed, filled("atari", 300, 200, ReplayBuffer, device="cuda"))
    resumed.close()

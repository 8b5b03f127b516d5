"""``storage="device"`` on a CUDA device: streams, modes and errors that only a device has."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from numpy.typing import NDArray
from support import add_all, assert_same_batch, filled, new_buffer, recorded, same_draws

from sb3_compressed import CompressedReplayBuffer, CorruptPayload, buffer_statistics, load_checkpoint, save_checkpoint
from sb3_compressed.arrays.memory_log import MemoryLog


def test_buffers_on_several_streams_and_in_inference_mode_return_the_same() -> None:
    buffer, expected = (filled("atari", 200, 400, device="cuda", storage=each) for each in ("device", "memory"))
    streams: Any = [th.cuda.current_stream(), th.cuda.Stream(), th.cuda.Stream()]  # type: ignore[no-untyped-call]
    for number, stream in enumerate(streams * 3):
        with th.cuda.stream(stream), th.inference_mode(number % 2 == 1):
            assert_same_batch(*same_draws(lambda: buffer.sample(64), lambda: expected.sample(64), seed=number))
        add_all(recorded("atari")[-1][number : number + 20], buffer, expected)


def test_a_graph_cannot_capture_a_batch() -> None:
    buffer = filled("atari", 100, 200, device="cuda", storage="device")
    buffer.sample(8)
    with pytest.raises(RuntimeError, match="CUDA graph"), th.cuda.graph(th.cuda.CUDAGraph()):
        buffer.sample(8)


#: Action, reward, done and infos of a step.
ARGUMENTS: Any = np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}]


def add_rest(buffer: CompressedReplayBuffer, observations: NDArray[np.uint8]) -> None:
    for step in range(1, len(observations) - 1):
        buffer.add(observations[step], observations[step + 1], *ARGUMENTS)


def test_a_full_device_raises_and_leaves_the_buffer_as_it_was() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 1, 3, 512, 512), np.uint8)
    buffer = new_buffer(CompressedReplayBuffer, "atari", 10)
    space = type(buffer.observation_space)(0, 255, noise.shape[2:], np.uint8)
    buffer = CompressedReplayBuffer(2000, space, buffer.action_space, "cuda", storage="device")
    buffer.add(noise[0], noise[1], *ARGUMENTS)
    th.cuda.empty_cache()
    free, _ = th.cuda.mem_get_info()
    rest = th.empty(free - 40_000_000, dtype=th.uint8, device="cuda")
    with pytest.raises(MemoryError, match="decrease buffer_size"):
        add_rest(buffer, noise)
    size = buffer.size()
    assert 1 <= size < 38
    del rest
    th.cuda.empty_cache()
    np.testing.assert_array_equal(buffer.observations[:size], noise[:size])
    buffer.add(noise[size], noise[size + 1], *ARGUMENTS)
    np.testing.assert_array_equal(buffer.next_observations[size], noise[size + 1])


def test_copies_pickles_and_checkpoints(tmp_path: Path) -> None:
    buffer = filled("console", 120, 200, device="cuda", storage="device")
    for twin in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert all(
            type(array.stream.log) is MemoryLog for array in twin.observations.values() if hasattr(array, "stream")
        )
        assert_same_batch(*same_draws(partial(twin.sample, 32), partial(buffer.sample, 32), seed=1))
    save_checkpoint(buffer, tmp_path)
    loaded = load_checkpoint(tmp_path, device="cuda", storage="device", buffer_size=400)
    assert buffer_statistics(loaded).device_memory_nbytes > 0
    assert_same_batch(*same_draws(partial(loaded.sample, 32), partial(buffer.sample, 32), seed=2))


def test_a_damaged_payload_is_reported_by_a_later_batch() -> None:
    buffer = filled("atari", 100, 200, device="cuda", storage="device")
    buffer.sample(8)
    for segment in buffer.observations.stream.log.segments.values():
        segment.block.fill_(255)
    buffer.sample(8)
    th.cuda.synchronize()
    with pytest.raises(CorruptPayload, match="earlier batch"):
        buffer.sample(8)

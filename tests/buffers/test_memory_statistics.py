"""Statistics equal the exact counts of buffers, for every kind of buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffer_pairs import SB3_OPTIMIZED
from conftest import Stream
from stable_baselines3.common.buffers import ReplayBuffer
from support import filled

from sb3_compressed import (
    CompressedRolloutBuffer,
    buffer_statistics,
)
from sb3_compressed.storage.commit_writer import CommitWriter

SIZE = 300  # rows, fewer than are recorded


def replay(stream: Stream, n_steps: int | None = None, cls: Any = None, **options: Any) -> Any:
    return filled(stream, n_steps, SIZE, cls, **options)


def others_nbytes(buffer: Any) -> int:
    return sum(getattr(buffer, name).nbytes for name in ("actions", "rewards", "dones", "timeouts"))


@pytest.mark.parametrize("n_steps", [100, 340])
@pytest.mark.parametrize("options", [{}, SB3_OPTIMIZED])
def test_statistics_of_images_in_memory_are_correct(stream: Stream, n_steps: int, options: dict[str, Any]) -> None:
    buffer = replay(stream, n_steps, **options)
    rows = min(n_steps, SIZE)
    found = buffer_statistics(buffer)
    assert found.transitions == rows * 4
    assert found.observations_nbytes == buffer.observations_nbytes
    assert found.memory_nbytes == round(buffer.observations_nbytes + others_nbytes(buffer) * rows / SIZE)
    codec = buffer.observations.codec  # may have been trained after the last payload
    is_used = any(codec is used for used in buffer.observations.stream.log.trained_codecs())
    assert found.loaded_memory_nbytes == found.memory_nbytes + (0 if is_used else codec.nbytes)
    assert found.raw_observations_nbytes == buffer.raw_observations_nbytes * rows // SIZE
    assert found.raw_memory_nbytes == round((buffer.raw_observations_nbytes + others_nbytes(buffer)) * rows / SIZE)
    assert found.compression_ratio == found.raw_observations_nbytes / buffer.observations_nbytes > 5
    assert 0 < found.payload_nbytes < found.observations_nbytes
    assert found.payload_nbytes_per_transition == found.payload_nbytes / found.transitions
    # Of the four frames of an observation and the four of the next one, one is new.
    assert found.shared_frames == pytest.approx(3 / 4 if options else 7 / 8, abs=0.05)


def test_statistics_of_images_on_disk_are_correct(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CommitWriter, "MIN_SEGMENT_NBYTES", CommitWriter.SEGMENT_NBYTES
    )  # each segment has payloads of its own
    in_memory = buffer_statistics(replay(stream, num_threads=1))
    buffer = replay(stream, storage=tmp_path / "buffer", num_threads=1)
    found = buffer_statistics(buffer)
    assert found.payload_nbytes == in_memory.payload_nbytes == found.observations_nbytes
    assert (found.frames, found.stored_frames) == (in_memory.frames, in_memory.stored_frames)
    # Not the same: in memory, rows are continued in another segment than they were written in.
    assert found.loaded_memory_nbytes == pytest.approx(in_memory.loaded_memory_nbytes, rel=0.1)
    assert found.raw_memory_nbytes == in_memory.raw_memory_nbytes
    references = 2 * 8 * found.transitions
    assert found.memory_nbytes == found.full_memory_nbytes == references + others_nbytes(buffer)
    buffer.close()


def test_memory_of_the_full_buffer_is_estimated(stream: Stream) -> None:
    full = buffer_statistics(replay(stream, SIZE, num_threads=1))
    assert full.full_memory_nbytes == pytest.approx(full.memory_nbytes, rel=0.01)
    half = buffer_statistics(replay(stream, SIZE // 2, num_threads=1))
    assert half.full_memory_nbytes == pytest.approx(full.memory_nbytes, rel=0.2)
    assert half.memory_nbytes < 0.7 * full.memory_nbytes
    assert buffer_statistics(replay(stream, 0)).full_memory_nbytes == 0


@pytest.mark.parametrize("stream", ["discrete", "cart"], indirect=True)
def test_plain_arrays_share_nothing(stream: Stream) -> None:
    found = buffer_statistics(replay(stream))
    assert found.shared_frames == 0
    assert found.compression_ratio == 1
    assert found.loaded_memory_nbytes == found.raw_memory_nbytes == found.memory_nbytes > 0


@pytest.mark.parametrize("stream", ["console"], indirect=True)
def test_statistics_of_dicts_are_sums_over_keys(stream: Stream) -> None:
    buffer = replay(stream)
    found = buffer_statistics(buffer)
    assert found.transitions == SIZE * 2
    assert found.observations_nbytes == pytest.approx(buffer.observations_nbytes, rel=1e-6)
    assert found.frames == 3 * 2 * found.transitions
    assert 0 < found.shared_frames < 0.6


def test_statistics_of_rollouts_are_correct(stream: Stream) -> None:
    observation_space, action_space, n_envs, transitions = stream
    buffer = CompressedRolloutBuffer(64, observation_space, action_space, "cpu", n_envs=n_envs)
    rng = np.random.default_rng(0)
    for transition in transitions[:64]:
        transition.add_to_rollout(buffer, np.zeros(n_envs), rng)
    found = buffer_statistics(buffer)
    assert found.transitions == 64 * 4
    assert found.observations_nbytes == buffer.observations_nbytes
    assert found.memory_nbytes > found.observations_nbytes
    assert found.shared_frames == pytest.approx(3 / 4, abs=0.05)


def test_empty_buffers_have_statistics(stream: Stream) -> None:
    found = buffer_statistics(replay(stream, 0))
    assert (found.transitions, found.frames, found.payload_nbytes) == (0, 0, 0)
    assert (found.compression_ratio, found.shared_frames, found.payload_nbytes_per_transition) == (1, 0, 0)


def test_statistics_of_sb3s_buffers_raise(stream: Stream) -> None:
    with pytest.raises(TypeError, match="ReplayBuffer"):
        buffer_statistics(replay(stream, 0, cls=ReplayBuffer))

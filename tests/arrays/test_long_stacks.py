"""Stacks of more than 16 frames: each frame is stored once, wherever observations are written, copied and kept."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    buffer_statistics,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.buffers.resize import resize

K, N_ROWS, N_STEPS = 64, 150, 320


@pytest.fixture(scope="module")
def film() -> NDArray[np.uint8]:
    """Frames of a game ``(n, 84, 84)``: something moves before a still picture, and the score changes at random."""
    rng = np.random.default_rng(0)
    frames = np.repeat(np.kron(rng.integers(0, 200, (1, 21, 21), np.uint8), np.ones((4, 4), np.uint8)), N_STEPS + K, 0)
    for index, frame in enumerate(frames):
        x, y = index * 5 % 75, index * 3 % 75
        frame[y : y + 8, x : x + 8] = index % 255
        frame[0] = rng.integers(0, 255, 84)
    return frames


def add_steps(buffer: Any, film: NDArray[np.uint8], steps: range, k: int = K, key: str | None = None) -> None:
    for step in steps:
        obs, next_obs = film[step : step + k][np.newaxis], film[step + 1 : step + 1 + k][np.newaxis]
        if key is None:
            buffer.add(obs, next_obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
        else:
            buffer.add({key: obs}, {key: next_obs}, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])


def assert_newest(buffer: Any, film: NDArray[np.uint8], n_steps: int, k: int = K) -> None:
    """Assert that the newest rows are those of the last steps, and that each of their frames is stored about once."""
    for step in range(n_steps - buffer.size(), n_steps, 7):
        row = step % buffer.buffer_size
        assert np.array_equal(buffer.observations[row, 0], film[step : step + k])
        assert np.array_equal(buffer.next_observations[row, 0], film[step + 1 : step + 1 + k])
    # The first ones are whole observations, and a segment begins with a copy of the last one.
    assert buffer_statistics(buffer).stored_frames <= buffer.size() + 4 * k + 8


def space(k: int = K) -> spaces.Box:
    return spaces.Box(0, 255, (k, 84, 84), np.uint8)


@pytest.mark.parametrize("method", ["auto", "zstd3"])
@pytest.mark.parametrize("k", [17, 64])
def test_each_frame_is_stored_once(film: NDArray[np.uint8], method: str, k: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "compression_method": method}
    buffer = CompressedReplayBuffer(N_ROWS, space(k), spaces.Discrete(3), **options)
    add_steps(buffer, film, range(N_STEPS), k)
    assert buffer.observations.n_frames == k
    assert_newest(buffer, film, N_STEPS, k)
    save_checkpoint(buffer, tmp_path / "saved")
    loaded = load_checkpoint(tmp_path / "saved", device="cpu")
    for copy in (loaded, pickle.loads(pickle.dumps(buffer))):
        assert_newest(copy, film, N_STEPS, k)
    resize(buffer, N_ROWS + 20)
    assert buffer.size() == N_ROWS
    assert buffer_statistics(buffer).stored_frames <= N_ROWS + 4 * k


def test_in_a_folder(film: NDArray[np.uint8], tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "storage": tmp_path / "folder"}
    buffer = CompressedReplayBuffer(N_ROWS, space(), spaces.Discrete(3), **options)
    add_steps(buffer, film, range(200))
    buffer.close()
    buffer = CompressedReplayBuffer(N_ROWS, space(), spaces.Discrete(3), **options, storage_mode="resume")
    add_steps(buffer, film, range(200, N_STEPS))
    assert_newest(buffer, film, N_STEPS)
    assert_newest(pickle.loads(pickle.dumps(buffer)), film, N_STEPS)
    buffer.close()


def test_in_a_dict(film: NDArray[np.uint8]) -> None:
    buffer = CompressedDictReplayBuffer(N_ROWS, spaces.Dict({"image": space()}), spaces.Discrete(3), "cpu")
    add_steps(buffer, film, range(200), key="image")
    assert buffer.observations["image"].n_frames == K
    assert buffer_statistics(buffer).stored_frames <= N_ROWS + 4 * K


def test_in_a_rollout(film: NDArray[np.uint8]) -> None:
    buffer = CompressedRolloutBuffer(100, space(), spaces.Discrete(3), "cpu")
    for rollout in range(2):
        buffer.reset()
        for step in range(100 * rollout, 100 * rollout + 100):
            obs = film[step : step + K][np.newaxis]
            buffer.add(obs, np.zeros(1), np.zeros(1), np.zeros(1), th.zeros(1), th.zeros(1))
        assert buffer.observations.n_frames == K
        assert buffer_statistics(buffer).stored_frames <= 100 + 4 * K
    assert np.array_equal(buffer.observations[99, 0], film[199 : 199 + K])


def test_assigned_observations(film: NDArray[np.uint8]) -> None:
    rows = np.stack([film[step : step + K] for step in range(N_ROWS + 1)])[:, np.newaxis]
    buffer = CompressedReplayBuffer(N_ROWS, space(), spaces.Discrete(3), "cpu")
    buffer.observations[:], buffer.next_observations[:] = rows[:-1], rows[1:]
    buffer.full = True
    assert_newest(buffer, film, N_ROWS)
    other = CompressedReplayBuffer(N_ROWS, space(), spaces.Discrete(3), "cpu")
    other.observations, other.next_observations = buffer.observations, buffer.next_observations
    other.full = True
    assert_newest(other, film, N_ROWS)


def test_shorter_stacks_are_reported_as_wrong(film: NDArray[np.uint8]) -> None:
    buffer = CompressedReplayBuffer(N_ROWS, space(32), spaces.Discrete(3), "cpu", frame_stack=4)
    with pytest.warns(UserWarning, match="32 frames"):
        add_steps(buffer, film, range(20), 32)

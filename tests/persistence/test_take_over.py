"""``take_over``: a buffer becomes another one, with its content, its folder, and the folders that it was saved to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sb3_compressed import CompressedReplayBuffer, StorageError
from sb3_compressed.storage.commit_writer import CommitWriter

SPACE, ACTIONS = spaces.Box(0, 255, (4, 12, 12), np.uint8), spaces.Discrete(4)


def filled(n_steps: int, seed: int = 0, **options: Any) -> CompressedReplayBuffer:
    buffer = CompressedReplayBuffer(32, SPACE, ACTIONS, "cpu", **options)
    rng = np.random.default_rng(seed)
    for _ in range(n_steps):
        obs = rng.integers(0, 255, (2, 1, 4, 12, 12), dtype=np.uint8)
        buffer.add(obs[0], obs[1], np.zeros((1, 1)), np.ones(1), np.zeros(1), [{}])
    return buffer


def add_zeros(buffer: CompressedReplayBuffer) -> None:
    obs = np.zeros((1, 4, 12, 12), np.uint8)
    buffer.add(obs, obs, np.zeros((1, 1)), np.ones(1), np.zeros(1), [{}])


def test_a_buffer_in_memory_replaces_one_in_a_folder(tmp_path: Path) -> None:
    buffer, other = filled(10, storage=tmp_path), filled(5, seed=3)
    expected = np.array(other.observations)
    buffer.take_over(other)
    assert (buffer.is_in_memory, buffer.folder, buffer.pos) == (True, None, 5)
    np.testing.assert_array_equal(np.array(buffer.observations), expected)
    add_zeros(buffer)
    del other
    assert CompressedReplayBuffer.from_checkpoint(tmp_path, device="cpu").pos == 10, "the folder is as it was"


def test_a_loaded_buffer_can_still_be_saved_to_its_folder(tmp_path: Path) -> None:
    filled(5).save_checkpoint(tmp_path)
    buffer = filled(0)
    buffer.take_over(CompressedReplayBuffer.from_checkpoint(tmp_path, device="cpu"))
    buffer.save_checkpoint(tmp_path)
    assert CompressedReplayBuffer.from_checkpoint(tmp_path, device="cpu").pos == 5


def test_both_buffers_folders_can_be_saved_to(tmp_path: Path) -> None:
    buffer, other = filled(5), filled(7, seed=1)
    buffer.save_checkpoint(tmp_path / "a")
    other.save_checkpoint(tmp_path / "b")
    buffer.take_over(other)
    for name in ("a", "b"):
        buffer.save_checkpoint(tmp_path / name)
        assert CompressedReplayBuffer.from_checkpoint(tmp_path / name, device="cpu").pos == 7


def test_assigned_arrays_survive_a_failed_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled(10, storage=tmp_path)
    buffer.rewards = np.full_like(buffer.rewards, 7)
    expected = buffer.rewards.copy()

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(CommitWriter, "commit", fail)
    with pytest.raises(OSError, match="no space left"):
        add_zeros(buffer)
    monkeypatch.undo()
    np.testing.assert_array_equal(buffer.rewards, expected)
    add_zeros(buffer)
    expected[10] = 1
    follower = CompressedReplayBuffer.from_checkpoint(tmp_path, device="cpu")
    np.testing.assert_array_equal(follower.rewards, expected)


@pytest.mark.parametrize("mode", ["foo", None])
@pytest.mark.parametrize("storage", ["memory", "folder"])
def test_unknown_storage_modes_list_the_known_ones(storage: str, mode: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"storage_mode must be one of \('create', 'resume', "):
        filled(0, storage="memory" if storage == "memory" else tmp_path, storage_mode=mode)


def test_a_buffer_without_next_observations_is_taken_over(tmp_path: Path) -> None:
    options: dict[str, Any] = {"handle_timeout_termination": False}
    buffer, other = filled(5, **options), filled(9, seed=1, optimize_memory_usage=True, **options)
    expected = np.array(other.observations)
    buffer.take_over(other)
    assert not hasattr(buffer, "next_observations")
    buffer.save_checkpoint(tmp_path)
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path, device="cpu")
    np.testing.assert_array_equal(np.array(loaded.observations), expected)

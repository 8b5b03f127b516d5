"""Vectors: plain arrays in memory, as in SB3, and slots in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from sb3_compressed import (
    CompressedReplayBuffer,
    load_checkpoint,
    save_checkpoint,
)


def test_values_of_another_dtype_are_validated_at_each_add() -> None:
    space, actions = spaces.Box(0, 100, (8,), np.int32), spaces.Discrete(2)
    buffer = CompressedReplayBuffer(8, space, actions, "cpu")
    fine, other = np.full((1, 8), 3.0), np.full((1, 8), 0.5)
    zeros = np.zeros(1)
    for _ in range(3):
        buffer.add(fine, fine, zeros, zeros, zeros, [{}])
    for obs, next_obs in ((other, fine), (fine, other)):
        with pytest.raises(ValueError, match=r"0\.5 would become 0"):
            buffer.add(obs, next_obs, zeros, zeros, zeros, [{}])
    assert buffer.pos == 3


@pytest.mark.parametrize("shape", [(16,), (4, 5, 5), (5, 5, 4)], ids=["vectors", "channels first", "channels last"])
def test_stacks_in_a_folder_are_loaded_as_plain_arrays(shape: tuple[int, ...], tmp_path: Path) -> None:
    space, action_space, n_envs = spaces.Box(-9, 9, shape, np.float32), spaces.Discrete(2), 2
    rng = np.random.default_rng(0)
    axis = -1 if shape[0] > shape[-1] else 0
    of_frame = shape[axis] // 4
    buffer = CompressedReplayBuffer(120, space, action_space, n_envs=n_envs, storage=tmp_path / "folder")
    obs = rng.normal(size=(n_envs, *shape)).astype(np.float32)
    for _ in range(80):  # more than one lap
        old = np.moveaxis(obs, axis if axis else 1, 1)[:, of_frame:]
        new = rng.normal(size=(n_envs, of_frame, *old.shape[2:])).astype(np.float32)
        next_obs = np.moveaxis(np.concatenate([old, new], axis=1), 1, axis if axis else 1)
        buffer.add(obs, next_obs, np.zeros((n_envs, 1)), np.zeros(n_envs), np.zeros(n_envs), [{}] * n_envs)
        obs = next_obs
    assert buffer.observations.n_frames == 4, "a plain array has no frames to share"
    wanted = [np.array(buffer.observations), np.array(buffer.next_observations)]
    buffer.close()

    loaded = load_checkpoint(tmp_path / "folder")
    for _ in range(2):
        assert not hasattr(loaded.observations, "n_frames")
        np.testing.assert_array_equal([loaded.observations[:], loaded.next_observations[:]], wanted)
        save_checkpoint(loaded, tmp_path / "folder")
        loaded = load_checkpoint(tmp_path / "folder")
    loaded.close()
    buffer = CompressedReplayBuffer(
        120, space, action_space, n_envs=n_envs, storage=tmp_path / "folder", storage_mode="resume"
    )
    np.testing.assert_array_equal([buffer.observations[:], buffer.next_observations[:]], wanted)
    buffer.close()

"""Vectors: plain arrays in memory, as in SB3, and slots in a folder."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffer_pairs import REPLAY_PAIRS
from conftest import Stream
from gymnasium import spaces
from support import add_all, assert_same_batch, n_episode_ends, new_buffer, same_draws

from sb3_compressed import (
    CompressedReplayBuffer,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.persistence import vector_slots

ROWS = 70


def parts(observations: Any) -> list[Any]:
    """Return the arrays of all keys, or the only one."""
    return list(observations.values()) if isinstance(observations, dict) else [observations]


def assert_same_everything(ours: Any, theirs: Any, seed: int) -> None:
    for batch_size in (5, 50):
        samplers = [partial(buffer.sample, batch_size) for buffer in (ours, theirs)]
        assert_same_batch(*same_draws(*samplers, seed=seed))
    for name in ("observations", "next_observations"):
        for our_part, their_part in zip(*(parts(getattr(buffer, name)) for buffer in (ours, theirs)), strict=True):
            assert np.asarray(our_part).tobytes() == their_part.tobytes()


@pytest.mark.parametrize(
    ("kind", "stream"),
    [("replay", "cart"), ("replay", "acrobot"), ("n-step", "cart"), ("her", "goal-bits"), ("dict", "goal-bits")],
    indirect=["stream"],
)
def test_batches_equal_sb3s_over_several_laps(kind: str, stream: Stream) -> None:
    ours, theirs = (new_buffer(cls, stream, ROWS) for cls in REPLAY_PAIRS[kind])
    for ours_part, theirs_part in zip(parts(ours.next_observations), parts(theirs.next_observations), strict=True):
        assert type(ours_part) is np.ndarray
        assert (ours_part.shape, ours_part.dtype) == (theirs_part.shape, theirs_part.dtype)
    assert n_episode_ends(stream[-1]) >= 3
    assert len(stream[-1]) > 4 * ROWS
    for step, transition in enumerate(stream[-1]):
        add_all([transition], ours, theirs)
        if step % 37 == 36 or step in (ROWS - 1, ROWS):
            assert_same_everything(ours, theirs, seed=step)
            env = getattr(ours, "env", None)
            ours = copy.deepcopy(ours) if step % 2 else pickle.loads(pickle.dumps(ours))
            if env is not None and ours.env is None:
                ours.set_env(env)
    assert_same_everything(ours, theirs, seed=0)


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


def test_vectors_are_saved_with_few_remembered_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_slots, "MAX_DISTINCT_ITEMS", 5)
    space, rng = spaces.Box(-9, 9, (16,), np.float32), np.random.default_rng(0)
    buffer = CompressedReplayBuffer(40, space, spaces.Discrete(2), device="cpu")
    for _ in range(4):
        for _ in range(7):
            obs, next_obs = rng.normal(size=(2, 1, 16)).astype(np.float32)
            buffer.add(obs, next_obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
        save_checkpoint(buffer, tmp_path / "folder")
    found = load_checkpoint(tmp_path / "folder", device="cpu")
    np.testing.assert_array_equal(found.observations, buffer.observations)
    np.testing.assert_array_equal(found.next_observations, buffer.next_observations)


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

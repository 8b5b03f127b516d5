"""Shards with folders continue with what these contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import ImageEnv

from distributed.buffers import actions_of, add_rows, assert_true, new_buffer, pid_of, refreshed
from distributed.emitted import NUMBERS, SPACES, observation, sb3_buffer
from distributed.stopped import full_disk
from sb3_compressed import CompressedReplayBuffer, StorageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


STORED: dict[str, Any] = {"compression_method": "zstd", "dtypes": {"vector": np.float64}, "segment_length": 7}


def test_a_folder_is_continued(local_ray: None, tmp_path: Path) -> None:
    """Each part of the space has its own shape and dtype, also a discrete one."""
    buffer = new_buffer("dict", 50, storage=tmp_path / "shards", **STORED)
    add_rows(buffer, "dict", range(70))
    refreshed(buffer)
    assert_true(buffer.sample(50), "dict")
    expected: Any = sb3_buffer("dict", 50, 1)
    add_rows(expected, "dict", range(3))
    for name, value in expected.sample(50).observations.items():
        found = buffer.sample(50).observations[name]
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
    buffer.close()
    with pytest.raises(StorageError, match="storage_mode='resume'") as raised:
        new_buffer("dict", 50, storage=tmp_path / "shards", **STORED)
    assert type(raised.value) is StorageError  # not that of Ray, whose message is a traceback
    with pytest.warns(UserWarning, match="50 transitions"):
        again = new_buffer("dict", 30, n_shards=2, storage=tmp_path / "shards", storage_mode="resume", **STORED)
    assert again.size() == 30
    assert {*assert_true(again.sample(600), "dict")} == {*range(40, 70)}
    add_rows(again, "dict", range(70, 75))
    refreshed(again)
    assert {*assert_true(again.sample(600), "dict")} == {*range(45, 75)}
    again.close()


def test_a_folder_is_not_continued_with_fewer_shards(local_ray: None, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"shard-{number}").mkdir()
    for mode in ("create", "resume", "overwrite"):
        with pytest.raises(StorageError, match="n_shards=2"):
            new_buffer("vector", 20, n_shards=1, storage=tmp_path, storage_mode=mode)


def test_vectors_in_a_folder(local_ray: None, tmp_path: Path) -> None:
    """In folders, vectors are slots."""
    buffer = new_buffer("vector", 40, n_envs=2, storage=tmp_path / "shards", n_steps=3, gamma=0.9, prefetch=2)
    add_rows(buffer, "vector", range(20))
    buffer.flush()
    batch = buffer.sample(64)
    for row, action in enumerate(actions_of(batch)):
        np.testing.assert_array_equal(batch.observations[row].numpy(), observation("vector", *divmod(action, 2)))
    is_inner = (batch.actions < 34).reshape(-1)
    expected = sum(0.9**k * (batch.actions.reshape(-1) + 2 * k) for k in range(3))
    np.testing.assert_allclose(batch.rewards.reshape(-1)[is_inner], expected[is_inner], rtol=1e-6)
    np.testing.assert_allclose(batch.discounts.reshape(-1)[is_inner], 0.9**3, rtol=1e-6)
    env = VecNormalize(DummyVecEnv([lambda: ImageEnv(SPACES["vector"], NUMBERS)]))
    with pytest.raises(ValueError, match="VecNormalize must have norm_reward=False"):
        buffer.sample(4, env)
    assert len(buffer.sample(4, VecNormalize(env.venv, norm_reward=False)).rewards) == 4
    buffer.close()


def test_a_full_disk_of_one_shard_loses_no_part_of_a_row(tmp_path: Path) -> None:
    buffer = new_buffer("images", 100, n_envs=2, n_shards=2, storage=tmp_path / "shards", segment_length=3)
    add_rows(buffer, "images", range(3))
    buffer.flush()
    with full_disk(pid=pid_of(buffer)), pytest.raises(OSError, match="large"):
        add_rows(buffer, "images", range(3, 100))
    add_rows(buffer, "images", range(100, 110))
    buffer.close()
    folders = sorted((tmp_path / "shards").glob("shard-*/ring-learner-*"))
    rings = [CompressedReplayBuffer.from_checkpoint(ring, device="cpu") for ring in folders]
    first, second = ([int(row.item()) for row in ring.actions[: ring.size()]] for ring in rings)
    assert [number + 1 for number in first] == second
    assert first[:3] == [0, 2, 4]
    assert first[-10:] == [*range(200, 220, 2)]

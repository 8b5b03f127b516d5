"""Checkpoints under the rules of Windows: nothing of them stays open, and what cannot be deleted is deleted later."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from numbered import add_steps, assert_true, filled
from programs import run
from stable_baselines3 import DQN
from support import atari_env

from sb3_compressed import (
    BufferCheckpointCallback,
    CompressedReplayBuffer,
    MixedReplayBuffer,
    StorageError,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.callbacks.checkpoint_folder import NEWEST
from sb3_compressed.storage.lock import FolderLock


def names(folder: Path) -> list[str]:
    """Return the names of checkpoints, complete or not."""
    return sorted(each.name for each in folder.glob("step_*"))


# -- saves ---------------------------------------------------------------------------------------------------


def test_a_buffer_is_saved_loaded_and_saved_again(tmp_path: Path) -> None:
    buffer = filled(0)
    for first in range(50, 350, 50):
        buffer.save_checkpoint(tmp_path)
        loaded = load_checkpoint(tmp_path)
        assert_true(loaded.sample(50))
        add_steps(loaded, range(first, first + 50))
        buffer = loaded
    save_checkpoint(filled(1000, 20), tmp_path, overwrite=True)
    assert load_checkpoint(tmp_path).size() == 20


def test_a_folder_is_deleted_after_saves_and_loads(tmp_path: Path) -> None:
    buffer = filled(0)
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        buffer.save_checkpoint(folder)
        loaded = load_checkpoint(folder)
    assert_true(loaded.sample(50))
    run("import sys; from numbered import *; filled(0).save_checkpoint(sys.argv[1])", tmp_path / "saved")
    loaded = load_checkpoint(tmp_path / "saved")
    (tmp_path / "saved").rename(tmp_path / "renamed")
    shutil.rmtree(tmp_path / "renamed")
    assert_true(loaded.sample(50))


@pytest.mark.parametrize("storage", ["memory", "folder"])
def test_copies_are_renamed_and_deleted(storage: str, tmp_path: Path) -> None:
    """As in "In a loop of your own" of the documentation."""
    buffer = filled(0, storage=tmp_path / "replay" if storage == "folder" else "memory")
    for step in range(3):
        if storage == "memory":
            buffer.save_checkpoint(tmp_path / "newest", overwrite=True)
        else:
            buffer.flush()
        buffer.copy_checkpoint(tmp_path / "unfinished" / "buffer")
        (tmp_path / "unfinished").rename(tmp_path / f"step-{step}")
        add_steps(buffer, range(50 * step + 50, 50 * step + 100))
    assert_true(load_checkpoint(tmp_path / "step-2" / "buffer").sample(50))
    buffer.close()
    for step in range(3):
        shutil.rmtree(tmp_path / f"step-{step}")


def test_a_mixed_buffer_is_saved_and_replaced(tmp_path: Path) -> None:
    mixed = MixedReplayBuffer.from_buffers([filled(0), filled(1000)], [1, 1])
    for first in range(50, 200, 50):
        mixed.save_checkpoint(tmp_path / "mixed", overwrite=True)
        assert_true(load_checkpoint(tmp_path / "mixed").sample(50))
        add_steps(mixed, range(first, first + 50))
    shutil.rmtree(tmp_path / "mixed")


# -- the callback --------------------------------------------------------------------------------------------


def new_model(**options: Any) -> DQN:
    return DQN(
        "CnnPolicy", atari_env(n_envs=1), buffer_size=120, learning_starts=20, batch_size=4, seed=0, device="cpu",
        policy_kwargs={"net_arch": [8], "features_extractor_kwargs": {"features_dim": 16}},
        replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=options,
    )  # fmt: skip


def test_old_checkpoints_are_deleted_and_a_run_is_resumed(tmp_path: Path) -> None:
    new_model().learn(120, callback=BufferCheckpointCallback(20, tmp_path, keep=2))
    assert names(tmp_path) == ["step_0000000100", "step_0000000120"]
    latest = latest_checkpoint(tmp_path)
    model = DQN.load(latest / "model", env=atari_env(n_envs=1))
    model.replay_buffer = load_checkpoint(latest / "buffer", device=model.device)
    callback = BufferCheckpointCallback(20, tmp_path, keep=2, resume=True)
    model.learn(40, callback=callback, reset_num_timesteps=False)
    assert names(tmp_path) == ["step_0000000140", "step_0000000160"]
    new_model().learn(40, callback=BufferCheckpointCallback(20, tmp_path, keep=2, overwrite=True))
    assert names(tmp_path) == ["step_0000000020", "step_0000000040"]


def test_links_to_files_of_a_buffer_in_a_folder_are_deleted_later(tmp_path: Path) -> None:
    model = new_model(storage=tmp_path / "replay")
    callback = BufferCheckpointCallback(20, tmp_path / "checkpoints", keep=1)
    model.learn(120, callback=callback)
    complete = [name for name in names(tmp_path / "checkpoints") if "unfinished" not in name]
    assert complete == ["step_0000000120"]
    assert load_checkpoint(tmp_path / "checkpoints" / complete[0] / "buffer").size() == 120
    assert model.replay_buffer is not None
    model.replay_buffer.close()  # type: ignore[attr-defined]
    model.replay_buffer = filled(0)
    callback.save()
    assert names(tmp_path / "checkpoints") == complete


def test_a_checkpoint_that_a_program_reads_is_deleted_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, callback = new_model(), BufferCheckpointCallback(20, tmp_path, keep=1)
    model.learn(20, callback=callback)
    with caplog.at_level(logging.WARNING), open(tmp_path / "step_0000000020" / "model.zip", "rb"):
        model.learn(20, callback=callback, reset_num_timesteps=False)
        assert names(tmp_path) == ["step_0000000020", "step_0000000040"]
        assert "step_0000000020" in caplog.text
    model.learn(20, callback=callback, reset_num_timesteps=False)
    assert names(tmp_path) == ["step_0000000060"]


def test_a_second_training_learns_who_trains(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path).acquire()
    with pytest.raises(StorageError, match=f"locked by process {os.getpid()}"):
        new_model().learn(20, callback=BufferCheckpointCallback(20, tmp_path))
    lock.release()
    assert not (tmp_path / NEWEST).exists()


# -- indices -------------------------------------------------------------------------------------------------


def test_indices_of_sequences_have_64_bits() -> None:
    assert str(filled(0).sample_sequences(4, 5).indices.dtype).endswith("int64")

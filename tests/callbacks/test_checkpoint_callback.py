"""Checkpoints during training are consistent and complete, whenever the process is killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from drawn_examples import FACTOR
from lines import before_lines
from programs import start
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import VecNormalize
from support import assert_same_batch, atari_env, same_draws

from sb3_compressed import BufferCheckpointCallback, CompressedReplayBuffer, StorageError, latest_checkpoint
from sb3_compressed.callbacks import checkpoint_callback as checkpoint_module


def dqn(n_envs: int = 2, env: Any = None, buffer_size: int = 120, **options: Any) -> DQN:
    return DQN(
        "CnnPolicy", env or atari_env(n_envs=n_envs), buffer_size=buffer_size, learning_starts=20, batch_size=4,
        seed=0, device="cpu",
        policy_kwargs={"net_arch": [8], "features_extractor_kwargs": {"features_dim": 16}},
        replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=options,
    )  # fmt: skip


def stored_buffer(folder: Path) -> Any:
    return CompressedReplayBuffer.from_checkpoint(folder, device="cpu")


def saved_in(checkpoints: Path) -> list[Path]:
    """Return all checkpoints, without the links to files of an open buffer that Windows does not delete yet."""
    found = sorted(checkpoints.glob("step_*"))
    return [each for each in found if each.suffix != ".unfinished"] if sys.platform == "win32" else found


def assert_same_buffer(ours: Any, theirs: Any) -> None:
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    assert_same_batch(*same_draws(lambda: ours.sample(50), lambda: theirs.sample(50), seed=3))


@pytest.mark.parametrize("storage", ["memory", "folder"])
def test_model_and_buffer_belong_to_the_same_step_and_old_checkpoints_are_deleted(storage: str, tmp_path: Path) -> None:
    model = dqn(storage=tmp_path / "storage" if storage == "folder" else "memory")
    checkpoints = tmp_path / "checkpoints"
    model.learn(200, callback=BufferCheckpointCallback(40, checkpoints, keep=3))
    kept = saved_in(checkpoints)
    assert len(kept) == 3
    assert latest_checkpoint(checkpoints) == kept[-1]
    for folder in kept:
        buffer = stored_buffer(folder / "buffer")
        steps = DQN.load(folder / "model", device="cpu").num_timesteps
        assert steps == int(folder.name.partition("_")[2])
        assert buffer.pos == (steps // 2) % 60, "all steps before the checkpoint are in the buffer"
    assert_same_buffer(buffer, model.replay_buffer)
    resumed = DQN.load(kept[-1] / "model", env=atari_env(n_envs=2), device="cpu")
    resumed.replay_buffer = buffer
    resumed.learn(60, callback=BufferCheckpointCallback(40, checkpoints, resume=True), reset_num_timesteps=False)
    [last] = saved_in(checkpoints)
    assert_same_buffer(stored_buffer(last / "buffer"), resumed.replay_buffer)


def test_checkpoints_share_files(tmp_path: Path) -> None:
    model = dqn(buffer_size=300, compression_method="none")
    model.learn(160, callback=BufferCheckpointCallback(16, tmp_path, keep=10))
    files = {path.stat().st_ino: path.stat().st_size for path in tmp_path.rglob("*.log")}
    unshared = sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    assert sum(files.values()) < unshared / 3


def test_the_latest_checkpoint_is_the_one_saved_last_whatever_its_step(tmp_path: Path) -> None:
    """``learn`` resets the number of steps, so a later checkpoint can have a lower one."""
    model, callback = dqn(), BufferCheckpointCallback(1000, tmp_path, keep=2)
    model.learn(64, callback=callback)
    model.learn(40, callback=callback)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))  # like a copy without times
    assert latest_checkpoint(tmp_path) == tmp_path / "step_0000000040"
    model.learn(24, callback=callback, reset_num_timesteps=False)
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_0000000040", "step_0000000064"]
    assert_same_buffer(stored_buffer(latest_checkpoint(tmp_path) / "buffer"), model.replay_buffer)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_replaced_leaves_a_complete_one(tmp_path: Path) -> None:
    """A run that resumed from an earlier checkpoint saves a step again."""
    model = dqn(1, compression_method="zstd")
    model.learn(32, callback=BufferCheckpointCallback(1000, tmp_path / "first"))
    was_killed, n_lines = True, 0
    while was_killed:
        folder = tmp_path / f"{n_lines}"
        shutil.copytree(tmp_path / "first", folder)
        child = os.fork()
        if child == 0:
            callback = BufferCheckpointCallback(1000, folder, resume=True)
            callback.init_callback(model)
            callback.num_timesteps = model.num_timesteps
            with before_lines([n_lines], lambda: os.kill(os.getpid(), signal.SIGKILL), checkpoint_module):
                callback.save()
            os._exit(0)
        was_killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        latest = latest_checkpoint(folder)
        assert (latest / "model.zip").is_file()
        assert_same_buffer(stored_buffer(latest / "buffer"), model.replay_buffer)
        shutil.rmtree(folder)
        n_lines += 3 if FACTOR is None else 1
    assert n_lines > 40


def test_the_statistics_of_vec_normalize_are_saved(tmp_path: Path) -> None:
    env = VecNormalize(atari_env(n_envs=1), norm_obs=False)
    dqn(env=env).learn(30, callback=BufferCheckpointCallback(20, tmp_path))
    loaded = VecNormalize.load(str(latest_checkpoint(tmp_path) / "vecnormalize.pkl"), atari_env(n_envs=1))
    assert loaded.ret_rms.count > 1


def test_a_model_without_a_compressed_buffer_raises_before_training(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"this model has none; .* replay_buffer_class"):
        PPO("MlpPolicy", "CartPole-v1", device="cpu").learn(10, callback=BufferCheckpointCallback(5, tmp_path))
    with pytest.raises(StorageError, match="this model uses ReplayBuffer"):
        DQN("MlpPolicy", "CartPole-v1", device="cpu").learn(10, callback=BufferCheckpointCallback(5, tmp_path))


@pytest.mark.parametrize(
    ("save_freq", "keep", "error", "message"),
    [(0, 1, ValueError, "save_freq .* got 0"), (1, -1, ValueError, "keep .* got -1"), (5.5, 1, TypeError, "save_freq")],
)
def test_numbers_that_are_not_positive_integers_raise(
    save_freq: Any, keep: int, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        BufferCheckpointCallback(save_freq, tmp_path, keep=keep)


def test_save_before_training_raises_and_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no model to save yet"):
        BufferCheckpointCallback(50, tmp_path / "new").save()
    assert not (tmp_path / "new").exists()


class PrintingCallback(BufferCheckpointCallback):
    """Prints the name of each checkpoint, and interrupts the training after a given step."""

    def __init__(self, *args: Any, last: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last = last

    def save(self) -> Path:
        folder = super().save()
        print(folder.name, flush=True)
        if self.num_timesteps == self.last:
            raise KeyboardInterrupt
        return folder


TRAINING = """
import sys
import torch
from callbacks.test_checkpoint_callback import PrintingCallback, dqn
torch.set_num_threads(1)  # like conftest.py
dqn(1).learn(100_000, callback=PrintingCallback(11, sys.argv[1], keep=2))
"""


def test_a_killed_training_equals_an_uninterrupted_one_and_can_be_resumed(tmp_path: Path) -> None:
    with start(TRAINING, tmp_path) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline().strip() for _ in range(5)]
        process.kill()
        reported += process.stdout.read().split()
    latest = latest_checkpoint(tmp_path)
    assert latest.name >= reported[-1]
    model = DQN.load(latest / "model", env=atari_env(n_envs=1), device="cpu")
    model.replay_buffer = stored_buffer(latest / "buffer")
    assert stored_buffer(latest / "buffer").pos == model.num_timesteps
    uninterrupted = dqn(1)
    with pytest.raises(KeyboardInterrupt):
        uninterrupted.learn(100_000, callback=PrintingCallback(11, tmp_path / "other", last=model.num_timesteps))
    assert_same_buffer(model.replay_buffer, uninterrupted.replay_buffer)
    both = model.policy.state_dict().values(), uninterrupted.policy.state_dict().values()
    assert [ours.numpy().tobytes() for ours in both[0]] == [theirs.numpy().tobytes() for theirs in both[1]]
    model.learn(40, callback=BufferCheckpointCallback(11, tmp_path, resume=True), reset_num_timesteps=False)
    assert not list(tmp_path.glob("*.unfinished"))

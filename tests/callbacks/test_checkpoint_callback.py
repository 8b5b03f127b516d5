"""Checkpoints during training: model and buffer belong together, whenever the process is killed."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from lines import before_lines
from programs import start
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import VecNormalize
from support import assert_same_batch, atari_env, same_draws

from sb3_compressed import (
    BufferCheckpointCallback,
    CompressedReplayBuffer,
    StorageError,
    latest_checkpoint,
)
from sb3_compressed.callbacks import checkpoint_callback as checkpoint_module


def dqn(n_envs: int = 2, env: Any = None, **options: Any) -> DQN:
    return DQN(
        "CnnPolicy", env or atari_env(n_envs=n_envs), buffer_size=300, learning_starts=20, seed=0, device="cpu",
        policy_kwargs={"net_arch": [8]}, replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=options,
    )  # fmt: skip


def hold_equal(ours: Any, theirs: Any) -> None:
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    assert_same_batch(*same_draws(lambda: ours.sample(200), lambda: theirs.sample(200), seed=3))


@pytest.mark.parametrize("storage", ["memory", pytest.param("folder", marks=pytest.mark.slow)])
def test_model_and_buffer_are_of_one_step_and_old_ones_go(storage: str, tmp_path: Path) -> None:
    model = dqn(storage=tmp_path / "storage" if storage == "folder" else "memory")
    checkpoints = tmp_path / "checkpoints"
    model.learn(500, callback=BufferCheckpointCallback(100, checkpoints, keep=3))
    kept = sorted(checkpoints.glob("step_*"))
    assert len(kept) == 3
    assert latest_checkpoint(checkpoints) == kept[-1]
    for folder in kept:
        buffer: Any = CompressedReplayBuffer.from_checkpoint(folder / "buffer", device="cpu")
        steps = DQN.load(folder / "model", device="cpu").num_timesteps
        assert steps == int(folder.name.partition("_")[2])
        assert buffer.pos == (steps // 2) % 150, "all steps up to then are in the buffer"
    hold_equal(buffer, model.replay_buffer)
    resumed = DQN.load(kept[-1] / "model", env=atari_env(n_envs=2), device="cpu")
    resumed.replay_buffer = buffer
    resumed.learn(150, callback=BufferCheckpointCallback(100, checkpoints, resume=True), reset_num_timesteps=False)
    [last] = checkpoints.glob("step_*")
    hold_equal(CompressedReplayBuffer.from_checkpoint(last / "buffer", device="cpu"), resumed.replay_buffer)


def test_checkpoints_share_what_they_have_in_common(tmp_path: Path) -> None:
    model = dqn(compression_method="none")
    model.learn(240, callback=BufferCheckpointCallback(20, tmp_path, keep=10))
    files = {path.stat().st_ino: path.stat().st_size for path in tmp_path.rglob("*.log")}
    apart = sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    assert sum(files.values()) < apart / 3


def test_the_newest_is_the_one_saved_last_whatever_its_step(tmp_path: Path) -> None:
    """A run whose number of steps was reset, as ``learn`` does, is not taken for an old one."""
    model, callback = dqn(), BufferCheckpointCallback(1000, tmp_path, keep=2)
    model.learn(64, callback=callback)
    model.learn(40, callback=callback)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))  # as after copying it elsewhere
    newest = latest_checkpoint(tmp_path)
    assert newest == tmp_path / "step_0000000040"
    model.learn(24, callback=callback, reset_num_timesteps=False)
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_0000000040", "step_0000000064"]
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    hold_equal(CompressedReplayBuffer.from_checkpoint(newest / "buffer", device="cpu"), model.replay_buffer)


def test_relative_paths_stay_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the process goes elsewhere during the training."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model, callback = dqn(storage="storage"), BufferCheckpointCallback(40, "checkpoints", keep=9)
    monkeypatch.chdir(tmp_path / "elsewhere")
    model.learn(130, callback=callback)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == []
    newest = latest_checkpoint(tmp_path / "checkpoints")
    assert newest is not None
    hold_equal(CompressedReplayBuffer.from_checkpoint(newest / "buffer", device="cpu"), model.replay_buffer)
    hold_equal(CompressedReplayBuffer.from_checkpoint(tmp_path / "storage", device="cpu"), model.replay_buffer)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked there")
@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_replaced_leaves_one(tmp_path: Path) -> None:
    """Of a step that was saved before, as by a run that went on from an earlier one."""
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
        newest = latest_checkpoint(folder)
        assert newest is not None, f"killed after {n_lines} lines"
        assert (newest / "model.zip").is_file()
        hold_equal(CompressedReplayBuffer.from_checkpoint(newest / "buffer", device="cpu"), model.replay_buffer)
        shutil.rmtree(folder)
        n_lines += 1
    assert n_lines > 40


def test_a_normalised_environment_is_saved_too(tmp_path: Path) -> None:
    env = VecNormalize(atari_env(n_envs=1), norm_obs=False)
    dqn(env=env).learn(60, callback=BufferCheckpointCallback(50, tmp_path))
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    loaded = VecNormalize.load(str(newest / "vecnormalize.pkl"), atari_env(n_envs=1))
    assert loaded.ret_rms.count > 1


def test_a_line_tells_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dqn().learn(100, callback=BufferCheckpointCallback(50, tmp_path, verbose=1))
    lines = [line for line in capsys.readouterr().out.splitlines() if "transitions" in line]
    assert len(lines) == 2
    # With two environments and training every 4 steps, the first rollout after 50 steps ends at 56.
    assert lines[0].startswith(f"{tmp_path / 'step_0000000056'}: 56 transitions and the model in ")


def test_what_cannot_be_saved_is_said_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="this model has none; pass replay_buffer_class"):
        PPO("MlpPolicy", "CartPole-v1", device="cpu").learn(10, callback=BufferCheckpointCallback(5, tmp_path))
    with pytest.raises(StorageError, match="this model uses ReplayBuffer"):
        DQN("MlpPolicy", "CartPole-v1", device="cpu").learn(10, callback=BufferCheckpointCallback(5, tmp_path))


def test_numbers_that_are_not_positive_integers_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save_freq must be at least 1, got 0"):
        BufferCheckpointCallback(0, tmp_path)
    with pytest.raises(ValueError, match="keep must be at least 1, got -1"):
        BufferCheckpointCallback(1, tmp_path, keep=-1)
    for value in ("50", 50.5, None, True):
        with pytest.raises(TypeError, match=f"save_freq must be an integer, got {value!r}"):
            BufferCheckpointCallback(value, tmp_path)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"keep must be an integer, got {value!r}"):
            BufferCheckpointCallback(50, tmp_path, keep=value)  # type: ignore[arg-type]


def test_save_before_a_training_is_an_error_that_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no model to save yet; pass the callback to learn\(\) first"):
        BufferCheckpointCallback(50, tmp_path / "new").save()
    assert not (tmp_path / "new").exists()


class Told(BufferCheckpointCallback):
    """Tells on standard output of what it saved, and ends the training after a given step, as nothing ever should."""

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
from callbacks.test_checkpoint_callback import Told, dqn
torch.set_num_threads(1)  # as in conftest.py
dqn(1).learn(100_000, callback=Told(11, sys.argv[1], keep=2))
"""


def test_a_killed_training_leaves_checkpoints_that_can_be_gone_on_with(tmp_path: Path) -> None:
    with start(TRAINING, tmp_path) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline().strip() for _ in range(9)]
        process.kill()
        reported += process.stdout.read().split()
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.name >= reported[-1]
    model = DQN.load(newest / "model", env=atari_env(n_envs=1), device="cpu")
    model.replay_buffer = CompressedReplayBuffer.from_checkpoint(newest / "buffer", device="cpu")
    assert model.replay_buffer.pos == model.num_timesteps
    uninterrupted = dqn(1)
    with pytest.raises(KeyboardInterrupt):
        uninterrupted.learn(100_000, callback=Told(11, tmp_path / "other", last=model.num_timesteps))
    hold_equal(model.replay_buffer, uninterrupted.replay_buffer)
    both = model.policy.state_dict().values(), uninterrupted.policy.state_dict().values()
    assert [ours.numpy().tobytes() for ours in both[0]] == [theirs.numpy().tobytes() for theirs in both[1]]
    model.learn(40, callback=BufferCheckpointCallback(11, tmp_path, resume=True), reset_num_timesteps=False)
    assert not list(tmp_path.glob("*.unfinished"))

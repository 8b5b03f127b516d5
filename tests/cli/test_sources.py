"""What a path leads to is the same for all commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import writer
from commands import run

from sb3_compressed import BufferCheckpointCallback, save_checkpoint

N_STEPS = 40


def buffer_of(n_steps: int = N_STEPS) -> Any:
    buffer = writer.new_buffer()
    for number in range(1, n_steps + 1):
        writer.add_step(buffer, number)
    return buffer


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of two checkpoints that a real training made."""
    from stable_baselines3 import DQN

    from sb3_compressed import CompressedReplayBuffer

    folder = tmp_path_factory.mktemp("checkpoints")
    model = DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=200, learning_starts=1000, replay_buffer_class=CompressedReplayBuffer
    )
    model.learn(120, callback=BufferCheckpointCallback(40, folder, keep=2))
    return folder


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_checkpoints_of_the_callback(command: str, checkpoints: Path) -> None:
    *_, before, newest = sorted(checkpoints.glob("step_*"))
    done = run(command, checkpoints, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(newest / "buffer")
    assert done.stderr == f"{checkpoints}: the latest checkpoint is {newest.name}, of 2\n"
    for path in (before, before / "buffer"):
        done = run(command, path, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["path"] == str(before / "buffer")


def test_the_checkpoint_is_told_of(checkpoints: Path) -> None:
    newest = max(checkpoints.glob("step_*"))
    told = json.loads(run("inspect", newest, "--json").stdout)
    assert told["checkpoint"] == str(newest)
    assert told["transitions"] == int(newest.name.partition("_")[2])


def error_of(path: Path, *command: str) -> str:
    """Return what a command says of a path."""
    done = run(*(command or ["verify"]), path)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


@pytest.mark.parametrize("command", [["inspect"], ["play"], ["export", "--minari", "test/none-v0"]])
def test_all_commands_say_the_same(command: list[str], tmp_path: Path) -> None:
    assert error_of(tmp_path, *command) == error_of(tmp_path)
    assert error_of(tmp_path) == f"Error: {tmp_path} holds no buffer, nor checkpoints of one\n"


def test_a_path_that_leads_nowhere(tmp_path: Path, checkpoints: Path) -> None:
    assert error_of(tmp_path / "nothing") == f"Error: there is no {tmp_path / 'nothing'}\n"
    (tmp_path / "replay.pkl").write_bytes(b"")
    assert error_of(tmp_path / "replay").endswith(f"; is it {tmp_path / 'replay.pkl'}?\n")
    assert "neither a folder nor a pickle" in error_of(tmp_path / "replay.pkl")
    newest = max(checkpoints.glob("step_*"))
    assert error_of(newest / "model.zip").endswith(f"the model of a checkpoint; name its folder, {newest}\n")
    segment = max((newest / "buffer").glob("*.log"))
    assert error_of(segment).endswith(f"one file of a buffer; name its folder, {newest / 'buffer'}\n")


def test_a_checkpoint_that_was_never_complete(tmp_path: Path) -> None:
    (tmp_path / "step_0000000100.unfinished").mkdir()
    save_checkpoint(buffer_of(), tmp_path / "newest-buffer")
    error = error_of(tmp_path)
    assert "holds no complete checkpoint, only step_0000000100.unfinished" in error
    assert f"{tmp_path / 'newest-buffer'} is what its buffer was then" in error


def test_a_first_save_that_was_never_complete(tmp_path: Path) -> None:
    folder = tmp_path / "buffer"
    save_checkpoint(buffer_of(), folder)
    for file in folder.glob("*.log"):
        file.rename(file.with_suffix(".unfinished"))
    assert error_of(folder) == f"Error: {folder} holds no buffer, nor checkpoints of one\n"

"""All commands find the buffer at a path in the same way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import writer
from commands import error_of, run
from stable_baselines3 import DQN

from sb3_compressed import BufferCheckpointCallback, CompressedReplayBuffer, save_checkpoint


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two checkpoints of a training."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=200, learning_starts=1000, replay_buffer_class=CompressedReplayBuffer
    )
    model.learn(120, callback=BufferCheckpointCallback(40, folder, keep=2))
    return folder


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_latest_checkpoint_is_used(command: str, checkpoints: Path) -> None:
    *_, before, newest = sorted(checkpoints.glob("step_*"))
    done = run(command, checkpoints, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(newest / "buffer")
    assert done.stderr == f"{checkpoints}: using the latest checkpoint, {newest.name}\n"
    for path in (before, before / "buffer"):
        done = run(command, path, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["path"] == str(before / "buffer")


def test_all_commands_report_the_same_error(tmp_path: Path) -> None:
    expected = f"{tmp_path} contains no buffer"
    assert error_of("inspect", tmp_path) == error_of("verify", tmp_path) == expected


def test_errors_for_other_paths_name_the_right_one(tmp_path: Path, checkpoints: Path) -> None:
    assert error_of("verify", tmp_path / "nothing") == f"there is no folder {tmp_path / 'nothing'}"
    (tmp_path / "replay.pkl").write_bytes(b"")
    assert "load_replay_buffer" in error_of("inspect", tmp_path / "replay.pkl")
    newest = max(checkpoints.glob("step_*"))
    for file in (newest / "model.zip", max((newest / "buffer").glob("*.log"))):
        assert error_of("verify", file).endswith(str(newest / "buffer"))


def test_incomplete_first_save_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "buffer"
    save_checkpoint(writer.filled(40), folder)
    for file in folder.glob("*.log"):
        file.rename(file.with_suffix(".unfinished"))
    assert error_of("inspect", folder) == f"{folder} contains no buffer"

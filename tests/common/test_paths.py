"""``~`` in a path is the home folder, wherever a path is passed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from dopamine_ring import Ring
from gymnasium import spaces
from stable_baselines3 import DQN

from sb3_compressed import CompressedReplayBuffer, MixedReplayBuffer, load_checkpoint, save_checkpoint
from sb3_compressed.callbacks import BufferCheckpointCallback, latest_checkpoint
from sb3_compressed.common.paths import user_path
from sb3_compressed.datasets import import_dopamine
from sb3_compressed.recording import RecordBuffer
from sb3_compressed.storage import verify

SPACES = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(2)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set a home folder, and assert that none is created in the working directory."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.chdir(work)
    yield home
    assert not [*work.iterdir()]


def filled(**options: Any) -> CompressedReplayBuffer:
    buffer = CompressedReplayBuffer(100, *SPACES, "cpu", **options)
    frames = np.random.default_rng(0).integers(1, 256, (24, 84, 84), np.uint8)
    frames[:3] = 0  # before each episode
    for step in range(40):
        obs, next_obs = (frames[np.newaxis, first : first + 4] for first in (step % 20, step % 20 + 1))
        buffer.add(obs, next_obs, np.array([[1]]), np.array([1.0]), np.array([step % 20 == 19]), [{}])
    return buffer


def test_folders_of_buffers(home: Path) -> None:
    filled(storage=Path("~/storage")).close()
    CompressedReplayBuffer(100, *SPACES, "cpu", storage="~/storage", storage_mode="resume").close()
    buffer = filled()
    save_checkpoint(buffer, "~/saved")
    buffer.save_checkpoint(home / "saved")
    buffer.copy_checkpoint(Path("~/copy"))
    assert load_checkpoint("~/copy", device="cpu").size() == 40
    assert CompressedReplayBuffer.from_checkpoint(Path("~/saved"), device="cpu").size() == 40
    assert verify("~/saved") == []
    mixed = MixedReplayBuffer(100, *SPACES, "cpu", demonstrations="~/saved")
    assert mixed.sample(4).observations.shape == (4, 4, 84, 84)
    assert sorted(path.name for path in home.iterdir()) == ["copy", "saved", "storage"]


def test_recordings(home: Path) -> None:
    for mode in ("create", "resume"):
        buffer = RecordBuffer(*SPACES, storage="~/recording", storage_mode=mode)
        buffer.close()
    assert (home / "recording").is_dir()


def test_checkpoints_of_callbacks(home: Path) -> None:
    model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, buffer_size=100, device="cpu")
    model.learn(40, callback=BufferCheckpointCallback(20, "~/checkpoints"))
    assert latest_checkpoint("~/checkpoints").parent == home / "checkpoints"


def test_data_sets(home: Path) -> None:
    ring = Ring(100)
    ring.play(50, np.random.default_rng(0))
    ring.save(home / "dopamine", 0)
    imported = import_dopamine("~/dopamine", progress_bar=False, device="cpu", storage="~/imported")
    assert imported.size() > 20
    assert {"dopamine", "imported"} == {path.name for path in home.iterdir()}


def test_commands() -> None:
    save_checkpoint(filled(), "~/saved")
    for command in ("inspect", "verify"):
        done = run(command, "~/saved")
        assert done.returncode == 0, done.stderr


def test_other_paths_are_unchanged() -> None:
    for path in ("a/~", "~no-such-user/a", "/a/../b", "."):
        assert user_path(path) == Path(path)

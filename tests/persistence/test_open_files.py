"""After a save, a load and ``close()``, no file of the folder is open or mapped.

Otherwise loaded buffers take twice their memory, and Windows deletes and renames no such folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered import COUNTER, DICTS, IMAGES, add_steps, assert_true
from numbered import filled as numbered
from support import filled

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    MixedReplayBuffer,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.storage.commit_writer import CommitWriter

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")

ONE_ARRAY = {"optimize_memory_usage": True, "handle_timeout_termination": False}
#: The class, the space of observations, and arguments.
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "frames": (CompressedReplayBuffer, IMAGES, {}),
    "prioritized": (CompressedReplayBuffer, IMAGES, {"sampler": "prioritized"}),
    "one array": (CompressedReplayBuffer, IMAGES, ONE_ARRAY),
    "dict": (CompressedDictReplayBuffer, DICTS, {}),
    "n-step": (CompressedNStepReplayBuffer, IMAGES, {"n_steps": 3, "gamma": 0.9}),
}


@pytest.fixture(autouse=True)
def _several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEGMENT_NBYTES", "MIN_SEGMENT_NBYTES"):
        monkeypatch.setattr(CommitWriter, name, 4_000)


def in_use(folder: Path) -> set[str]:
    """Return the names of the files of a folder that this process has open or mapped."""
    paths = [line.split(None, 5)[-1] for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()]
    for descriptor in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{descriptor}"
        paths += [os.readlink(path)] if os.path.lexists(path) else []
    return {Path(path).name for path in paths if path.startswith(f"{folder.resolve()}{os.sep}")}


def new_buffer(kind: str, **options: Any) -> Any:
    cls, space, own = KINDS[kind]
    buffer = cls(100, space, COUNTER, "cpu", **own, **options)
    add_steps(buffer, range(130))
    return buffer


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_in_use_after_saves_loads_and_copies(kind: str, tmp_path: Path) -> None:
    buffer, folder = new_buffer(kind), tmp_path / "saved"
    for n_saves in range(2):
        save_checkpoint(buffer, folder)
        buffer.copy_checkpoint(tmp_path / f"copy-{n_saves}")
        assert in_use(tmp_path) == set()
    loaded = load_checkpoint(folder)
    assert in_use(tmp_path) == set()
    loaded.save_checkpoint(folder)
    assert in_use(tmp_path) == set()
    shutil.rmtree(folder)
    np.testing.assert_array_equal(loaded.actions, buffer.actions)
    loaded.sample(20)
    loaded.save_checkpoint(folder, overwrite=True)
    assert load_checkpoint(folder).size() == buffer.size()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_in_use_after_close(kind: str, tmp_path: Path) -> None:
    buffer = new_buffer(kind, storage=tmp_path)
    buffer.sample(20)
    reader = load_checkpoint(tmp_path, follow=True)
    reader.sample(20)
    assert in_use(tmp_path)
    buffer.close()
    reader.close()
    assert in_use(tmp_path) == set()
    for closed in (buffer, reader):  # their files are opened again
        batch = closed.sample(20)
        if kind == "frames":
            assert_true(batch)


def test_nothing_of_hindsight_replay_is_in_use(tmp_path: Path) -> None:
    buffer: Any = filled("goal-bits", 65, 40, CompressedHerReplayBuffer)
    save_checkpoint(buffer, tmp_path / "saved")
    loaded = load_checkpoint(tmp_path / "saved", env=buffer.env)
    assert in_use(tmp_path) == set()
    shutil.rmtree(tmp_path / "saved")
    loaded.sample(20)


def test_nothing_of_mixed_buffers_is_in_use(tmp_path: Path) -> None:
    mixed = MixedReplayBuffer.from_buffers([numbered(0), numbered(1000)], [1, 1])
    for _ in range(2):
        mixed.save_checkpoint(tmp_path / "mixed", overwrite=True)
        assert in_use(tmp_path) == set()
    loaded = load_checkpoint(tmp_path / "mixed")
    assert in_use(tmp_path) == set()
    shutil.rmtree(tmp_path / "mixed")
    assert_true(loaded.sample(50))


def test_nothing_is_in_use_after_a_save_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = numbered(0)
    save_checkpoint(buffer, tmp_path)
    monkeypatch.setattr(CommitWriter, "commit", fail)
    with pytest.raises(OSError, match="no room"):
        save_checkpoint(buffer, tmp_path)
    assert in_use(tmp_path) == set()


def fail(*_: Any) -> None:
    raise OSError("no room")

"""Commits that are damaged or of another process: no transitions are mixed, and none is overwritten."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sb3_compressed import CompressedReplayBuffer, StorageError, load_checkpoint
from sb3_compressed.storage.record_kinds import COMMIT
from sb3_compressed.storage.segment import Record, Segment

SMALL = spaces.Box(-np.inf, np.inf, (4,), np.float32)  # plain arrays
LARGE = spaces.Box(-np.inf, np.inf, (16,), np.float32)  # slots
BUTTONS = spaces.Discrete(1000)
ONE_ARRAY = {"optimize_memory_usage": True, "handle_timeout_termination": False}


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def new(rows: int = 60, space: Any = SMALL, **options: Any) -> Any:
    return CompressedReplayBuffer(rows, space, BUTTONS, device="cpu", **options)


def add(buffer: Any, number: int, *, done: bool = False) -> None:
    """Add a step whose parts all contain the same number."""
    shape = (1, *buffer.observation_space.shape)
    obs, next_obs = (np.full(shape, n, np.float32) for n in (number, number + 1))
    buffer.add(obs, next_obs, np.full((1, 1), number), np.full(1, number, np.float32), np.array([done]), [{}])


def crash(buffer: Any) -> None:
    buffer._storage.store.log.close()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def records(path: Path, kind: int) -> list[Record]:
    segment = Segment(path)
    try:
        return [record for record in segment.records() if record.kind == kind]
    finally:
        segment.close()


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def numbers(buffer: Any) -> list[int]:
    """Return the number of each transition, the oldest first; assert that none is mixed."""
    n_rows = buffer.buffer_size
    n_none = int(buffer.optimize_memory_usage)  # the row that is written next has no transition
    by_age = [(buffer.pos + k) % n_rows for k in range(n_none, n_rows)] if buffer.full else [*range(buffer.pos)]
    found = []
    for row in by_age:
        number = int(buffer.rewards[row, 0])
        assert (np.asarray(buffer.observations[row]) == number).all(), (row, number)
        assert buffer.actions[row, 0, 0] == number % 1000
        if getattr(buffer, "next_observations", None) is not None:
            assert (np.asarray(buffer.next_observations[row]) == number + 1).all(), (row, number)
        found.append(number)
    return found


def filled(folder: Path, n_steps: int, rows: int = 60, **options: Any) -> Path:
    """Return the file with the commits of a buffer whose process was killed."""
    buffer = new(rows, storage=folder, **options)
    for number in range(1, n_steps + 1):
        add(buffer, number)
    crash(buffer)
    return files(folder)[-1]


@pytest.mark.parametrize(
    "options",
    [{}, {"space": LARGE}, ONE_ARRAY, {"space": LARGE, **ONE_ARRAY}],
    ids=["plain", "slots", "one plain array", "one array of slots"],
)
@pytest.mark.parametrize("n_steps", [50, 200])
def test_repair_restores_the_state_before_a_damaged_commit(n_steps: int, options: Any, tmp_path: Path) -> None:
    path = filled(tmp_path / "a", n_steps, **options)
    for lost in [2, 30, n_steps]:
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        flip(tmp_path / "b" / path.name, records(path, COMMIT)[lost - 1].offset + 5)
        repaired = load_checkpoint(tmp_path / "b", repair=True)
        n_rows = 60 - repaired.optimize_memory_usage
        assert numbers(repaired) == [*range(max(lost - n_rows, 1), lost)]
        assert len(repaired.repair_report.dropped) == 0
        shutil.rmtree(tmp_path / "b")


def test_repair_restores_the_save_before_a_damaged_one(tmp_path: Path) -> None:
    buffer = new(1000)
    for number in range(1, 50):
        add(buffer, number, done=number == 15)
        if number % 7 == 0:
            buffer.save_checkpoint(tmp_path / "a")
    path = files(tmp_path / "a")[-1]
    for index, commit in enumerate(records(path, COMMIT)):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        flip(tmp_path / "b" / path.name, commit.offset + len(commit.content) // 2)
        repaired = load_checkpoint(tmp_path / "b", repair=True)
        n_before = len(records(path, COMMIT)) - index
        assert numbers(repaired) == [*range(1, 49 - 7 * n_before + 1)]
        assert [number for number in numbers(repaired) if repaired.dones[number - 1, 0]] in ([], [15])
        shutil.rmtree(tmp_path / "b")


def test_loaded_buffer_does_not_overwrite_newer_saves(tmp_path: Path) -> None:
    one = new()
    add(one, 1)
    one.save_checkpoint(tmp_path / "a")
    add(one, 2)
    one.save_checkpoint(tmp_path / "a")
    other = load_checkpoint(tmp_path / "a")
    for number in range(3, 31):
        add(one, number)
    one.save_checkpoint(tmp_path / "a")
    add(other, 3)
    with pytest.raises(StorageError, match="since"):
        other.save_checkpoint(tmp_path / "a")
    assert load_checkpoint(tmp_path / "a").size() == 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this operating system has no fork")
def test_parent_does_not_overwrite_saves_of_a_forked_child(tmp_path: Path) -> None:
    buffer = new()
    add(buffer, 1)
    buffer.save_checkpoint(tmp_path / "a")
    child = os.fork()
    if child == 0:
        for number in range(2, 20):
            add(buffer, number)
        buffer.save_checkpoint(tmp_path / "a")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    add(buffer, 2)
    with pytest.raises(StorageError, match="since"):
        buffer.save_checkpoint(tmp_path / "a")
    assert load_checkpoint(tmp_path / "a").size() == 19


def test_flush_makes_steps_of_a_killed_process_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "a", 50)
    synced: set[str] = set()
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.add(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("the names of open files cannot be found here")
    monkeypatch.setattr(os, "fsync", recorded)
    resumed = new(storage=tmp_path / "a", storage_mode="resume")
    for number in range(51, 61):
        add(resumed, number)
    resumed.flush()
    assert {str(path), str(files(tmp_path / "a")[-1])} <= synced

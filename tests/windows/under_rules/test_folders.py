"""Buffers in folders under the rules of Windows: files are closed before they are renamed, truncated or deleted."""

from __future__ import annotations

import gzip
import os
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered import add_steps, assert_true, filled
from programs import run, start

from sb3_compressed import CorruptStorage, load_checkpoint
from sb3_compressed.datasets import import_dopamine
from sb3_compressed.storage import verify
from sb3_compressed.storage.commit_writer import CommitWriter
from sb3_compressed.storage.lock import FolderInUse


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEGMENT_NBYTES", "MIN_SEGMENT_NBYTES"):
        monkeypatch.setattr(CommitWriter, name, 60_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "replay"


def resumed(folder: Path, **options: Any) -> Any:
    return filled(0, 0, storage=folder, storage_mode="resume", **options)


def descriptors_of(folder: Path) -> list[str]:
    """Return the names of the segments that this process has open, each as often as it has."""
    prefix = f"{folder.resolve()}{os.sep}"
    paths = [f"/proc/{os.getpid()}/fd/{each}" for each in os.listdir(f"/proc/{os.getpid()}/fd")]
    found = [os.readlink(path) for path in paths if os.path.lexists(path)]
    return [Path(path).name for path in found if path.startswith(prefix) and path.endswith(".log")]


# -- one process ---------------------------------------------------------------------------------------------


def test_a_ring_is_overwritten_closed_and_resumed(folder: Path) -> None:
    buffer = filled(0, storage=folder)
    for first in range(50, 1050, 100):
        add_steps(buffer, range(first, first + 100))
        assert_true(buffer.sample(50))
    assert max(map(int, (each.stem for each in folder.glob("*.log")))) > 10
    twice = [name for name, count in Counter(descriptors_of(folder)).items() if count > 1]  # open and mapped
    assert twice in ([], [max(folder.glob("*.log")).name])
    buffer.flush()
    buffer.close()
    assert len([*folder.glob("*.log")]) < 15, "old segments are deleted"
    buffer = resumed(folder)
    assert_true(buffer.sample(50))
    add_steps(buffer, range(1050, 1100))
    buffer.close()
    assert verify(folder) == []
    assert_true(resumed(folder).sample(50))


def test_no_unfinished_segment_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(OSError, match="no room"):
            filled(0, storage=folder)
    assert [*folder.glob("*.unfinished")] == []
    filled(0, storage=folder).close()


def fail(*_: Any, **__: Any) -> None:
    raise OSError("no room")


@pytest.mark.parametrize("is_read", [False, True])
def test_a_folder_is_deleted_after_close(is_read: bool, folder: Path) -> None:
    buffer = filled(0, storage=folder)
    reader = load_checkpoint(folder, follow=True)
    buffer.sample(20)
    reader.sample(20)
    buffer.close()
    reader.close()
    if is_read:
        assert_true(buffer.sample(20))
        assert_true(reader.sample(20))
        buffer.close()
        reader.close()
    shutil.rmtree(folder)


def test_a_folder_that_is_read_is_overwritten(folder: Path) -> None:
    filled(0, storage=folder).close()
    reader = load_checkpoint(folder, follow=True)
    assert_true(reader.sample(20))
    buffer = filled(1000, 10, storage=folder, storage_mode="overwrite")
    assert_true(reader.sample(20))
    n_before = len([*folder.glob("*.log")])
    reader.close()
    buffer.close()
    assert len([*folder.glob("*.log")]) < n_before, "the next snapshot deletes what could not be deleted"
    assert resumed(folder).size() == 10


def test_another_size_is_resumed(folder: Path) -> None:
    run("import sys; from numbered import *; filled(0, storage=sys.argv[1])", folder)
    buffer = filled(0, 0, storage=folder, storage_mode="resume")
    buffer.flush()
    buffer.close()
    with pytest.warns(UserWarning, match="oldest"):
        smaller = type(buffer)(20, buffer.observation_space, buffer.action_space, storage=folder, storage_mode="resume")
    assert_true(smaller.sample(20))


def test_a_folder_is_repaired(folder: Path) -> None:
    filled(0, storage=folder).close()
    path = max(folder.glob("*.log"), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[5000] ^= 8
    path.write_bytes(content)
    assert verify(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        buffer = filled(0, 0, storage=folder, storage_mode="repair")
    buffer.close()
    assert verify(folder) == []


def test_nothing_is_left_of_an_import_that_failed(tmp_path: Path) -> None:
    rng, data = np.random.default_rng(0), tmp_path / "data"
    data.mkdir()
    rows = {
        "observation": rng.integers(0, 256, (60, 84, 84), np.uint8), "action": np.full(60, 2, np.int32),
        "reward": np.ones(60, np.float32), "terminal": np.zeros(60, np.uint8),
    }  # fmt: skip
    for name, values in rows.items():
        with gzip.open(data / f"$store$_{name}_ckpt.0.gz", "wb") as file:
            np.save(file, values)
    path = data / "$store$_observation_ckpt.0.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises((CorruptStorage, EOFError, OSError, ValueError)):
        import_dopamine(data, n_actions=3, storage=tmp_path / "imported", progress_bar=False)
    assert not (tmp_path / "imported").exists()


# -- locks ---------------------------------------------------------------------------------------------------


def test_a_second_writer_learns_who_writes(folder: Path) -> None:
    buffer = filled(0, storage=folder)
    with pytest.raises(FolderInUse, match="another buffer of this process"):
        resumed(folder)
    code = "import sys; from numbered import *; filled(0, storage=sys.argv[1], storage_mode='resume')"
    with start(f"try: {code}\nexcept Exception as error: print(type(error).__name__, error.owner)", folder) as other:
        assert other.stdout is not None
        assert other.stdout.read().split() == ["FolderInUse", str(os.getpid())]
    add_steps(buffer, range(50, 60))


def test_a_folder_is_copied_while_it_is_written_to(folder: Path, tmp_path: Path) -> None:
    buffer = filled(0, storage=folder)
    shutil.copytree(folder, tmp_path / "copy")
    buffer.close()
    assert_true(resumed(tmp_path / "copy").sample(20))


# -- several processes ---------------------------------------------------------------------------------------

FOLLOW = """
import sys
from numbered import assert_true
from sb3_compressed import load_checkpoint
reader = load_checkpoint(sys.argv[1], follow=True)
print(reader.size(), flush=True)
for line in sys.stdin:
    reader.refresh()
    assert_true(reader.sample(20))
    print(int(reader.rewards.max()), flush=True)
"""


def test_another_process_follows_a_ring(folder: Path) -> None:
    buffer = filled(0, storage=folder)
    with start(FOLLOW, folder) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "50\n"
        for first in range(50, 350, 100):
            add_steps(buffer, range(first, first + 100))
            print(file=other.stdin, flush=True)
            assert other.stdout.readline() == f"{first + 99}\n"
        add_steps(buffer, range(350, 850))  # it has segments mapped that are overwritten
        other.stdin.close()
        other.wait()
    n_before = len([*folder.glob("*.log")])
    buffer.close()
    assert len([*folder.glob("*.log")]) < n_before, "the next snapshot deletes what could not be deleted"
    assert_true(resumed(folder).sample(50))


KILLED = """
import sys
from numbered import add_steps, filled
buffer = filled(0, 0, storage=sys.argv[1])
for step in range(10_000):
    add_steps(buffer, range(step, step + 1))
    print(step, flush=True)
"""


def test_a_killed_writer_loses_nothing(folder: Path) -> None:
    with start(KILLED, folder) as writer:
        assert writer.stdout is not None
        lines = iter(writer.stdout)
        last = next(int(line) for line in lines if int(line) >= 60)
        writer.kill()
        last = max(last, *(int(line) for line in lines), 0)
    buffer = resumed(folder)
    buffer.flush()
    assert last <= int(buffer.rewards.max()) <= last + 1
    assert_true(buffer.sample(50))
    buffer.close()
    shutil.rmtree(folder)

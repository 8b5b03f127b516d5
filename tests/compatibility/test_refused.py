"""What versions before 0.5.0 wrote is refused by an error that names the version, and stays as it is.

``refused`` contains files of 0.4.0, one of each kind; the tests of ``distributed`` change current ones instead.
"""

from __future__ import annotations

import json
import lzma
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compatibility_cases as cases
import gymnasium
import numpy as np
import pytest
from commands import error_of

from sb3_compressed import (
    BufferCheckpointCallback,
    CompressedReplayBuffer,
    MixedReplayBuffer,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import verify
from sb3_compressed.storage.lock import LOCK_NAME

REFUSED = Path(__file__).parent / "refused"
#: Folders that contain a single buffer.
BUFFERS = "checkpoint", "storage", "killed"


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(REFUSED / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the files of a folder, without locks, which contain the number of the process that had them last."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK_NAME}


def assert_names_the_version(message: str, what: str) -> None:
    assert what in message
    assert "version 0.4" in message
    assert "0.5.0" in message
    assert "repair" not in message


def case_of(name: str) -> cases.ReplayCase:
    return cases.REPLAY["vector" if name == "killed" else "stack-auto"]


def resume(name: str, folder: Path, mode: str) -> Any:
    return case_of(name).new(storage=folder, storage_mode=mode)


READERS: dict[str, Callable[[str, Path], Any]] = {
    "load": lambda name, folder: load_checkpoint(folder, device="cpu"),
    "from": lambda name, folder: CompressedReplayBuffer.from_checkpoint(folder, device="cpu"),
    "repaired": lambda name, folder: load_checkpoint(folder, device="cpu", repair=True),
    "follow": lambda name, folder: load_checkpoint(folder, device="cpu", follow=True),
    "resume": lambda name, folder: resume(name, folder, "resume"),
    "repair": lambda name, folder: resume(name, folder, "repair"),
    "verify": lambda name, folder: verify(folder),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("name", BUFFERS)
def test_folders_of_a_buffer_are_refused(name: str, read: Callable[[str, Path], Any], tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path / "buffer")
    before = contents(folder)
    with pytest.raises(StorageError) as caught:
        read(name, folder)
    assert_names_the_version(str(caught.value), str(folder))
    assert not isinstance(caught.value, CorruptStorage), "nothing is damaged"
    assert contents(folder) == before


@pytest.mark.parametrize("name", BUFFERS)
def test_folders_of_a_buffer_are_replaced_when_asked_to(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    buffer = case.fill(case.new())
    saved, stored = (unpacked(name, tmp_path / way) for way in ("saved", "stored"))
    before = contents(saved)
    with pytest.raises(StorageError, match="overwrite=True"):
        save_checkpoint(buffer, saved)
    assert contents(saved) == before
    save_checkpoint(buffer, saved, overwrite=True)
    assert load_checkpoint(saved, device="cpu").size() == buffer.size()
    case.fill(resume(name, stored, "overwrite")).close()
    assert load_checkpoint(stored, device="cpu").size() == buffer.size()


@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize("name", BUFFERS)
def test_commands_print_the_error(name: str, command: str, tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path / "buffer")
    assert_names_the_version(error_of(command, folder), str(folder))


@pytest.mark.parametrize("load", [load_checkpoint, MixedReplayBuffer.from_checkpoint], ids=["function", "method"])
@pytest.mark.parametrize("options", [{}, {"repair": True}], ids=["load", "repair"])
def test_mixed_checkpoints_are_refused(load: Callable[..., Any], options: dict[str, Any], tmp_path: Path) -> None:
    folder = unpacked("mixed", tmp_path / "mixed")
    before = contents(folder)
    with pytest.raises(StorageError) as caught:
        load(folder, device="cpu", **options)
    assert_names_the_version(str(caught.value), str(folder))
    assert contents(folder) == before


def test_checkpoints_of_a_callback_are_refused(tmp_path: Path) -> None:
    folder = unpacked("callback", tmp_path / "run")
    before = contents(folder)
    step = folder / "step_0000000100"
    model: Any = cases.MODELS["dqn"].new()
    callback = BufferCheckpointCallback(30, folder, resume=True)
    for read, what in (
        (lambda: latest_checkpoint(folder), folder),
        (lambda: latest_checkpoint(folder, missing_ok=True), folder),
        (lambda: load_checkpoint(step / "buffer", device="cpu"), step),
        (lambda: model.learn(60, callback=callback), folder),
    ):
        with pytest.raises(StorageError) as caught:
            read()
        assert_names_the_version(str(caught.value), str(what))
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["replay", "rollout"])
def test_pickles_are_refused(name: str) -> None:
    recorded = json.loads((REFUSED / "versions.json").read_text("utf-8"))
    for package in (np, gymnasium):  # older ones do not read pickles of newer ones
        if int(package.__version__.partition(".")[0]) < int(recorded[package.__name__].partition(".")[0]):
            pytest.skip(f"{package.__name__} {package.__version__} does not read pickles of {recorded}")
    with pytest.raises(StorageError) as caught:
        pickle.loads(lzma.decompress((REFUSED / f"{name}.pkl.xz").read_bytes()))
    assert_names_the_version(str(caught.value), "this pickle")

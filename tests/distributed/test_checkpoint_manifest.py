"""The manifest of a distributed checkpoint names a complete state, and damage to either is detected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sb3_compressed import CheckpointNotFound, CorruptStorage, StorageError
from sb3_compressed.distributed.checkpoint_manifest import (
    MANIFEST,
    Manifest,
    SavedRing,
    is_unfinished,
    new_cut,
    read_manifest,
    remove_other_cuts,
    ring_folder,
)
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_files import newest_segment_digest


@pytest.fixture
def saved(tmp_path: Path) -> Manifest:
    """Return the manifest of a folder with two rings, which are logs without content."""
    cut = new_cut(tmp_path)
    rings = {}
    for name in ("learner-0", "a/b"):
        folder = ring_folder(tmp_path / cut, name)
        log = Log.create(folder)
        log.begin_segment([])
        log.close()
        rings[name] = SavedRing(7, str(newest_segment_digest(folder)))
    manifest = Manifest(cut, {"learner-0": (2, 0), "a/b": (1, 1), "has added nothing": (1, 0)}, rings)
    manifest.write(tmp_path)
    return manifest


def forge(folder: Path, changes: dict[str, Any]) -> None:
    """Change values of a manifest, whose checksum is right."""
    values = {**json.loads((folder / MANIFEST).read_bytes()), **changes}
    values.pop("checksum")
    values["checksum"] = f"{checksum(json.dumps(values, sort_keys=True).encode()):016x}"
    (folder / MANIFEST).write_text(json.dumps(values))


def test_a_manifest_is_read_as_it_was_written(saved: Manifest, tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == saved
    assert saved.rings_in(tmp_path) == {name: ring_folder(tmp_path / saved.cut, name) for name in ("learner-0", "a/b")}


def test_other_cuts_are_removed(saved: Manifest, tmp_path: Path) -> None:
    unfinished = new_cut(tmp_path)
    assert {path.name for path in tmp_path.glob("cut-*")} == {saved.cut, unfinished}
    remove_other_cuts(tmp_path)
    assert [path.name for path in tmp_path.glob("cut-*")] == [saved.cut]
    assert read_manifest(tmp_path).rings_in(tmp_path)


def test_an_unfinished_save_is_distinguished_from_other_files(tmp_path: Path) -> None:
    assert is_unfinished(tmp_path)
    new_cut(tmp_path)
    assert is_unfinished(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert not is_unfinished(tmp_path)


def test_missing_rings_are_detected(saved: Manifest, tmp_path: Path) -> None:
    ring_folder(tmp_path / saved.cut, "a/b").rename(tmp_path / "elsewhere")
    with pytest.raises(CorruptStorage, match=r"7 transitions of 'a/b'.*missing"):
        read_manifest(tmp_path).rings_in(tmp_path)


def test_exchanged_rings_are_detected(saved: Manifest, tmp_path: Path) -> None:
    first, second = (ring_folder(tmp_path / saved.cut, name) for name in ("learner-0", "a/b"))
    first.rename(tmp_path / "elsewhere")
    second.rename(first)
    (tmp_path / "elsewhere").rename(second)
    with pytest.raises(CorruptStorage, match="changed"):
        read_manifest(tmp_path).rings_in(tmp_path)


def test_each_changed_byte_of_a_manifest_is_detected(saved: Manifest, tmp_path: Path) -> None:
    path = tmp_path / MANIFEST
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(StorageError):
            read_manifest(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"cut": "../elsewhere"}, {"cut": 3}, {"rings": {"nobody": {"n_transitions": 1, "digest": "0"}}}, {"rings": []},
        {"writers": {"learner-0": [0, 0]}}, {"writers": {"learner-0": 1}}, {"version": 4}, {"version": "3"},
    ],
)  # fmt: skip
def test_invalid_values_are_refused(saved: Manifest, tmp_path: Path, changes: dict[str, Any]) -> None:
    forge(tmp_path, changes)
    with pytest.raises(StorageError):
        read_manifest(tmp_path)


def test_a_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound):
        read_manifest(tmp_path)


def test_a_manifest_of_a_version_before_0_5_is_refused(saved: Manifest, tmp_path: Path) -> None:
    forge(tmp_path, {"version": 2})
    with pytest.raises(StorageError, match=rf"{MANIFEST} was written by version 0\.4 .*0\.5\.0") as caught:
        read_manifest(tmp_path)
    assert not isinstance(caught.value, CorruptStorage)
    remove_other_cuts(tmp_path)
    assert (tmp_path / saved.cut).is_dir(), "the version that wrote it can still load it"

"""JSON files are replaced atomically, and damage is an error that names the file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage import checked_json
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object


def test_objects_are_read_as_they_were_written(tmp_path: Path) -> None:
    path, other = tmp_path / "run.json", tmp_path / "other"
    other.write_text("precious")
    link = Path.hardlink_to if sys.platform == "win32" else Path.symlink_to  # which needs a privilege there
    link(path.with_name("run.json.unfinished"), other)  # by another process
    for values in ({"run": "a"}, {"run": "é", "numbers": [1, 2]}):
        write_object(path, with_checksum(values))
        assert without_checksum(read_object(path), path) == values
    assert sorted(os.listdir(tmp_path)) == ["other", "run.json"]
    assert other.read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"{}" + b" " * 200, b'{"run": "a", "checksum": 3}'])
def test_damaged_files_are_errors(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_json, "MAX_NBYTES", 100)
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(CorruptStorage, match=r"run\.json"):
        without_checksum(read_object(path), path)

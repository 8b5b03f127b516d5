"""``sb3-compressed verify`` reports damage as text, JSON and exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import writer
from commands import flip_a_bit, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a buffer."""
    writer.filled(70, storage=tmp_path / "buffer").close()
    return tmp_path / "buffer"


def test_undamaged_folder_passes(folder: Path) -> None:
    done = run("verify", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{folder}: no damage found\n"
    assert json.loads(run("verify", folder, "--json").stdout) == {"path": str(folder), "damages": []}


def test_damage_is_reported_with_exit_code_1(folder: Path) -> None:
    file = flip_a_bit(folder)
    done = run("verify", folder, "--json")
    assert done.returncode == 1
    assert any(str(file) in line for line in json.loads(done.stdout)["damages"])
    done = run("verify", folder)
    assert done.returncode == 1
    assert str(file) in done.stdout
    assert done.stdout.endswith("repair=True) recovers the undamaged parts\n")

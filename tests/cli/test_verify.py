"""``sb3-compressed verify`` reports damage as text, JSON and exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import writer
from commands import flip_a_bit, run

from sb3_compressed.storage import verify


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


def test_much_damage_is_summarized_unless_verbose(folder: Path) -> None:
    *files, _ = sorted(folder.glob("*.log"))  # not the state, without which no payload is found
    for file in files:
        data = bytearray(file.read_bytes())
        for position in range(200, len(data), 500):
            data[position] ^= 4
        file.write_bytes(data)
    found = verify(folder)
    assert len(found) > 10
    short, long = run("verify", folder), run("verify", folder, "--verbose")
    assert short.returncode == long.returncode == 1
    assert f"{len(found):,} damaged parts in {len(files)} file" in short.stdout
    assert "--verbose" in short.stdout
    assert short.stdout.count(" is damaged") < 10 < long.stdout.count(" is damaged")
    assert len(json.loads(run("verify", folder, "--json").stdout)["damages"]) == len(found)

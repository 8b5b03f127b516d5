"""``sb3-compressed verify`` finds damage and says so to people, machines and shells."""

from __future__ import annotations

import json
from pathlib import Path

import writer
from commands import run

from sb3_compressed.storage import verify

N_STEPS = 70


def saved(folder: Path) -> Path:
    buffer = writer.new_buffer(storage=folder)
    for number in range(1, N_STEPS + 1):
        writer.add_step(buffer, number)
    buffer.close()
    return folder


def test_a_folder_that_is_whole(tmp_path: Path) -> None:
    folder = saved(tmp_path / "whole")
    done = run("verify", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "everything is as it was written" in done.stdout
    assert json.loads(run("verify", folder, "--json").stdout) == {"path": str(folder), "damages": []}


def test_a_folder_that_is_damaged(tmp_path: Path) -> None:
    folder = saved(tmp_path / "damaged")
    file = max(folder.glob("*.log"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    done = run("verify", folder, "--json")
    assert done.returncode == 1
    assert any(str(file) in line for line in json.loads(done.stdout)["damages"])


def test_no_folder_of_a_buffer(tmp_path: Path) -> None:
    done = run("verify", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {tmp_path} holds no buffer, nor checkpoints of one\n"


def test_a_folder_that_is_written_to_meanwhile(tmp_path: Path) -> None:
    """What is being written is no damage, nor is what the process that writes has deleted."""
    folder = tmp_path / "growing"
    with writer.start("storage", folder) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(30):
            assert verify(folder) == []
        process.kill()
    assert verify(folder) == [], "nor is what a killed process left"


def test_much_damage_is_summed_up_and_listed_on_request(tmp_path: Path) -> None:
    folder = saved(tmp_path / "damaged")
    files = sorted(folder.glob("*.log"))
    for file in files:
        data = bytearray(file.read_bytes())
        for place in range(200, len(data), 500):
            data[place] ^= 4
        file.write_bytes(data)
    found = verify(folder)
    assert len(found) > 10
    short, long = run("verify", folder), run("verify", folder, "--verbose")
    assert short.returncode == long.returncode == 1
    assert f"{len(found):,} damaged parts in {len(files)} file" in short.stdout
    assert "--verbose" in short.stdout
    assert short.stdout.count(" is damaged") < 10 < long.stdout.count(" is damaged")
    assert len(json.loads(run("verify", folder, "--json").stdout)["damages"]) == len(found)

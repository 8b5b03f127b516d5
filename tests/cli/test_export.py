"""``sb3-compressed export``: Minari reads what was stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import writer
from commands import run

from sb3_compressed.datasets import trajectories

minari = pytest.importorskip("minari", reason="a Minari that stores images without loss needs Python 3.11")


def test_minari_reads_what_was_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    buffer = writer.new_buffer(storage=tmp_path / "buffer")
    for number in range(1, 50):
        writer.add_step(buffer, number)
    buffer.flush()
    command = ["export", tmp_path / "buffer", "--minari", "test/mine-v0", "--author", "Ada", "--algorithm", "random"]
    datasets = {"MINARI_DATASETS_PATH": str(tmp_path / "datasets")}
    done = run(*command, "--json", **datasets)
    assert (done.returncode, done.stderr) == (0, ""), "no bar where there is no terminal, no warnings"
    told = json.loads(done.stdout)
    stored = [*trajectories(buffer)]
    assert told["dataset"] == "test/mine-v0"
    assert (told["episodes"], told["steps"]) == (len(stored), 49 * writer.N_ENVS)
    assert Path(told["folder"]).is_relative_to(tmp_path / "datasets")
    dataset = minari.load_dataset("test/mine-v0")
    assert dataset.storage.metadata["author"] in ("Ada", {"Ada"}, ["Ada"])
    for episode, trajectory in zip(dataset.iterate_episodes(), stored, strict=True):
        np.testing.assert_array_equal(episode.observations, trajectory.observations)
        np.testing.assert_array_equal(episode.rewards, trajectory.rewards)
    done = run(*command, **datasets)
    assert (done.returncode, done.stdout) == (1, "")
    assert "already exists" in done.stderr


def test_names_are_looked_at_before_anything_is_written(tmp_path: Path) -> None:
    buffer = writer.new_buffer(storage=tmp_path / "buffer")
    writer.add_step(buffer, 1)
    buffer.close()
    done = run("export", tmp_path / "buffer", "--minari", "no name", MINARI_DATASETS_PATH=str(tmp_path / "datasets"))
    assert done.returncode == 1
    assert "Malformed dataset ID: no name" in done.stderr
    assert not [*(tmp_path / "datasets").rglob("*.hdf5")]
    assert run("export", tmp_path / "buffer").returncode == 2, "a name is needed"

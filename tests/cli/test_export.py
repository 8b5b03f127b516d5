"""``sb3-compressed export`` writes a dataset that Minari reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import writer
from commands import error_of, run, usage_error_of

from sb3_compressed.datasets import trajectories


def test_exported_dataset_equals_the_stored_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari", reason="lossless images in Minari require Python 3.11")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    buffer = writer.filled(49, storage=tmp_path / "buffer")
    buffer.flush()
    command = ["export", tmp_path / "buffer", "--minari", "test/mine-v0", "--author", "Ada", "--algorithm", "random"]
    datasets = {"MINARI_DATASETS_PATH": str(tmp_path / "datasets")}
    done = run(*command, "--json", **datasets)
    assert (done.returncode, done.stderr) == (0, ""), "no progress bar, no warnings"
    result = json.loads(done.stdout)
    stored = [*trajectories(buffer)]
    assert result["dataset"] == "test/mine-v0"
    assert (result["episodes"], result["steps"]) == (len(stored), 49 * writer.N_ENVS)
    assert Path(result["folder"]).is_relative_to(tmp_path / "datasets")
    dataset = minari.load_dataset("test/mine-v0")
    assert dataset.storage.metadata["author"] in ("Ada", {"Ada"}, ["Ada"])
    for episode, trajectory in zip(dataset.iterate_episodes(), stored, strict=True):
        np.testing.assert_array_equal(episode.observations, trajectory.observations)
        np.testing.assert_array_equal(episode.rewards, trajectory.rewards)
    assert "already exists" in error_of(*command)


def test_the_name_of_the_dataset_is_required(tmp_path: Path) -> None:
    assert "Missing option '--minari'" in usage_error_of("export", tmp_path / "buffer")

"""``sb3-compressed export`` writes a dataset that Minari reads, or a file of d3rlpy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import writer
from commands import error_of, run, usage_error_of
from d3rlpy_episodes import read_file

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


def test_invalid_dataset_name_is_an_error_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari", reason="lossless images in Minari require Python 3.11")
    writer.filled(1, storage=tmp_path / "buffer").close()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    for name in ("no name", "space/badname", ""):
        message = error_of("export", tmp_path / "buffer", "--minari", name)
        assert message.startswith(f"malformed dataset ID {name!r}: use name-v0 or namespace/name-v0")
        assert "\n" not in message
    assert not [*(tmp_path / "datasets").rglob("*.hdf5")]


def test_exported_file_of_d3rlpy_contains_the_stored_episodes(tmp_path: Path) -> None:
    buffer = writer.filled(49, storage=tmp_path / "buffer")
    buffer.flush()
    done = run("export", tmp_path / "buffer", "--d3rlpy", tmp_path / "new.h5", "--gzip", 1, "--json")
    assert (done.returncode, done.stderr) == (0, ""), "no progress bar, no warnings"
    result, stored = json.loads(done.stdout), [*trajectories(buffer)]
    assert (result["episodes"], result["steps"]) == (len(stored), 49 * writer.N_ENVS)
    assert result["nbytes"] == (tmp_path / "new.h5").stat().st_size
    for episode, trajectory in zip(read_file(tmp_path / "new.h5"), stored, strict=True):
        n = len(trajectory)
        np.testing.assert_array_equal(episode.observations[:n], trajectory.observations[:n])
        np.testing.assert_array_equal(episode.rewards[:n, 0], trajectory.rewards)
    assert "exists already" in error_of("export", tmp_path / "buffer", "--d3rlpy", tmp_path / "new.h5")
    done = run("export", tmp_path / "buffer", "--d3rlpy", tmp_path / "other.h5")
    assert done.stdout.startswith(f"{tmp_path / 'other.h5'}: {len(stored)} episodes, {49 * writer.N_ENVS} steps, 0.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "pass either --minari ID or --d3rlpy FILE"),
        (["--minari", "a/b-v0", "--d3rlpy", "b.h5"], "pass either --minari ID or --d3rlpy FILE"),
        (["--minari", "a/b-v0", "--gzip", "1"], "--gzip needs --d3rlpy"),
        (["--d3rlpy", "b.h5", "--author", "Ada"], "--author needs --minari"),
    ],
)
def test_options_that_do_not_fit_together_are_an_error(tmp_path: Path, options: list[str], message: str) -> None:
    assert message in usage_error_of("export", tmp_path / "buffer", *options)

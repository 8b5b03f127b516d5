"""Minari datasets: Minari's reader returns exactly what was stored, and an import restores it bit for bit."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import Stream
from episodes import assert_same_episode, filled
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed import CorruptPayload, StorageError
from sb3_compressed.datasets import export_minari, import_minari, trajectories

minari = pytest.importorskip("minari", reason="a Minari that stores images without loss needs Python 3.11")


@pytest.fixture(autouse=True)
def _datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


@pytest.mark.parametrize(
    ("stream", "chunk_size"),
    [("atari", 512), ("atari-channel-last", 7), ("console", 7), ("bits", 512), ("pendulum", 7), ("discrete", 512)],
    indirect=["stream"],
)
def test_minari_reads_what_was_exported_and_an_import_restores_it(
    stream: Stream, chunk_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sb3_compressed.datasets.minari.CHUNK_SIZE", chunk_size)
    buffer = filled(stream, 120, 90)
    export_minari(buffer, "test/round-trip-v0", progress_bar=False, algorithm_name="random", author="a test")
    dataset = minari.load_dataset("test/round-trip-v0")
    stored = [*trajectories(buffer)]
    assert dataset.total_episodes == len(stored)
    assert dataset.total_steps == buffer.size() * buffer.n_envs == sum(map(len, stored))
    assert (dataset.observation_space, dataset.action_space) == stream[:2]
    for episode, trajectory in zip(dataset.iterate_episodes(), stored, strict=True):
        assert_same_episode(episode, trajectory)
    metadata = [*dataset.storage.get_episode_metadata(range(len(stored)))]
    assert [each["total_steps"] for each in metadata] == [len(each) for each in stored]
    assert [bool(each["has_end"]) for each in metadata] == [each.has_end for each in stored]
    imported = import_minari(dataset, progress_bar=False, device="cpu")
    assert type(imported) is type(buffer)
    for ours, theirs in zip(trajectories(imported), stored, strict=True):
        assert_same_episode(ours, theirs)


def test_nothing_is_left_of_an_export_that_fails(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, compression_method="zstd3", frame_stack=4)
    slots = buffer.observations.slots
    whole = slots[40, 0]
    slots[40, 0] = (*whole[:-1], b"!")
    with pytest.raises(CorruptPayload):
        export_minari(buffer, "test/failed-v0", progress_bar=False)
    assert not [*tmp_path.rglob("failed-v0")]
    slots[40, 0] = whole
    export_minari(buffer, "test/failed-v0", progress_bar=False)
    with pytest.raises(ValueError, match="failed-v0"):
        export_minari(buffer, "test/failed-v0", progress_bar=False)
    assert minari.load_dataset("test/failed-v0").total_steps == buffer.size() * buffer.n_envs, "it is still there"


@pytest.mark.parametrize(("stream", "factor"), [("pendulum", 2), ("cart", 1)], indirect=["stream"])
def test_actions_are_unscaled_to_the_range_of_their_space_if_it_has_one(stream: Stream, factor: int) -> None:
    buffer = filled(stream)
    if factor == 2:  # actions of Pendulum are in [-2, 2]
        buffer.actions[...] = np.clip(buffer.actions, -2, 2) / 2
    dataset = export_minari(buffer, "test/unscaled-v0", unscale_actions=True, progress_bar=False)
    episode, trajectory = next(iter(dataset.iterate_episodes())), next(trajectories(buffer))
    np.testing.assert_allclose(episode.actions, trajectory.actions * factor, rtol=1e-5)


def test_import_adds_to_an_existing_buffer(stream: Stream) -> None:
    buffer = filled(stream, 40)
    dataset = export_minari(buffer, "test/into-v0", progress_bar=False)
    theirs = ReplayBuffer(50, *stream[:2], device="cpu")
    assert import_minari(dataset, theirs, progress_bar=False) is theirs
    newest = [*trajectories(buffer)][-1]
    np.testing.assert_array_equal([*trajectories(theirs)][-1].observations, newest.observations)
    with pytest.raises(ValueError, match=r"the buffer must have n_envs=1, .* got n_envs=4"):
        import_minari(dataset, buffer, progress_bar=False)


def test_empty_buffers_and_existing_datasets_raise(stream: Stream) -> None:
    with pytest.raises(ValueError, match="cannot export an empty buffer"):
        export_minari(filled(stream, 0), "test/empty-v0", progress_bar=False)
    export_minari(filled(stream, 5), "test/there-v0", progress_bar=False)
    with pytest.raises(ValueError, match="already"):
        export_minari(filled(stream, 5), "test/there-v0", progress_bar=False)


def test_relative_folders_of_minari_raise_before_anything_is_written(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", "datasets")
    with pytest.raises(ValueError, match="relative path: MINARI_DATASETS_PATH=datasets"):
        export_minari(filled(stream, 5), "test/relative-v0", progress_bar=False)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["badname", "test/badname", "no name-v0", "-v0", ""])
def test_malformed_names_raise_before_anything_is_written(name: str, stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"malformed dataset ID {name!r}: use name-v0 or namespace/name-v0"):
        export_minari(filled(stream, 5), name, progress_bar=False)
    assert not [*tmp_path.rglob("*.hdf5")]


def test_export_without_metadata_does_not_warn(stream: Stream) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export_minari(filled(stream, 5), "test/quiet-v0", progress_bar=False)
    assert not [str(warning.message) for warning in caught]


def test_progress_bars_are_shown_by_default(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = export_minari(filled(stream, 20), "test/bar-v0")
    assert "exporting" in capsys.readouterr().err
    import_minari(dataset, device="cpu")
    assert "importing" in capsys.readouterr().err


@pytest.mark.parametrize("stream", ["pendulum"], indirect=True)
@pytest.mark.parametrize("difference", [-7, 7])
def test_a_number_of_steps_that_contradicts_the_episodes_is_an_error(difference: int, stream: Stream) -> None:
    export_minari(filled(stream), "test/wrong-v0", progress_bar=False)
    dataset = minari.load_dataset("test/wrong-v0")
    dataset.storage.update_metadata({"total_steps": dataset.total_steps + difference})
    with pytest.raises(StorageError, match="declares"):
        import_minari("test/wrong-v0", progress_bar=False, device="cpu")

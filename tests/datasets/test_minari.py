"""Minari datasets: Minari's reader returns exactly what was stored, and an import restores it bit for bit."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from episodes import assert_same_episode, filled
from gathering import damage
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


def d3rlpy_transitions(episode: SimpleNamespace) -> Iterator[tuple[Any, ...]]:
    """Yield the transitions of an ``Episode`` of d3rlpy, as ``BasicTransitionPicker`` of d3rlpy 2.8.1 returns them.

    Source: https://github.com/takuseno/d3rlpy, ``d3rlpy/dataset/transition_pickers.py``, and ``transition_count`` in
    ``d3rlpy/dataset/components.py``.
    """
    n_rows = len(episode.actions)
    for row in range(n_rows if episode.terminated else n_rows - 1):
        is_terminal = episode.terminated and row == n_rows - 1
        observation = episode.observations[row]
        next_observation = np.zeros_like(observation) if is_terminal else episode.observations[row + 1]
        yield observation, episode.actions[row], episode.rewards[row], next_observation, is_terminal


@pytest.mark.parametrize(
    ("stream", "is_discrete"), [("atari", True), ("cart", True), ("pendulum", False)], indirect=["stream"]
)
def test_the_recipe_of_the_faq_gives_d3rlpy_all_transitions(
    stream: Stream, is_discrete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = filled(stream, 120, 90)
    export_minari(buffer, "pong/mine-v0", progress_bar=False)
    faq = (Path(__file__).parents[2] / "docs" / "faq.md").read_text(encoding="utf-8")
    [recipe] = re.findall(r"^```\n(import d3rlpy\n.*?)^```", faq, re.DOTALL | re.MULTILINE)
    if not is_discrete:  # as its comments say
        recipe = recipe.replace("ActionSpace.DISCRETE", "ActionSpace.CONTINUOUS")
        recipe = recipe.replace("action_space.n)", "action_space.shape[0])")
    d3rlpy = SimpleNamespace(  # the names that the recipe uses
        ActionSpace=SimpleNamespace(DISCRETE="discrete", CONTINUOUS="continuous"),
        dataset=SimpleNamespace(
            Episode=lambda observations, actions, rewards, terminated: SimpleNamespace(
                observations=observations, actions=actions, rewards=rewards, terminated=terminated
            ),
            InfiniteBuffer=lambda: None,
            ReplayBuffer=lambda storage, **arguments: SimpleNamespace(**arguments),
        ),
    )
    monkeypatch.setitem(sys.modules, "d3rlpy", d3rlpy)
    namespace: dict[str, Any] = {}
    exec(recipe, namespace)
    theirs, ours = namespace["buffer"], [*trajectories(buffer)]
    expected = ("discrete", stream[1].n) if is_discrete else ("continuous", 1)  # type: ignore[attr-defined]
    assert (theirs.action_space, theirs.action_size) == expected
    assert len({episode.terminated for episode in theirs.episodes}) == 2 or not is_discrete
    for episode, trajectory in zip(theirs.episodes, ours, strict=True):
        assert episode.observations.dtype == stream[0].dtype
        assert episode.actions.dtype == stream[1].dtype
        assert episode.rewards.dtype == np.float32
        found = [*d3rlpy_transitions(episode)]
        assert len(found) == len(trajectory)
        for step, (observation, action, reward, next_observation, is_terminal) in enumerate(found):
            np.testing.assert_array_equal(observation, trajectory.observations[step])
            np.testing.assert_array_equal(action, trajectory.actions[step].reshape(-1))
            assert reward.tolist() == [trajectory.rewards[step]]
            assert is_terminal == trajectory.terminations[step]
            if not is_terminal:  # algorithms do not use it
                np.testing.assert_array_equal(next_observation, trajectory.observations[step + 1])


def test_nothing_is_left_of_an_export_that_fails(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, compression_method="zstd3", frame_stack=4)
    whole = buffer.observations.references[40, 0]
    damage(buffer.observations, 40, 0)
    with pytest.raises(CorruptPayload):
        export_minari(buffer, "test/failed-v0", progress_bar=False)
    assert not [*tmp_path.rglob("failed-v0")]
    buffer.observations.references[40, 0] = whole
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


def test_warnings_of_an_import_point_at_its_caller(stream: Stream) -> None:
    export_minari(filled(stream, 40), "test/warns-v0", progress_bar=False)
    options: dict[str, Any] = {"compression_method": "zstd", "decompression_kwargs": {}, "progress_bar": False}
    with pytest.warns(DeprecationWarning, match="decompression_kwargs") as caught:
        import_minari("test/warns-v0", **options)
    assert [warning.filename for warning in caught if warning.category is DeprecationWarning] == [__file__]


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


@pytest.mark.parametrize("name", ["test/badname", ""])
def test_malformed_names_raise_before_anything_is_written(name: str, stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"malformed dataset ID {name!r}: use name-v0 or namespace/name-v0"):
        export_minari(filled(stream, 5), name, progress_bar=False)
    assert not [*tmp_path.rglob("*.hdf5")]


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

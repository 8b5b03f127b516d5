"""Minari datasets: what Minari's own reader finds is what was stored, and comes back bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from gymnasium import spaces
from programs import run
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    export_minari,
    import_minari,
    trajectories,
)

minari = pytest.importorskip("minari", reason="a Minari that stores images without loss needs Python 3.11")

# Minari recommends to tell more about a dataset.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")


@pytest.fixture(autouse=True)
def _datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def filled(stream: Stream, n_steps: int = 120, rows: int = 90) -> Any:
    space, action_space, n_envs, transitions = stream
    cls = CompressedDictReplayBuffer if isinstance(space, spaces.Dict) else CompressedReplayBuffer
    buffer = cls(rows * n_envs, space, action_space, device="cpu", n_envs=n_envs)
    for transition in transitions[:n_steps]:
        transition.add_to(buffer)
    return buffer


def hold_equal(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            hold_equal(ours[key], theirs[key])
    else:
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


@pytest.mark.parametrize("steps", [7, 512])
@pytest.mark.parametrize(
    "stream", ["atari", "atari-channel-last", "console", "bits", "pendulum", "discrete"], indirect=True
)
def test_a_round_trip_through_minaris_own_reader(stream: Stream, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_compressed.datasets.minari.STEPS", steps)
    buffer = filled(stream)
    export_minari(buffer, "test/round-trip-v0", progress_bar=False, algorithm_name="random", author="a test")
    dataset = minari.load_dataset("test/round-trip-v0")
    stored = [*trajectories(buffer)]
    assert dataset.total_episodes == len(stored)
    assert dataset.total_steps == buffer.size() * buffer.n_envs == sum(map(len, stored))
    assert (dataset.observation_space, dataset.action_space) == stream[:2]
    for episode, trajectory in zip(dataset.iterate_episodes(), stored, strict=True):
        hold_equal(episode.observations, trajectory.observations)
        for name in ("actions", "rewards", "terminations", "truncations"):
            hold_equal(getattr(episode, name), getattr(trajectory, name))
    told = [*dataset.storage.get_episode_metadata(range(len(stored)))]
    assert [each["total_steps"] for each in told] == [len(each) for each in stored]
    assert [bool(each["has_end"]) for each in told] == [each.has_end for each in stored]
    back = import_minari(dataset, progress_bar=False, device="cpu")
    assert type(back) is type(buffer)
    for ours, theirs in zip(trajectories(back), stored, strict=True):
        hold_equal(ours.observations, theirs.observations)
        for name in ("actions", "rewards", "terminations", "truncations"):
            hold_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("stream", ["pendulum"], indirect=True)
def test_scaled_actions_come_back_to_their_range(stream: Stream) -> None:
    buffer = filled(stream)  # of Pendulum, whose actions are -2 to 2
    buffer.actions[...] = np.clip(buffer.actions, -2, 2) / 2
    dataset = export_minari(buffer, "test/unscaled-v0", unscale_actions=True, progress_bar=False)
    episode, trajectory = next(iter(dataset.iterate_episodes())), next(trajectories(buffer))
    np.testing.assert_allclose(episode.actions, trajectory.actions * 2, rtol=1e-5)


def test_a_dataset_goes_to_a_buffer_that_there_is(stream: Stream) -> None:
    buffer = filled(stream, 40)
    dataset = export_minari(buffer, "test/into-v0", progress_bar=False)
    theirs = ReplayBuffer(50, *stream[:2], device="cpu")
    assert import_minari(dataset, theirs, progress_bar=False) is theirs
    newest = [*trajectories(buffer)][-1]
    np.testing.assert_array_equal([*trajectories(theirs)][-1].observations, newest.observations)
    with pytest.raises(ValueError, match=r"one environment with .* the buffer of 4"):
        import_minari(dataset, buffer, progress_bar=False)


def test_what_cannot_be_exported_says_why(stream: Stream) -> None:
    with pytest.raises(ValueError, match="nothing in the buffer"):
        export_minari(filled(stream, 0), "test/empty-v0", progress_bar=False)
    export_minari(filled(stream, 5), "test/there-v0", progress_bar=False)
    with pytest.raises(ValueError, match="already"):
        export_minari(filled(stream, 5), "test/there-v0", progress_bar=False)


def test_progress_is_shown(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = export_minari(filled(stream, 20), "test/bar-v0")
    assert "exporting" in capsys.readouterr().err
    import_minari(dataset, device="cpu")
    assert "importing" in capsys.readouterr().err


BOUNDED = """
import sys
from memory import memory_of_process, with_one_episode
from sb3_compressed import export_minari
size = int(sys.argv[1])
export_minari(with_one_episode(size), f"test/bounded{size}-v0", progress_bar=False)
print(memory_of_process("VmHWM"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of a process's memory")
@pytest.mark.slow
def test_exporting_takes_bounded_memory() -> None:
    sizes = 1024, 8192  # one episode of 29 or 231 MB
    peaks = [int(run(BOUNDED, size).split()[-1]) for size in sizes]
    assert peaks[1] - peaks[0] < 80_000_000

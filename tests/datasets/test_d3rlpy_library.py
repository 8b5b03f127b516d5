"""d3rlpy itself reads what this package writes, has the same transitions, and trains on them.

d3rlpy requires another version of Gymnasium than other tests, so it has an environment of its own: ``make d3rlpy``.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from d3rlpy_episodes import Episode, new_episodes, transitions, write_file
from episodes import filled
from gymnasium import spaces

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.datasets import export_d3rlpy, import_d3rlpy, to_d3rlpy, trajectories

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of gym, which d3rlpy imports
    d3rlpy = pytest.importorskip("d3rlpy", reason="d3rlpy requires Gymnasium 1.0.0: `make d3rlpy` runs these tests")
dataset = d3rlpy.dataset

KINDS = ["frames", "vectors", "tuples"]


def theirs(episodes: list[Episode]) -> list[Any]:
    """Return the episodes as d3rlpy's."""
    return [dataset.Episode(each.observations, each.actions, each.rewards, each.terminated) for each in episodes]


def buffer_of(episodes: list[Any], n_frames: int = 1, limit: int = 1000) -> Any:
    """Return a buffer of d3rlpy."""
    return dataset.create_fifo_replay_buffer(
        limit, episodes, transition_picker=dataset.FrameStackTransitionPicker(n_frames)
    )


def transitions_of(buffer: Any) -> list[Any]:
    """Return all transitions of a buffer of d3rlpy."""
    return [buffer.transition_picker(*buffer.buffer[index]) for index in range(buffer.transition_count)]


def parts(observation: Any) -> list[Any]:
    return [*observation] if isinstance(observation, list | tuple) else [observation]


def assert_same_transitions(ours: Any, found: list[Any]) -> None:
    """Assert that a replay buffer contains the transitions of d3rlpy, in their order."""
    assert ours.size() == len(found)
    is_dict = isinstance(ours.observation_space, spaces.Dict)
    for row, expected in enumerate(found):
        for stored, observation in (
            (ours.observations, expected.observation),
            (ours.next_observations, expected.next_observation),
        ):
            of_row = [stored[key][row, 0] for key in ours.observation_space] if is_dict else [stored[row, 0]]
            for part, value in zip(of_row, parts(observation), strict=True):
                assert part.dtype == value.dtype
                np.testing.assert_array_equal(part, value)
        np.testing.assert_array_equal(ours.actions[row, 0], expected.action)
        assert ours.rewards[row, 0] == expected.reward
        assert ours.dones[row, 0] - ours.timeouts[row, 0] == expected.terminal


@pytest.mark.parametrize("kind", KINDS)
def test_d3rlpy_reads_the_files_of_the_other_tests(kind: str, tmp_path: Path) -> None:
    episodes = new_episodes(kind)
    path = write_file(tmp_path / "new.h5", episodes)
    with path.open("rb") as file:
        loaded = dataset.io.load(dataset.Episode, file)
    for found, expected in zip(loaded, episodes, strict=True):
        for ours, values in zip(parts(found.observations), parts(expected.observations), strict=True):
            np.testing.assert_array_equal(ours, values)
        np.testing.assert_array_equal(found.actions, expected.actions)
        np.testing.assert_array_equal(found.rewards, expected.rewards)
        assert bool(found.terminated) is expected.terminated


@pytest.mark.parametrize("n_frames", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_d3rlpy_has_the_transitions_of_the_other_tests(kind: str, n_frames: int) -> None:
    episodes = new_episodes(kind)
    found = transitions_of(buffer_of(theirs(episodes), n_frames))
    for ours, (obs, next_obs, action, reward, terminated, _) in zip(
        found, transitions(episodes, n_frames), strict=True
    ):
        for values, wanted in ((ours.observation, obs), (ours.next_observation, next_obs)):
            for part, value in zip(parts(values), parts(wanted), strict=True):
                np.testing.assert_array_equal(part, value)
        assert (ours.action.tolist(), float(ours.reward[0]), ours.terminal) == (action.tolist(), reward, terminated)


@pytest.mark.parametrize("is_discrete", [True, False])
@pytest.mark.parametrize("n_frames", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_imports_have_the_transitions_of_d3rlpy(kind: str, n_frames: int, is_discrete: bool, tmp_path: Path) -> None:
    buffer = buffer_of(theirs(new_episodes(kind, is_discrete=is_discrete)), n_frames)
    with (tmp_path / "dumped.h5").open("w+b") as file:
        buffer.dump(file)
    for source in (buffer, buffer.episodes, tmp_path / "dumped.h5"):
        imported = import_d3rlpy(source, frame_stack=n_frames, progress_bar=False, device="cpu")
        assert_same_transitions(imported, transitions_of(buffer))


def test_episodes_that_are_being_recorded_are_imported(tmp_path: Path) -> None:
    signatures = {
        name: dataset.Signature(dtype=[np.dtype(dtype)], shape=[shape])
        for name, dtype, shape in (("observation", np.uint8, (1, 6, 5)), ("action", int, (1,)), ("reward", float, (1,)))
    }
    buffer = dataset.ReplayBuffer(
        dataset.FIFOBuffer(100),
        transition_picker=dataset.FrameStackTransitionPicker(4),
        writer_preprocessor=dataset.LastFrameWriterPreprocess(),
        action_space=d3rlpy.ActionSpace.DISCRETE,
        action_size=3,
        cache_size=50,
        **{f"{name}_signature": signature for name, signature in signatures.items()},
    )
    rng = np.random.default_rng(0)
    for step in range(20):
        buffer.append(rng.integers(0, 256, (4, 6, 5), np.uint8), int(rng.integers(3)), float(step))
        if step == 8:
            buffer.clip_episode(terminated=True)
    imported = import_d3rlpy(buffer, frame_stack=4, n_actions=3, progress_bar=False, device="cpu")
    assert imported.size() == 9 + 10
    assert_same_transitions(imported, transitions_of(buffer))


@pytest.mark.parametrize("gzip_level", [None, 1])
@pytest.mark.parametrize("stream", ["atari", "console", "bits", "pendulum", "cart", "discrete"], indirect=True)
def test_d3rlpy_has_the_transitions_of_exported_buffers(stream: Stream, gzip_level: int | None, tmp_path: Path) -> None:
    buffer = filled(stream, 80)
    path = tmp_path / "new.h5"
    n_episodes = export_d3rlpy(buffer, path, gzip_level=gzip_level, progress_bar=False)
    with path.open("rb") as file:
        loaded = dataset.ReplayBuffer.load(file, dataset.InfiniteBuffer())
    assert loaded.size() == n_episodes
    assert_exported(buffer, loaded)
    assert_exported(buffer, to_d3rlpy(buffer))


def assert_exported(buffer: Any, found: Any) -> None:
    """Assert that a buffer of d3rlpy has all transitions of a replay buffer."""
    expected = iter(transitions_of(found))
    is_dict = isinstance(buffer.observation_space, spaces.Dict)
    for episode in trajectories(buffer):
        observations = episode.observations
        keys = [*buffer.observation_space] if is_dict else []
        for step in range(len(episode)):
            transition = next(expected)
            for at, values in ((step, transition.observation), (step + 1, transition.next_observation)):
                stored = [observations[key][at] for key in keys] if keys else [observations[at]]
                for part, value in zip(stored, parts(values), strict=True):
                    is_last = at == len(episode) and episode.terminations[-1]
                    np.testing.assert_array_equal(value, np.zeros_like(value) if is_last else part.reshape(value.shape))
            np.testing.assert_array_equal(transition.action, np.atleast_1d(episode.actions[step]))
            assert transition.reward == episode.rewards[step]
            assert transition.terminal == episode.terminations[step]
    assert next(expected, None) is None


@pytest.mark.parametrize("stream", ["atari"], indirect=True)
def test_d3rlpy_stacks_the_frames_of_exported_buffers(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, 100, 400)
    export_d3rlpy(buffer, tmp_path / "frames.h5", frame_stack=4, progress_bar=False)
    with (tmp_path / "frames.h5").open("rb") as file:
        picker = dataset.FrameStackTransitionPicker(4)
        assert_exported(buffer, dataset.ReplayBuffer.load(file, dataset.InfiniteBuffer(), transition_picker=picker))
    in_memory = to_d3rlpy(buffer, frame_stack=4)
    assert_exported(buffer, in_memory)
    assert in_memory.dataset_info.action_size == stream[1].n  # type: ignore[attr-defined]
    assert in_memory.sample_transition_batch(8).observations.shape == (8, 4, 84, 84)
    assert in_memory.sample_trajectory_batch(2, 5).observations.shape == (2, 5, 4, 84, 84)
    again = import_d3rlpy(in_memory, frame_stack=4, progress_bar=False, device="cpu")
    assert_same_transitions(again, transitions_of(in_memory))


def test_continuous_actions_that_are_integers_stay_continuous() -> None:
    buffer = CompressedReplayBuffer(10, spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,)), device="cpu")
    for _ in range(5):
        buffer.add(np.zeros((1, 2)), np.zeros((1, 2)), np.ones((1, 3)), np.zeros(1), np.zeros(1), [{}])
    info = to_d3rlpy(buffer).dataset_info
    assert (info.action_space, info.action_size) == (d3rlpy.ActionSpace.CONTINUOUS, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("stream", ["atari-single", "pendulum"], indirect=True)
def test_d3rlpy_trains_on_exported_buffers(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, 60)
    is_image = len(stream[0].shape or ()) == 3
    export_d3rlpy(buffer, tmp_path / "new.h5", frame_stack=4 if is_image else None, progress_bar=False)
    picker = dataset.FrameStackTransitionPicker(4) if is_image else None
    loaded = dataset.ReplayBuffer.load(
        io.BytesIO((tmp_path / "new.h5").read_bytes()), dataset.InfiniteBuffer(), transition_picker=picker
    )
    config = d3rlpy.algos.DQNConfig(batch_size=4) if is_image else d3rlpy.algos.SACConfig(batch_size=4)
    logger = d3rlpy.logging.NoopAdapterFactory()
    algorithm = config.create(device="cpu:0")
    [(_, metrics)] = algorithm.fit(
        loaded, n_steps=3, n_steps_per_epoch=3, logger_adapter=logger, show_progress=False, save_interval=9
    )
    assert all(np.isfinite(value) for value in metrics.values())

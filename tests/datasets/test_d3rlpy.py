"""d3rlpy: imports have the transitions that d3rlpy has, and exports restore buffers bit for bit.

``test_d3rlpy_library.py`` tests the same with d3rlpy itself.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import Stream
from d3rlpy_episodes import (
    LENGTHS,
    N_ACTIONS,
    Episode,
    new_episodes,
    read_file,
    transitions,
    write_file,
)
from episodes import assert_restored, filled
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
)
from sb3_compressed.datasets import export_d3rlpy, import_d3rlpy, trajectories
from sb3_compressed.errors import CheckpointNotFound, CorruptStorage, StorageError


def imported(source: Any, buffer: ReplayBuffer | None = None, **options: Any) -> Any:
    if buffer is None:
        options |= {"device": "cpu"}
    return import_d3rlpy(source, buffer, progress_bar=False, **options)


def assert_contains(buffer: Any, expected: list[tuple[Any, ...]], keys: tuple[str, ...] = ()) -> None:
    """Assert that a buffer contains transitions, in their order."""
    n = len(expected)
    assert buffer.size() == n
    for name, index in (("observations", 0), ("next_observations", 1)):
        stored = getattr(buffer, name)
        if not keys:
            np.testing.assert_array_equal(stored[:n][:, 0], [step[index] for step in expected])
        for part, key in enumerate(keys):
            np.testing.assert_array_equal(stored[key][:n][:, 0], [step[index][part] for step in expected])
    np.testing.assert_array_equal(buffer.actions[:n, 0], [step[2] for step in expected])
    np.testing.assert_array_equal(buffer.rewards[:n, 0], np.array([step[3] for step in expected], np.float32))
    terminated, cut = (np.array([step[i] for step in expected]) for i in (4, 5))
    np.testing.assert_array_equal(buffer.dones[:n, 0], terminated | cut)
    np.testing.assert_array_equal(buffer.timeouts[:n, 0], cut)


def in_file(episodes: list[Episode], folder: Path) -> Path:
    return write_file(folder / "episodes.h5", episodes)


def in_memory(episodes: list[Episode], folder: Path) -> list[Episode]:
    return episodes


# -- import --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("piece_nbytes", "is_discrete"), [(1, True), (1000, False)])
@pytest.mark.parametrize("kind", ["frames", "vectors"])
@pytest.mark.parametrize("stored", [in_file, in_memory])
@pytest.mark.parametrize("n_frames", [1, 4])
def test_imported_transitions_are_those_that_d3rlpy_has(
    stored: Callable[[list[Episode], Path], Any],
    kind: str,
    n_frames: int,
    piece_nbytes: int,
    is_discrete: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sb3_compressed.datasets.d3rlpy_episodes.PIECE_NBYTES", piece_nbytes)
    episodes = new_episodes(kind, is_discrete=is_discrete)
    buffer = imported(stored(episodes, tmp_path), frame_stack=n_frames)
    assert_contains(buffer, transitions(episodes, n_frames))
    if kind == "frames":
        assert buffer.observation_space == spaces.Box(0, 255, (2 * n_frames, 5, 4), np.uint8)
    else:
        assert buffer.observation_space == spaces.Box(-np.inf, np.inf, (3 * n_frames,), np.float32)
    assert buffer.action_space == (spaces.Discrete(N_ACTIONS) if is_discrete else spaces.Box(-1, 1, (2,)))


@pytest.mark.parametrize("n_frames", [1, 3])
@pytest.mark.parametrize("stored", [in_file, in_memory])
def test_tuples_become_dict_observations(
    stored: Callable[[list[Episode], Path], Any], n_frames: int, tmp_path: Path
) -> None:
    episodes = new_episodes("tuples")
    source, expected = stored(episodes, tmp_path), transitions(episodes, n_frames)
    buffer = imported(source, frame_stack=n_frames)
    assert type(buffer) is CompressedDictReplayBuffer
    assert_contains(buffer, expected, ("observation_0", "observation_1"))
    named = imported(source, frame_stack=n_frames, keys=["screen", "body"])
    assert_contains(named, expected, ("screen", "body"))
    assert [*named.observation_space.spaces] == ["screen", "body"]
    shapes = {"screen": (2 * n_frames, 5, 4), "body": (3 * n_frames,)}
    space = spaces.Dict(
        {
            "screen": spaces.Box(0, 255, shapes["screen"], np.uint8),
            "body": spaces.Box(-9, 9, shapes["body"], np.float32),
        }
    )
    theirs = DictReplayBuffer(100, space, spaces.Discrete(N_ACTIONS), device="cpu")
    imported(source, theirs, frame_stack=n_frames, keys=["screen", "body"])
    assert_contains(theirs, expected, ("screen", "body"))
    for keys in (["screen"], ["screen", "screen"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="expected 2 different keys"):
            imported(source, keys=keys)


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.uint16, np.float64])
def test_observations_keep_their_values_in_any_dtype(dtype: Any) -> None:
    values = np.random.default_rng(0).integers(0, 2, (9, 3)).astype(dtype)
    episode = Episode(values, np.zeros((9, 1), int), np.zeros((9, 1), np.float32), True)
    buffer = imported([episode])
    np.testing.assert_array_equal(buffer.observations[:9][:, 0], values)


def test_import_stops_after_n_steps(tmp_path: Path) -> None:
    episodes = new_episodes("frames")
    path, expected = in_file(episodes, tmp_path), transitions(episodes)
    for n_steps in (1, 6, 7, 8, 30, len(expected), 1000):
        buffer = imported(path, n_steps=n_steps)
        n = min(n_steps, len(expected))
        assert buffer.buffer_size == n
        *steps, last = expected[:n]
        assert_contains(buffer, [*steps, (*last[:5], not last[4])])


@pytest.mark.parametrize("cls", [ReplayBuffer, CompressedReplayBuffer, CompressedNStepReplayBuffer])
def test_import_adds_to_an_existing_buffer(cls: Any) -> None:
    episodes = new_episodes("frames")
    space = spaces.Box(0, 255, (2, 5, 4), np.uint8)
    buffer = cls(100, space, spaces.Discrete(9), device="cpu")
    assert imported(episodes, buffer) is buffer
    assert_contains(buffer, transitions(episodes))


def test_buffers_with_other_spaces_are_rejected() -> None:
    space, actions = spaces.Box(0, 255, (2, 5, 4), np.uint8), spaces.Discrete(N_ACTIONS)

    def new(space: Any = space, actions: Any = actions, **options: Any) -> Any:
        return CompressedReplayBuffer(90, space, actions, device="cpu", **options)

    others = [
        new(n_envs=3),
        new(spaces.Box(0, 255, (4, 5, 4), np.uint8)),
        new(spaces.Box(0, 255, (2, 5, 4), np.uint16)),
        new(actions=spaces.Discrete(N_ACTIONS - 1)),
        new(actions=spaces.Box(-1, 1, (2,))),
        new(actions=spaces.MultiDiscrete([9])),
        CompressedDictReplayBuffer(90, spaces.Dict({"screen": space}), actions, device="cpu"),
    ]
    for buffer in others:
        with pytest.raises(ValueError, match=r"the buffer must have n_envs=1, observations uint8 of shape \(2, 5, 4\)"):
            imported(new_episodes("frames"), buffer)
        assert not buffer.size()


def test_continuous_actions_may_have_another_range() -> None:
    episodes = doubled("vectors", is_discrete=False)
    buffer = imported(episodes, action_range=(-2, 2))
    assert buffer.action_space == spaces.Box(-2, 2, (2,))
    assert_contains(buffer, transitions(episodes))
    scaled = imported(episodes, action_range=(-2, 2), scale_actions=True)
    np.testing.assert_allclose(scaled.actions, buffer.actions / 2, rtol=1e-5, atol=1e-6)


def test_discrete_actions_may_be_floats() -> None:
    episodes = new_episodes("vectors")
    expected = transitions(episodes)
    for episode in episodes:
        episode.actions = episode.actions.astype(np.float32)
    assert_contains(imported(episodes, n_actions=6), expected)


def test_buffer_without_timeouts_is_not_cut() -> None:
    episodes = new_episodes("frames")
    buffer = imported(episodes, handle_timeout_termination=False)
    expected = transitions(episodes)
    np.testing.assert_array_equal(buffer.dones[: len(expected), 0], [step[4] for step in expected])


def test_progress_bars_are_shown_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    buffer = import_d3rlpy(new_episodes("frames"), device="cpu")
    assert "importing" in capsys.readouterr().err
    export_d3rlpy(buffer, tmp_path / "new.h5")
    assert "exporting" in capsys.readouterr().err


# -- export --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "piece_nbytes", "gzip_level"),
    [
        ("atari", 200_000, 1),
        ("atari-channel-last", 1 << 22, None),
        ("console", 200_000, 1),
        ("bits", 1, None),
        ("pendulum", 1, None),
        ("discrete", 1 << 22, 1),
    ],
    indirect=["stream"],
)
def test_import_restores_what_was_exported(
    stream: Stream, piece_nbytes: int, gzip_level: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sb3_compressed.datasets.d3rlpy_episodes.PIECE_NBYTES", piece_nbytes)
    buffer = filled(stream, 120, 90)
    n_episodes = export_d3rlpy(buffer, tmp_path / "new.h5", gzip_level=gzip_level, progress_bar=False)
    assert n_episodes == len([*trajectories(buffer)])
    assert [path.name for path in tmp_path.iterdir()] == ["new.h5"]
    restored = imported(tmp_path / "new.h5")
    assert type(restored) is type(buffer)
    assert (restored.observation_space, restored.action_space) == stream[:2]
    assert restored.size() == buffer.size() * buffer.n_envs
    assert_restored(restored, buffer)


@pytest.mark.parametrize(
    ("stream", "cls"), [("atari", CompressedReplayBuffer), ("atari-single", ReplayBuffer)], indirect=["stream"]
)
def test_frames_of_stacks_are_stored_once(stream: Stream, cls: Any, tmp_path: Path) -> None:
    buffer = filled(stream, 150, 160, cls)
    export_d3rlpy(buffer, tmp_path / "frames.h5", frame_stack=4, progress_bar=False)
    export_d3rlpy(buffer, tmp_path / "stacks.h5", progress_bar=False)
    restored = imported(tmp_path / "frames.h5")
    assert restored.observation_space == stream[0]
    assert_restored(restored, buffer)
    frames, stacks = read_file(tmp_path / "frames.h5"), read_file(tmp_path / "stacks.h5")
    for ours, theirs in zip(frames, stacks, strict=True):
        np.testing.assert_array_equal(ours.observations, theirs.observations[:, -1:])
    single = imported(tmp_path / "frames.h5", frame_stack=1)
    assert single.observation_space == spaces.Box(0, 255, (1, 84, 84), np.uint8)


def test_parts_of_dict_observations_are_stacked_too(tmp_path: Path) -> None:
    episodes = new_episodes("tuples")
    buffer = imported(episodes, frame_stack=3, keys=["z", "a"])
    export_d3rlpy(buffer, tmp_path / "frames.h5", frame_stack=3, progress_bar=False)
    restored = imported(tmp_path / "frames.h5")
    assert [*restored.observation_space.spaces] == ["z", "a"], "the order of the exported space"
    assert_restored(restored, buffer)
    spaces_of = restored.observation_space.spaces
    other = CompressedDictReplayBuffer(
        90, spaces.Dict({"a": spaces_of["a"], "z": spaces_of["z"]}), spaces.Discrete(N_ACTIONS), device="cpu"
    )
    assert_restored(imported(tmp_path / "frames.h5", other), buffer)
    renamed = imported(tmp_path / "frames.h5", keys=["first", "second"])
    assert [*renamed.observation_space.spaces] == ["first", "second"]
    whole = imported(tmp_path / "frames.h5", frame_stack=1)
    assert [*whole.observation_space.spaces] == ["z", "a"]


def test_episodes_that_did_not_terminate_have_a_row_for_their_last_observation(tmp_path: Path) -> None:
    buffer = CompressedReplayBuffer(20, spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)), device="cpu")
    rng = np.random.default_rng(0)
    steps = rng.uniform(-1, 1, (21, 1, 2)).astype(np.float32)
    for step in range(18):
        is_terminated, is_truncated = step == 4, step == 9
        done, infos = np.array([is_terminated or is_truncated]), [{"TimeLimit.truncated": is_truncated}]
        buffer.add(steps[step], steps[step + 1], np.array([[0.5]]), np.array([1.0]), done, infos)
    export_d3rlpy(buffer, tmp_path / "new.h5", progress_bar=False)
    terminated, truncated, unfinished = read_file(tmp_path / "new.h5")
    assert [each.terminated for each in (terminated, truncated, unfinished)] == [True, False, False]
    assert [len(each.actions) for each in (terminated, truncated, unfinished)] == [5, 6, 9]
    np.testing.assert_array_equal(terminated.observations, steps[:5, 0])
    np.testing.assert_array_equal(truncated.observations, steps[5:11, 0])
    np.testing.assert_array_equal(unfinished.observations, steps[10:19, 0])
    assert truncated.actions[:, 0].tolist() == [0.5] * 5 + [0.0]
    assert truncated.rewards[:, 0].tolist() == [1.0] * 5 + [0.0]


@pytest.mark.parametrize("stream", ["atari"], indirect=True)
def test_export_warns_where_the_ring_has_overwritten_frames(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, 120, 90)
    with pytest.warns(UserWarning, match=r"12 observations lose their older frames") as caught:
        export_d3rlpy(buffer, tmp_path / "frames.h5", frame_stack=4, progress_bar=False)
    assert caught[0].filename == __file__
    for ours, theirs in zip(trajectories(imported(tmp_path / "frames.h5")), trajectories(buffer), strict=True):
        n = len(theirs)
        first = 0 if theirs.has_begin else 3
        np.testing.assert_array_equal(ours.observations[first:n], theirs.observations[first:n])
        np.testing.assert_array_equal(ours.observations[:n, -1], theirs.observations[:n, -1])
        assert theirs.has_begin or not ours.observations[0, :-1].any()


@pytest.mark.parametrize("stream", ["pendulum"], indirect=True)
def test_actions_are_unscaled_and_scaled(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream)  # actions of Pendulum are in [-2, 2]
    buffer.actions[...] = np.clip(buffer.actions, -2, 2) / 2
    export_d3rlpy(buffer, tmp_path / "new.h5", unscale_actions=True, progress_bar=False)
    episode, trajectory = read_file(tmp_path / "new.h5")[0], next(trajectories(buffer))
    np.testing.assert_allclose(episode.actions[: len(trajectory)], trajectory.actions * 2, rtol=1e-5)
    restored = imported(tmp_path / "new.h5", scale_actions=True)
    np.testing.assert_allclose(next(trajectories(restored)).actions, trajectory.actions, rtol=1e-5, atol=1e-6)


def noise(n_steps: int = 5, **options: Any) -> CompressedReplayBuffer:
    """Return a buffer with observations that are no stacks."""
    buffer = CompressedReplayBuffer(
        10, spaces.Box(0, 255, (4, 6, 5), np.uint8), spaces.Discrete(3), device="cpu", **options
    )
    rng = np.random.default_rng(0)
    obs: NDArray[Any] = rng.integers(0, 256, (n_steps + 1, 1, 4, 6, 5), np.uint8)
    for step in range(n_steps):
        buffer.add(obs[step], obs[step + 1], np.array([1]), np.array([0.0]), np.array([False]), [{}])
    return buffer


def test_buffers_that_cannot_be_exported_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "new.h5"
    space = spaces.Box(0, 255, (4, 6, 5), np.uint8)

    def error(buffer: Any, **options: Any) -> str:
        with pytest.raises(ValueError, match=r".") as caught:
            export_d3rlpy(buffer, path, progress_bar=False, **options)
        assert not [*tmp_path.iterdir()]
        return str(caught.value)

    assert "add transitions first" in error(noise(0))
    assert "frame_stack must be at least 1, got 0" in error(noise(), frame_stack=0)
    assert "gzip_level must be from 0 to 9, got 10" in error(noise(), gzip_level=10)
    assert "must consist of 3 stacked frames, got Box" in error(noise(), frame_stack=3)
    assert "not stacks of 4 consecutive frames: pass frame_stack=None" in error(noise(), frame_stack=4)
    unsupported: list[spaces.Space[Any]] = [
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
        spaces.Discrete(3, start=1),
    ]
    for actions in unsupported:
        buffer = CompressedReplayBuffer(10, space, actions, device="cpu")
        obs = np.zeros((1, 4, 6, 5), np.uint8)
        buffer.add(obs, obs, np.asarray(actions.sample())[np.newaxis], np.zeros(1), np.zeros(1), [{}])
        assert "d3rlpy supports continuous actions, and discrete ones that start at 0" in error(buffer)


def test_first_observations_must_not_contain_earlier_frames(tmp_path: Path) -> None:
    buffer = CompressedReplayBuffer(10, spaces.Box(0, 255, (4, 6, 5), np.uint8), spaces.Discrete(3), device="cpu")
    obs = np.ones((1, 4, 6, 5), np.uint8)  # begins with copies of the first frame, as Gymnasium's wrapper does
    buffer.add(obs, obs, np.array([1]), np.zeros(1), np.ones(1), [{}])
    with pytest.raises(ValueError, match="an episode whose first observation contains earlier frames"):
        export_d3rlpy(buffer, tmp_path / "new.h5", frame_stack=4, progress_bar=False)
    assert not [*tmp_path.iterdir()]


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new.h5"
    path.write_text("something else")
    with pytest.raises(StorageError, match=r"new\.h5 exists already"):
        export_d3rlpy(noise(), path, progress_bar=False)
    assert path.read_text() == "something else"


@pytest.mark.parametrize("n_checks", [0, 1, 2])
def test_a_full_disk_is_an_error_and_leaves_nothing(
    n_checks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 crashes if it cannot write its caches, so some room stays free."""
    n_left = n_checks

    def usage(folder: Path) -> SimpleNamespace:
        nonlocal n_left
        assert folder == tmp_path, "the disk of the file"
        n_left -= 1
        return SimpleNamespace(free=1 << (40 if n_left >= 0 else 20))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(OSError, match="No space left") as caught:
        export_d3rlpy(noise(), tmp_path / "new.h5", progress_bar=False, gzip_level=1)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "new.h5.unfinished"))
    assert not [*tmp_path.iterdir()]


# -- damaged and untrusted files -----------------------------------------------------------------------------


def error_of(path: Path, kind: type[Exception] = StorageError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        imported(path, **options)
    return str(caught.value)


def test_errors_name_the_missing_or_damaged_file(tmp_path: Path) -> None:
    assert error_of(tmp_path / "missing.h5", CheckpointNotFound).endswith("missing.h5 is not a file")
    assert error_of(tmp_path, CheckpointNotFound).endswith("is not a file")
    path = in_file(new_episodes("frames"), tmp_path)
    intact = path.read_bytes()
    for content in (b"", b"no HDF5", intact[: len(intact) // 2]):
        path.write_bytes(content)
        assert error_of(path, CorruptStorage).startswith(f"{path} is damaged, or not an HDF5 file")


@pytest.mark.parametrize(
    "name", ["observations_2", "actions_2", "rewards_2", "terminated_2", "version", "num_episodes"]
)
def test_errors_name_the_dataset_that_is_missing_or_of_another_kind(name: str, tmp_path: Path) -> None:
    path = in_file(new_episodes("frames"), tmp_path)
    with h5py.File(path, "a") as file:
        del file[name]
    assert f"has no dataset '{name}'" in error_of(path)
    with h5py.File(path, "a") as file:
        file.create_group(name)
    assert f"'{name}' must be a dataset in the file itself" in error_of(path)
    with h5py.File(path, "a") as file:
        del file[name]
        file[name] = np.zeros(3, [("a", int)])
    assert f"'{name}' has the dtype" in error_of(path)


def test_datasets_in_other_files_are_refused(tmp_path: Path) -> None:
    path = in_file(new_episodes("frames"), tmp_path)
    other = write_file(tmp_path / "other.h5", new_episodes("frames"))
    (tmp_path / "secret").write_bytes(bytes(2 * 5 * 4 * LENGTHS[2]))
    shape = LENGTHS[2], 2, 5, 4

    def refuse(create: Callable[[Any], Any]) -> None:
        with h5py.File(path, "a") as file:
            if "observations_2" in file or file.get("observations_2", getlink=True) is not None:
                del file["observations_2"]
            create(file)
        assert "'observations_2' must be a dataset in the file itself" in error_of(path)

    refuse(lambda file: file.__setitem__("observations_2", h5py.ExternalLink(str(other), "observations_2")))
    refuse(lambda file: file.__setitem__("observations_2", h5py.SoftLink("/observations_0")))
    layout = h5py.VirtualLayout(shape, np.uint8)
    layout[:] = h5py.VirtualSource(str(other), "observations_2", shape)
    refuse(lambda file: file.create_virtual_dataset("observations_2", layout))
    raw = [(str(tmp_path / "secret"), 0, h5py.h5f.UNLIMITED)]
    refuse(lambda file: file.create_dataset("observations_2", shape, np.uint8, external=raw))


def test_columns_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    path = in_file(new_episodes("frames"), tmp_path)

    def replace(name: str, values: Any) -> None:
        with h5py.File(path, "a") as file:
            del file[name]
            file[name] = values

    n = LENGTHS[2]
    replace("rewards_2", np.zeros((n - 1, 1), np.float32))
    assert f"episode 2 has columns of different lengths: [{n - 1}, {n}]" in error_of(path, CorruptStorage)
    replace("rewards_2", np.zeros((n, 2), np.float32))
    assert "episode 2 has rewards of shape (2,), expected one per step" in error_of(path, ValueError)
    replace("rewards_2", np.float32(1))
    assert "'rewards_2' must be an array, got a single value" in error_of(path)
    replace("rewards_2", np.zeros((n, 1), np.float32))
    replace("observations_2", np.zeros((n, 2, 5, 3), np.uint8))
    assert "episode 2 has observations [((2, 5, 3)" in error_of(path, ValueError)
    replace("version", "2.0")
    assert "has version 2.0, expected 2.1" in error_of(path)
    replace("version", b"\xff")
    assert "expected 2.1" in error_of(path)
    replace("version", np.arange(3))
    assert "'version' has the dtype" in error_of(path)


def test_files_of_d3rlpy_1_are_refused_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["observations"] = file["actions"] = file["rewards"] = file["terminals"] = np.zeros((3, 1), np.float32)
    assert "is of d3rlpy 1" in error_of(tmp_path / "old.h5")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num_episodes", [1, 2], "must be one number, got int64 of shape (2,)"),
        ("num_episodes", np.nan, "must be one number, got float64 of shape ()"),
        ("num_episodes", -1, "num_episodes is -1, expected at least 0"),
        ("num_episodes", 0, "num_episodes is 0, but there are more"),
        ("num_episodes", 2, "num_episodes is 2, but there are more"),
        ("num_episodes", 1 << 62, "but there are fewer"),
        ("num_episodes", h5py.Empty("i8"), "must be one number, got int64 of shape None"),
        ("terminated_0", [True, False], "must be one number, got bool of shape (2,)"),
        ("terminated_0", 0.5, "must be one number, got float64 of shape ()"),
    ],
)
def test_numbers_that_are_something_else_are_damage(name: str, value: Any, reason: str, tmp_path: Path) -> None:
    path = in_file(new_episodes("frames"), tmp_path)
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = value
    message = error_of(path, CorruptStorage)
    assert str(path) in message
    assert reason in message


def test_damaged_links_are_damage(tmp_path: Path) -> None:
    """Names are looked up in structures of HDF5, which may be damaged as well."""
    path = in_file(new_episodes("frames"), tmp_path)
    intact, rng = path.read_bytes(), np.random.default_rng(0)
    n_damaged = 0
    for _ in range(50):
        content = np.frombuffer(intact, np.uint8).copy()
        content[rng.integers(0, 4096, 8)] = rng.integers(0, 256, 8)
        path.write_bytes(content.tobytes())
        try:
            imported(path)
        except (StorageError, ValueError):
            n_damaged += 1
    assert n_damaged > 10


@pytest.mark.parametrize(("name", "shape"), [("observations_0", (10**8, 4, 84, 84)), ("actions_0", (100, 10**7))])
def test_columns_that_the_file_cannot_contain_are_refused(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    path = in_file(new_episodes("frames"), tmp_path)
    with h5py.File(path, "r+") as file:
        del file[name]
        file.create_dataset(name, shape, np.uint8, chunks=(1, *shape[1:]))
    assert f"{name!r} declares {np.prod(shape):,} bytes, more than the file can contain" in error_of(
        path, CorruptStorage
    )


def test_compressed_observations_have_checksums(tmp_path: Path) -> None:
    path = tmp_path / "new.h5"
    export_d3rlpy(noise(), path, gzip_level=1, progress_bar=False)
    with h5py.File(path) as file:
        [offset] = [file["observations_0"].id.get_chunk_info(0).byte_offset]
    content = bytearray(path.read_bytes())
    content[offset + 40] ^= 1
    path.write_bytes(content)
    assert error_of(path, CorruptStorage).startswith(f"{path}: observations_0 is damaged")


def test_files_without_transitions_are_an_error(tmp_path: Path) -> None:
    assert "contains no transitions" in error_of(write_file(tmp_path / "none.h5", []))
    single = new_episodes("frames")[1]
    assert (len(single.actions), single.terminated) == (1, False)
    assert "contains no transitions" in error_of(write_file(tmp_path / "single.h5", [single]))


BOUND = {"shape": [1 << 40], "dtype": "|u1", "content": "AA=="}
HUGE = {"space": "Box", "low": BOUND, "high": BOUND}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("observation_space", HUGE, "observation_space does not fit rows of 480 bytes"),
        ("action_space", HUGE, "action_space does not fit rows of 8 bytes"),
        ("action_space", {"space": "Tuple"}, "space must be one of"),
        ("frame_stack", 0, "frame_stack"),
        ("frame_stack", 1 << 40, "frame_stack"),
    ],
)
def test_invalid_descriptions_are_an_error(field: str, value: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "new.h5"
    export_d3rlpy(imported(new_episodes("frames"), frame_stack=4), path, frame_stack=4, progress_bar=False)
    with h5py.File(path, "a") as file:
        text = file["sb3_compressed"][()]
        del file["sb3_compressed"]
        description = json.loads(text)
        if field == "observation_space":
            description["frame_stack"] = 12
        file["sb3_compressed"] = json.dumps({**description, field: value})
    message = error_of(path, CorruptStorage)
    assert message.startswith(f"{path}: the dataset 'sb3_compressed' is invalid: ")
    assert reason in message


def test_described_spaces_that_do_not_contain_the_actions_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "new.h5"
    export_d3rlpy(imported(new_episodes("frames")), path, progress_bar=False)
    with h5py.File(path, "a") as file:
        file["actions_0"][0] = 17
    assert "actions from 0 to 17 of shape (1,) are not in Discrete(5)" in error_of(path)
    assert imported(path, n_actions=18).action_space == spaces.Discrete(18)


def test_actions_are_validated_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scale_actions is for continuous actions"):
        imported(new_episodes("vectors"), scale_actions=True, storage=tmp_path / "buffer")
    assert not (tmp_path / "buffer").exists()


def doubled(kind: str, **options: Any) -> list[Episode]:
    """Return episodes with actions that are twice as large."""
    episodes = new_episodes(kind, **options)
    for episode in episodes:
        episode.actions = episode.actions * 2
    return episodes


def with_action(value: Any, dtype: Any) -> list[Episode]:
    """Return episodes of which the first one begins with another action."""
    episodes = new_episodes("vectors", is_discrete=dtype is not np.float32)
    for episode in episodes:
        episode.actions = episode.actions[:, :1].astype(dtype)
    episodes[0].actions[0] = value
    return episodes


def single(observations: Any) -> list[Episode]:
    """Return an episode with these observations."""
    n = len(observations)
    return [Episode(np.array(observations), np.zeros((n, 1), int), np.zeros((n, 1), np.float32), True)]


FRAMES, VECTORS = new_episodes("frames"), new_episodes("vectors")
PAIRS = [dataclasses.replace(each, actions=each.actions.repeat(2, axis=1)) for each in VECTORS]
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (FRAMES, {"keys": ["screen"]}, "keys are for tuples"),
    (single(np.arange(5.0)), {"frame_stack": 2}, "single numbers cannot be stacked"),
    (
        doubled("vectors", is_discrete=False),
        {},
        r"actions are from -1\.9.* to 1\.9.*, outside of \[-1\.0, 1\.0\]",
    ),
    (with_action(0.5, np.float64), {"n_actions": 6}, "episode 0 has actions that are no integers"),
    (VECTORS, {"n_actions": 3}, "discrete actions must be single numbers from 0 to 2, got 0 to 4"),
    (PAIRS, {}, r"discrete actions must be single numbers .* with shape \(2,\)"),
    (VECTORS, {"action_range": (0, 1)}, "action_range is for continuous actions, got int64 actions"),
    (with_action(np.nan, np.float32), {}, r"episode 0 has actions that are not a number \(NaN\)"),
    (with_action(2**63, np.uint64), {}, r"the largest action is 9\.22337e\+18: pass n_actions if that is correct"),
    (single(["a"]), {}, "episode 0 must have arrays of numbers"),
    (FRAMES, {"frame_stack": 10**6}, "frame_stack must be at most 256, got 1000000"),
    *((FRAMES, {name: 0}, f"{name} must be at least 1, got 0") for name in ("frame_stack", "n_actions", "n_steps")),
]


@pytest.mark.parametrize(("source", "options", "message"), WRONG)
def test_wrong_arguments_and_episodes_are_errors(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        imported(source, **options)


def test_other_sources_are_an_error() -> None:
    with pytest.raises(TypeError, match="expected a path, a buffer of d3rlpy or its episodes, got int"):
        imported(3)
    with pytest.raises(TypeError, match="episode 0 is a int, not an episode of d3rlpy"):
        imported([3])

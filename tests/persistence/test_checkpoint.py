"""Checkpoints of buffers in memory: the same format as storage, incremental and atomic."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from stored import ROWS, add, hold_equal, new

from sb3_compressed import (
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    StorageError,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.storage.commit_writer import CommitWriter


def nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


STREAMS = ["atari", "atari-channel-last", "console", "bits", "pendulum", "acrobot", "discrete", "multi-binary"]


@pytest.mark.parametrize("stream", STREAMS, indirect=True)
def test_loaded_checkpoint_equals_the_saved_buffer_and_can_be_continued(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitWriter, "SEGMENT_NBYTES", 20_000)
    buffer = new(stream)
    for number, transition in enumerate(stream[-1][:260]):
        if number in (0, 1, 20, 21, ROWS - 1, ROWS, 150, 250):
            save_checkpoint(buffer, tmp_path)
            loaded = load_checkpoint(tmp_path, device="cpu")
            hold_equal(loaded, buffer)
            if number == 150:
                buffer = loaded  # which also saves only changes
        transition.add_to(buffer)


def test_save_writes_only_changes(stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream, rows=400, compression_method="none")
    add(stream[-1][:300], buffer)
    save_checkpoint(buffer, tmp_path)
    full = nbytes(tmp_path)
    add(stream[-1][300:310], buffer)
    save_checkpoint(buffer, tmp_path)
    increment = nbytes(tmp_path) - full
    assert increment < full / 15, "10 of 300 steps, and the stacks with which they begin"
    save_checkpoint(buffer, tmp_path)
    assert nbytes(tmp_path) - full - increment < 300, "nothing changed"
    loaded = load_checkpoint(tmp_path, device="cpu")
    assert loaded.observations_nbytes <= 1.2 * buffer.observations_nbytes, "shared payloads are shared again"
    add(stream[-1][310:320], loaded, buffer)
    before = nbytes(tmp_path)
    save_checkpoint(loaded, tmp_path)
    assert nbytes(tmp_path) - before < 2 * increment, "loaded transitions are not written again"
    hold_equal(load_checkpoint(tmp_path, device="cpu"), buffer)


@pytest.mark.parametrize("n_before", [30, 300])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_copy_is_that_of_the_last_save(is_stored: bool, n_before: int, stream: Stream, tmp_path: Path) -> None:
    """Not of what was added since, in a full ring in place of what was saved."""
    options: dict[str, Any] = {"storage": tmp_path / "saved"} if is_stored else {}
    buffer = new(stream, **options)
    add(stream[-1][:n_before], buffer)
    buffer.save_latest(tmp_path / "saved")
    expected = load_checkpoint(tmp_path / "saved", device="cpu")
    if is_stored:
        with buffer.joint_commit(7):
            add(stream[-1][n_before : n_before + 7], buffer)
            buffer.copy_checkpoint(tmp_path / "copy")
    else:
        add(stream[-1][n_before : n_before + 7], buffer)
        buffer.copy_checkpoint(tmp_path / "copy")
    hold_equal(load_checkpoint(tmp_path / "copy", device="cpu"), expected)


def test_direct_writes_to_arrays_are_saved(stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream)
    add(stream[-1][:60], buffer)
    save_checkpoint(buffer, tmp_path)
    buffer.observations[3] = stream[-1][50].obs
    buffer.observations[40, 1] = stream[-1][7].obs[0]
    buffer.next_observations[80] = stream[-1][9].obs  # after the added rows
    buffer.rewards[7] = 11
    save_checkpoint(buffer, tmp_path)
    loaded = load_checkpoint(tmp_path, device="cpu")
    for name in ("observations", "next_observations", "rewards"):
        np.testing.assert_array_equal(np.asarray(getattr(loaded, name)), np.asarray(getattr(buffer, name)))


def test_folder_with_another_buffer_is_not_overwritten(stream: Stream, tmp_path: Path) -> None:
    mine, yours = tmp_path / "mine", tmp_path / "yours"
    buffer, other = new(stream), new(stream)
    for each, transitions in ((buffer, stream[-1][:50]), (other, stream[-1][50:80])):
        add(transitions, each)
    for _ in range(2):  # alternately
        for folder in (mine, yours):
            stream[-1][90].add_to(buffer)
            save_checkpoint(buffer, folder)
            hold_equal(load_checkpoint(folder, device="cpu"), buffer)
    with pytest.raises(StorageError, match="overwrite=True"):
        save_checkpoint(other, mine)
    save_checkpoint(other, mine, overwrite=True)
    hold_equal(load_checkpoint(mine, device="cpu"), other)
    with pytest.raises(StorageError, match="overwrite=True"):
        save_checkpoint(buffer, mine)
    save_checkpoint(buffer, yours)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"contains other files, such as notes\.txt"):
        save_checkpoint(buffer, tmp_path / "notes")
    with pytest.raises(StorageError, match="there is no folder"):
        load_checkpoint(tmp_path / "missing")
    shutil.copytree(yours, tmp_path / "run" / "step_100" / "buffer")
    with pytest.raises(StorageError, match=r"is a checkpoint of a model and its buffer.*step_100.buffer$"):
        load_checkpoint(tmp_path / "run" / "step_100")
    with pytest.raises(StorageError, match="contains checkpoints: pass latest_checkpoint"):
        load_checkpoint(tmp_path / "run")
    with pytest.raises(StorageError, match=r"is a file: .*model\.load_replay_buffer$"):
        load_checkpoint(tmp_path / "notes" / "notes.txt")
    with pytest.raises(StorageError, match="only compressed replay buffers"):
        save_checkpoint(CompressedRolloutBuffer(8, *stream[:2]), tmp_path / "rollout")  # type: ignore[arg-type]


def test_stored_buffer_can_be_saved_to_another_folder(stream: Stream, tmp_path: Path) -> None:
    stored = new(stream, storage=tmp_path / "storage")
    add(stream[-1][:130], stored)
    save_checkpoint(stored, tmp_path / "saved")
    save_checkpoint(stored, tmp_path / "storage")  # its own folder: flushed
    held = load_checkpoint(tmp_path / "saved", device="cpu")
    hold_equal(held, stored)
    add(stream[-1][130:160], stored, held)
    save_checkpoint(stored, tmp_path / "saved")
    hold_equal(load_checkpoint(tmp_path / "saved", device="cpu"), held)
    stored.close()
    shutil.rmtree(tmp_path / "storage")
    hold_equal(new(stream, storage=tmp_path / "saved", storage_mode="resume"), held)


class Mine(CompressedReplayBuffer):
    """A user's class."""


def test_class_and_arguments_are_restored(stream: Stream, tmp_path: Path) -> None:
    space, action_space, n_envs, transitions = stream
    buffer = Mine(
        200, space, action_space, "cpu", n_envs, handle_timeout_termination=False, optimize_memory_usage=True,
        frame_stack=4, output_dtype="float", compression_kwargs={"compresslevel": 7}, compression_method="zstd",
    )  # fmt: skip
    add(transitions[:70], buffer)
    save_checkpoint(buffer, tmp_path)
    with pytest.raises(StorageError, match=r"contains a Mine, .* use Mine\.from_checkpoint"):
        load_checkpoint(tmp_path)
    loaded = Mine.from_checkpoint(tmp_path, device="cpu")
    assert loaded.given_arguments == buffer.given_arguments
    assert (loaded.output_dtype, loaded.observations.codec) == ("float", buffer.observations.codec)
    hold_equal(loaded, buffer)


class PassesOn(CompressedReplayBuffer):
    """Has its own argument and passes all others on."""

    def __init__(self, *a: Any, alpha: float = 0.6, **k: Any) -> None:
        super().__init__(*a, **k)
        self.alpha = alpha


class PassesOnFew(CompressedReplayBuffer):
    """Does not accept the options of compressed buffers."""

    def __init__(self, buffer_size: int, observation_space: Any, action_space: Any, device: Any, n_envs: int) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs, output_dtype="raw")


class RequiresMore(CompressedReplayBuffer):
    """Has an argument without a default, named as the positional arguments of others."""

    def __init__(self, args: str, *a: Any, **k: Any) -> None:
        super().__init__(*a, **k)
        self.args = args


@pytest.mark.parametrize("buffer_class", [PassesOn, PassesOnFew])
def test_classes_with_their_own_constructors_are_restored(buffer_class: Any, stream: Stream, tmp_path: Path) -> None:
    space, action_space, n_envs, transitions = stream
    buffer = buffer_class(200, space, action_space, device="cpu", n_envs=n_envs)
    add(transitions[:70], buffer)
    save_checkpoint(buffer, tmp_path)
    loaded = buffer_class.from_checkpoint(tmp_path, device="cpu")
    assert type(loaded) is buffer_class
    hold_equal(loaded, buffer)
    if issubclass(buffer_class, PassesOn):
        assert buffer_class.from_checkpoint(tmp_path, device="cpu", alpha=0.9).alpha == 0.9


def test_stored_arguments_that_a_class_does_not_take_raise(stream: Stream, tmp_path: Path) -> None:
    space, action_space, n_envs, transitions = stream
    buffer = RequiresMore("one", 200, space, action_space, "cpu", n_envs, compression_method="zstd")
    transitions[0].add_to(buffer)
    save_checkpoint(buffer, tmp_path)
    with pytest.raises(StorageError, match="without args"):
        RequiresMore.from_checkpoint(tmp_path, device="cpu")
    hold_equal(RequiresMore.from_checkpoint(tmp_path, device="cpu", args="two"), buffer)
    with pytest.raises(StorageError, match="PassesOnFew does not take compression_method"):
        PassesOnFew.from_checkpoint(tmp_path, device="cpu")


def test_saving_info_dicts_of_hindsight_raises(tmp_path: Path) -> None:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.envs import BitFlippingEnv

    env = make_vec_env(BitFlippingEnv, 1)
    buffer = CompressedHerReplayBuffer(
        40, env.observation_space, env.action_space, env, device="cpu", copy_info_dict=True
    )  # fmt: skip
    with pytest.raises(StorageError, match="info dicts"):
        save_checkpoint(buffer, tmp_path)

"""Faults of folders: interrupts, full disks, crafted metadata, locks."""

from __future__ import annotations

import copy
import gc
import os
import shutil
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import writer
from conftest import Stream, recorded
from lines import interrupts
from programs import run
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stored import add, hold_equal, new

from sb3_compressed import (
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    CorruptStorage,
    StorageError,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.persistence import buffer_storage
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import CommitWriter
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.segment import Segment


def killed(folder: Path, name: str = "killed") -> Path:
    """Return a copy of a folder, as a killed process would leave it."""
    copy = folder.parent / name
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(folder, copy))


def add_steps(buffer: Any, n_steps: int) -> None:
    for _ in range(n_steps):
        writer.add_step(buffer, writer.newest(buffer) + 1)


@pytest.mark.parametrize("place", ["flush", "create", "rename"])
def test_failure_of_a_new_segment_loses_nothing(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitWriter, "SEGMENT_NBYTES", 100_000)
    folder = tmp_path / "buffer"
    buffer = writer.new_buffer(storage=folder)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError

    for _ in range(3):
        add_steps(buffer, 1)  # so that there is a file to write to
        with monkeypatch.context() as patch:
            patch.setattr(Path if place == "rename" else Segment, place, fails)
            with pytest.warns(UserWarning, match="segment"):
                add_steps(buffer, 90)
        add_steps(buffer, 5)
        last = writer.hold_that_it_is_whole(buffer)
        assert writer.hold_that_it_is_whole(writer.new_buffer(storage=killed(folder), storage_mode="resume")) == last


def set_stored_arguments(folder: Path, **arguments: Any) -> None:
    store = ArrayStore.open(folder, lock=FolderLock(folder))
    metadata = {**store.metadata, "arguments": {**store.metadata["arguments"], **arguments}}
    CommitWriter(store).replace_content(metadata, store.specs, store.arrays, store.values, store.read_codecs())
    store.close()


def test_stored_arguments_cannot_name_other_folders(stream: Stream, tmp_path: Path) -> None:
    victim = new(stream, storage=tmp_path / "victim")
    stream[-1][0].add_to(victim)
    victim.close()
    new(stream, storage=tmp_path / "bait").close()
    set_stored_arguments(tmp_path / "bait", storage=str(tmp_path / "victim"), overwrite=True)
    with pytest.raises(StorageError, match="overwrite, storage"):
        load_checkpoint(tmp_path / "bait")
    assert load_checkpoint(tmp_path / "victim", device="cpu").size() == 1


@pytest.mark.parametrize("name", ["buffer_size", "n_envs", "compression_method"])
def test_invalid_stored_arguments_raise(name: str, stream: Stream, tmp_path: Path) -> None:
    new(stream, storage=tmp_path).close()
    values: list[Any] = ["many", None, 10**30, {"mapping": 3}]
    for value in values:
        set_stored_arguments(tmp_path, **{name: value})
        with pytest.raises(StorageError, match=str(tmp_path)):
            load_checkpoint(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="this operating system has no fork")
def test_save_works_after_a_kill_during_the_previous_one(stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream)
    add(stream[-1][:20], buffer)
    save_checkpoint(buffer, tmp_path)
    add(stream[-1][20:40], buffer)
    child = os.fork()
    if child == 0:
        CommitWriter.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        save_checkpoint(buffer, tmp_path)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    loaded = load_checkpoint(tmp_path, device="cpu")
    assert loaded.pos == 20
    for each in (loaded, buffer):
        stream[-1][60].add_to(each)
        save_checkpoint(each, tmp_path / each.__class__.__name__ if each is buffer else tmp_path)
    hold_equal(load_checkpoint(tmp_path, device="cpu"), loaded)


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_failed_save_can_be_repeated(stream: Stream, tmp_path: Path) -> None:
    script = """
import resource, signal, sys
import writer
from sb3_compressed import load_checkpoint, save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = sys.argv[1]
buffer = writer.new_buffer()
for number in range(1, 30):
    writer.add_step(buffer, number)
for kept in (0, 29):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000 if not kept else 40_000, resource.RLIM_INFINITY))
    try:
        save_checkpoint(buffer, folder)
        raise SystemExit("it did not fail")
    except OSError as error:
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if kept:
        assert writer.newest(load_checkpoint(folder, device="cpu")) == kept, "the folder is unchanged"
    save_checkpoint(buffer, folder)
    assert writer.hold_that_it_is_whole(load_checkpoint(folder, device="cpu")) == writer.newest(buffer)
    for number in range(30, 60):
        writer.add_step(buffer, number)
"""
    run(script, tmp_path / "b")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of open files for a process")
def test_a_folder_that_cannot_be_read_is_not_taken_for_that_of_another_buffer(tmp_path: Path) -> None:
    """Without files that may be opened, a save is an ``OSError``, and not a ``StorageError`` about another writer."""
    program = """
import errno, os, resource, sys
import writer

buffer, folder = writer.filled(20), sys.argv[1]
before = resource.getrlimit(resource.RLIMIT_NOFILE)
for n_files in range(4):
    buffer.save_checkpoint(folder)
    writer.add_step(buffer, writer.newest(buffer) + 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(n_files):
        os.close(taken.pop())
    try:
        buffer.save_checkpoint(folder)
        raise SystemExit("it did not fail")
    except OSError as error:
        assert error.errno == errno.EMFILE, error
    while taken:
        os.close(taken.pop())
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
buffer.save_checkpoint(folder)
print(writer.hold_that_it_is_whole(writer.CompressedReplayBuffer.from_checkpoint(folder, device="cpu")))
"""
    assert run(program, tmp_path / "buffer") == "24\n"


def test_hindsight_is_resized_at_the_end_of_an_episode(tmp_path: Path) -> None:
    space, action_space, n_envs, transitions = recorded("goal-bits")
    env = make_vec_env(BitFlippingEnv, n_envs, env_kwargs={"n_bits": 20, "max_steps": 9})
    buffer = CompressedHerReplayBuffer(100 * n_envs, space, action_space, env, device="cpu", n_envs=n_envs)
    add(transitions[:45], buffer)
    assert buffer._current_ep_start.tolist() == [45, 45]
    save_checkpoint(buffer, tmp_path)
    for rows, begin in ((150, 45), (20, 0)):
        loaded: Any = load_checkpoint(tmp_path, env=env, buffer_size=rows * n_envs, device="cpu")
        assert loaded._current_ep_start.tolist() == [begin, begin], "the next episode begins with the next row"
        assert loaded.pos == begin


@pytest.mark.parametrize("rows", [30, 50, 70])
@pytest.mark.parametrize("n_steps", [20, 40, 80])
def test_next_observations_in_following_rows_are_stored(
    n_steps: int, rows: int, stream: Stream, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    stored = new(stream, 50, storage=tmp_path / "buffer", **options)
    add(stream[-1][:n_steps], stored)
    n_stored = min(n_steps, 49 if n_steps > 50 else 50)
    with pytest.warns(UserWarning, match="do not fit") if n_stored > rows - 1 and rows < 50 else nullcontext():
        resumed = new(stream, rows, storage=killed(tmp_path / "buffer"), storage_mode="resume", **options)
    np.testing.assert_array_equal(resumed.observations[resumed.pos], stream[-1][n_steps - 1].next_obs)
    n_kept = resumed.pos if not resumed.full else rows - 1
    assert n_kept == min(n_steps, 49 if n_steps > 50 else 50, rows - 1 if rows != 50 else 50)
    for age in range(1, n_kept + 1):
        row = (resumed.pos - age) % rows
        np.testing.assert_array_equal(resumed.observations[row], stream[-1][n_steps - age].obs)
        goes_on = ~stream[-1][n_steps - age].done  # SB3 overwrites the last observations of episodes
        following = resumed.observations[(row + 1) % rows][goes_on]
        np.testing.assert_array_equal(following, stream[-1][n_steps - age].next_obs[goes_on])


def test_follower_keeps_its_state_after_reading_damage(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitWriter, "SEGMENT_NBYTES", 20_000)
    stored = new(stream, storage=tmp_path)
    add(stream[-1][:10], stored)
    follower: Any = CompressedReplayBuffer.from_checkpoint(tmp_path, follow=True, device="cpu")
    before = follower.observations[:10]
    add(stream[-1][10:100], stored)
    path = max(tmp_path.glob("*.log"))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(CorruptStorage, match=path.name):
            follower.refresh()
        np.testing.assert_array_equal(follower.observations[:10], before)
    content[200] ^= 1
    path.write_bytes(content)
    assert follower.refresh()
    hold_equal(follower, stored)


def test_deleted_buffer_releases_its_folder(stream: Stream, tmp_path: Path) -> None:
    stored = new(stream, storage=tmp_path)
    stream[-1][0].add_to(stored)
    cycle: list[Any] = [stored]
    cycle.append(cycle)
    del stored, cycle
    assert new(stream, storage=tmp_path, storage_mode="resume").size() == 1
    gc.collect()


def test_damaged_checkpoint_can_be_overwritten(stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream)
    stream[-1][0].add_to(buffer)
    folder = tmp_path / "buffer"
    save_checkpoint(buffer, folder)
    for path in folder.glob("*.log"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StorageError, match="already contains a buffer"):
        save_checkpoint(new(stream), folder)
    save_checkpoint(buffer, folder, overwrite=True)
    hold_equal(load_checkpoint(folder, device="cpu"), buffer)


def test_deleted_folder_raises(stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream)
    stream[-1][0].add_to(buffer)
    save_checkpoint(buffer, tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(StorageError, match="was deleted; overwrite=True"):
        save_checkpoint(buffer, tmp_path / "a")
    save_checkpoint(buffer, tmp_path / "a")
    hold_equal(load_checkpoint(tmp_path / "a", device="cpu"), buffer)


def test_relative_folder_ignores_later_chdir(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may change its working directory."""
    monkeypatch.setattr(CommitWriter, "SEGMENT_NBYTES", 10_000)  # many files
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    stored, held = new(stream, storage="storage"), new(stream)
    held.save_checkpoint("checkpoint")
    follower = CompressedReplayBuffer.from_checkpoint("storage", follow=True, device="cpu")
    monkeypatch.chdir(tmp_path / "elsewhere")
    add(stream[-1][:120], stored, held)
    held.save_checkpoint(tmp_path / "checkpoint")
    assert follower.refresh()
    stored.close()
    for buffer in (follower, *(load_checkpoint(tmp_path / name, device="cpu") for name in ("storage", "checkpoint"))):
        hold_equal(buffer, held)
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_rows_overwritten_after_an_add_are_flushed(stream: Stream, tmp_path: Path) -> None:
    """Even if their content is the same as at the previous flush."""
    stored = new(stream, storage=tmp_path)
    stored.flush()
    add(stream[-1][:3], stored)
    stored.rewards[:3] = 0
    stored.actions[1] = 0
    stored.flush()
    loaded: Any = load_checkpoint(tmp_path, device="cpu")
    assert not loaded.rewards.any()
    assert loaded.actions.tobytes() == stored.actions.tobytes()
    hold_equal(loaded, stored)


def test_two_buffers_that_share_arrays_are_each_saved_completely(stream: Stream, tmp_path: Path) -> None:
    """As with a shallow copy: what one has saved is still a change for the other."""
    buffer = new(stream)
    add(stream[-1][:10], buffer)
    buffer.save_checkpoint(tmp_path / "one")
    other = copy.copy(buffer)
    add(stream[-1][10:20], buffer)
    other.pos = buffer.pos
    other.save_checkpoint(tmp_path / "other")
    buffer.save_checkpoint(tmp_path / "one")
    for name in ("one", "other"):
        hold_equal(load_checkpoint(tmp_path / name, device="cpu"), buffer)


def test_loading_with_storage_arguments_raises(stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream)
    buffer.save_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(StorageError, match="storage, storage_mode"):
        load_checkpoint(tmp_path / "checkpoint", storage=tmp_path / "storage", storage_mode="resume")
    env = make_vec_env(BitFlippingEnv, 1)
    hindsight = CompressedHerReplayBuffer(50, env.observation_space, env.action_space, env, device="cpu")
    hindsight.save_checkpoint(tmp_path / "hindsight")
    with pytest.raises(StorageError, match="without env"):
        load_checkpoint(tmp_path / "hindsight")


def test_interrupt_between_any_two_lines_of_an_add_loses_nothing(tmp_path: Path) -> None:
    buffer = writer.new_buffer(storage=tmp_path / "buffer")
    n_interrupted = 0
    for number, interrupt in enumerate(interrupts(buffer_storage), start=1):
        with interrupt:
            writer.add_step(buffer, number)
        n_interrupted += interrupt.happened
        writer.add_step(buffer, number)
        hold_equal(load_checkpoint(tmp_path / "buffer", device="cpu"), buffer)
    assert n_interrupted > 10

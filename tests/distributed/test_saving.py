"""A save of a distributed buffer contains every transition of every shard, or leaves the previous save as it was.

A load restores all of it, also if shards die meanwhile.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drawn_examples import FACTOR
from lines import Interrupt
from stable_baselines3 import DQN

from distributed.buffers import add_rows, new_buffer
from distributed.dying_shard import DyingShard, die_at, stop_at
from distributed.emitted import observation, transition
from distributed.stopped import short_timeout, until
from sb3_compressed import BufferCheckpointCallback, CompressedReplayBuffer, CorruptStorage
from sb3_compressed.callbacks.checkpoint_folder import list_checkpoints
from sb3_compressed.distributed import (
    DistributedReplayBuffer,
    checkpoint_manifest,
    replay_buffer,
    shard_checkpoints,
    shard_group,
)
from sb3_compressed.distributed.checkpoint_manifest import read_manifest
from sb3_compressed.distributed.writer import ReplayWriter
from sb3_compressed.errors import ShardTimeout, ShardUnavailable, StorageError
from sb3_compressed.storage import files

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def saved_actions(folder: Path) -> list[int]:
    """Return the numbers of all transitions in a checkpoint, sorted, after comparing the observations."""
    actions: list[int] = []
    for name, path in read_manifest(folder).rings_in(folder).items():
        ring: Any = CompressedReplayBuffer.from_checkpoint(path, device="cpu", num_threads=1)
        for row in range(ring.size()):
            for env in range(ring.n_envs):
                action = int(ring.actions[row, env, 0])
                assert (ring.observations[row, env] == observation("small", *divmod(action, 2))).all(), name
                actions.append(action)
    return sorted(actions)


@pytest.fixture(scope="module", params=["memory", "folders"])
def shards(
    request: pytest.FixtureRequest, local_ray: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DistributedReplayBuffer]:
    """Return a buffer of two environments, each in a shard of its own."""
    storage = "memory" if request.param == "memory" else tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_group, "Shard", DyingShard)
        buffer = new_buffer("small", 100, n_envs=2, n_shards=2, storage=storage)
    yield buffer
    buffer.close()


@pytest.fixture
def filled(shards: DistributedReplayBuffer) -> DistributedReplayBuffer:
    """Return the buffer with transitions 0 to 49."""
    shards.reset()
    add_rows(shards, "small", range(25))
    return shards


def resume_when(condition: Callable[[], Any], stopped: Path) -> threading.Thread:
    """Continue a stopped process, from another thread, when a condition holds."""

    def resume() -> None:
        until(stopped.exists)
        until(condition)
        os.kill(int(stopped.read_text()), signal.SIGCONT)

    thread = threading.Thread(target=resume)
    thread.start()
    return thread


def test_a_shard_that_pauses_loses_nothing(filled: DistributedReplayBuffer, tmp_path: Path) -> None:
    """It must not remove what the others have saved before it begins."""
    folder = tmp_path / "checkpoint"
    thread = resume_when(lambda: len([*folder.glob("cut-*/ring-*")]) >= 1, stop_at("save"))
    filled.save_checkpoint(folder)
    thread.join()
    assert saved_actions(folder) == [*range(50)]


@pytest.mark.parametrize("point", ["save", "saved"])
def test_a_shard_that_is_stopped_leaves_the_last_save(
    filled: DistributedReplayBuffer, tmp_path: Path, point: str
) -> None:
    folder = tmp_path / "checkpoint"
    filled.save_checkpoint(folder)
    manifest = read_manifest(folder)
    stopped = stop_at(point)
    try:
        with short_timeout(3.0, filled), pytest.raises(ShardTimeout, match=r"shard \d"):
            filled.save_checkpoint(folder)
        assert read_manifest(folder) == manifest
        assert saved_actions(folder) == [*range(50)]
    finally:
        until(stopped.exists)
        os.kill(int(stopped.read_text()), signal.SIGCONT)  # it finishes the save that has failed
    add_rows(filled, "small", range(25, 35))
    filled.save_checkpoint(folder)
    assert saved_actions(folder) == [*range(70)]
    assert [path.name for path in folder.glob("cut-*")] == [read_manifest(folder).cut]


@pytest.mark.parametrize("point", ["save", "saved"])
def test_a_shard_that_is_killed_leaves_the_last_save(
    request: pytest.FixtureRequest, filled: DistributedReplayBuffer, tmp_path: Path, point: str
) -> None:
    folder = tmp_path / "checkpoint"
    filled.save_checkpoint(folder)
    manifest = read_manifest(folder)
    die_at(point)
    with pytest.raises(ShardUnavailable, match="restarted"):
        filled.save_checkpoint(folder)
    assert read_manifest(folder) == manifest
    assert saved_actions(folder) == [*range(50)]
    filled._group.refresh_all()  # when Ray has restarted it
    filled.save_checkpoint(folder)
    assert len(saved_actions(folder)) == (25 if request.node.callspec.params["shards"] == "memory" else 50)


def test_a_training_goes_on_after_a_save_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shard_group, "Shard", DyingShard)
    model = DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=500, learning_starts=1000, device="cpu",
        replay_buffer_class=DistributedReplayBuffer, replay_buffer_kwargs={"timeout": 60.0},
    )  # fmt: skip
    die_at("save")
    with caplog.at_level(logging.WARNING):
        model.learn(250, callback=BufferCheckpointCallback(100, tmp_path, keep=9))
    assert "no checkpoint was saved at step 100" in caplog.text
    checkpoints, damaged = list_checkpoints(tmp_path)
    assert [each.num_timesteps for each in checkpoints] == [200, 252]
    assert not damaged
    assert not [*tmp_path.glob("*.unfinished")]
    buffer: Any = model.replay_buffer
    buffer.close()


@pytest.mark.parametrize("point", ["load", "loaded"])
def test_a_shard_that_dies_loads_again(filled: DistributedReplayBuffer, tmp_path: Path, point: str) -> None:
    """In a folder, a shard found rings in its list then that were not there, and could not be used any more."""
    filled.save_checkpoint(tmp_path / "checkpoint")
    add_rows(filled, "small", range(25, 30))
    filled.flush()
    die_at(point)
    filled.load_checkpoint(tmp_path / "checkpoint")
    filled.save_checkpoint(tmp_path / "loaded")
    assert saved_actions(tmp_path / "loaded") == [*range(50)]


def test_after_a_damaged_checkpoint_another_one_can_be_loaded(filled: DistributedReplayBuffer, tmp_path: Path) -> None:
    filled.save_checkpoint(tmp_path / "good")
    for first in (25, 27):
        add_rows(filled, "small", range(first, first + 2))
        filled.save_checkpoint(tmp_path / "damaged", overwrite=True)
    oldest = min(read_manifest(tmp_path / "damaged").rings_in(tmp_path / "damaged")["learner-1"].glob("*.log"))
    content = bytearray(oldest.read_bytes())
    content[-1] ^= 255
    oldest.unlink()  # others may be links to it
    oldest.write_bytes(content)
    with pytest.raises(CorruptStorage):
        filled.load_checkpoint(tmp_path / "damaged")
    filled.load_checkpoint(tmp_path / "good")
    add_rows(filled, "small", range(25, 30))
    filled.save_checkpoint(tmp_path / "after")
    assert saved_actions(tmp_path / "after") == [*range(60)]


@pytest.fixture(scope="module")
def one_shard(local_ray: None) -> Iterator[DistributedReplayBuffer]:
    """Return a buffer with one shard."""
    buffer = new_buffer("small", 1000)
    yield buffer
    buffer.close()


@pytest.fixture
def single(one_shard: DistributedReplayBuffer) -> DistributedReplayBuffer:
    """Return that buffer with 20 transitions."""
    one_shard.reset()
    add_rows(one_shard, "small", range(20))
    return one_shard


@pytest.fixture
def other() -> Iterator[DistributedReplayBuffer]:
    """Return another buffer with one shard and 30 transitions."""
    buffer = new_buffer("small", 1000)
    add_rows(buffer, "small", range(30))
    yield buffer
    buffer.close()


def add_with(writer: ReplayWriter, n: int) -> None:
    for number in range(n):
        transition("small", number).add_to(writer)
    writer.flush()


def test_writers_that_began_after_the_save_continue(other: DistributedReplayBuffer, tmp_path: Path) -> None:
    """The next save listed rings without writers, so it could not be read, and removed the one before."""
    other.save_checkpoint(tmp_path)
    writer = other.writer("remote", 1)
    add_with(writer, 20)
    other.load_checkpoint(tmp_path)
    add_with(writer, 10)
    other.record_status(writer.name, writer.status)
    other.save_checkpoint(tmp_path)
    rings = read_manifest(tmp_path).rings
    assert rings is not None
    assert {name: ring.n_transitions for name, ring in rings.items()} == {"learner-0": 30, "remote": 10}


def test_a_save_that_another_learner_has_replaced_is_not_copied(
    single: DistributedReplayBuffer, other: DistributedReplayBuffer, tmp_path: Path
) -> None:
    """The checkpoint of the other learner was copied."""
    single.save_checkpoint(tmp_path / "checkpoint")
    other.save_checkpoint(tmp_path / "checkpoint", overwrite=True)
    with pytest.raises(StorageError, match="another"):
        single.copy_checkpoint(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    single.save_checkpoint(tmp_path / "checkpoint", overwrite=True)
    single.copy_checkpoint(tmp_path / "copy")
    assert read_manifest(tmp_path / "copy") == read_manifest(tmp_path / "checkpoint")


def n_saved(folder: Path) -> int:
    """Return the number of transitions in a checkpoint."""
    return sum(ring.n_transitions for ring in read_manifest(folder).rings.values())


def test_nothing_else_is_replaced_by_a_save(
    single: DistributedReplayBuffer, other: DistributedReplayBuffer, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    with pytest.raises(StorageError, match="nothing was saved yet"):
        other.copy_checkpoint(folder)
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(StorageError, match="contains other files, but no checkpoint of a distributed buffer"):
            single.save_checkpoint(folder, overwrite=overwrite)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    single.save_checkpoint(folder)
    with pytest.raises(StorageError, match="contains another checkpoint; pass overwrite=True"):
        other.save_checkpoint(folder)
    assert n_saved(folder) == 20
    for content, problem in (("{}", "version"), ('{"version": 2}', r"version 0\.4"), ('{"version": 4}', "version 4")):
        (folder / checkpoint_manifest.MANIFEST).write_text(content)
        with pytest.raises(StorageError, match=problem):
            other.save_checkpoint(folder)
        other.save_checkpoint(folder, overwrite=True)
        assert n_saved(folder) == 30


def test_a_checkpoint_is_copied_on_a_file_system_without_hard_links(
    single: DistributedReplayBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy raised, so ``BufferCheckpointCallback`` could not save there."""

    def link_nothing(source: object, target: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    single.save_checkpoint(tmp_path / "checkpoint")
    n_saved = single.n_transitions
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link_nothing)
        single.copy_checkpoint(tmp_path / "copy")
    single.reset()
    single.load_checkpoint(tmp_path / "copy")
    assert single.n_transitions == n_saved > 0


def test_a_checkpoint_without_write_permission_is_loaded(tmp_path: Path) -> None:
    """Its permissions were copied to the folders of shards."""
    saved = new_buffer("small", 1000, storage=tmp_path / "saved")
    add_rows(saved, "small", range(20))
    saved.save_checkpoint(tmp_path / "checkpoint")
    saved.close()
    paths = [*(tmp_path / "checkpoint").rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    loaded = new_buffer("small", 1000, storage=tmp_path / "loaded")
    loaded.load_checkpoint(tmp_path / "checkpoint")
    add_rows(loaded, "small", range(20, 30))
    loaded.close()
    assert all(path.stat().st_mode & 0o200 for path in (tmp_path / "loaded").rglob("*"))
    assert not any(path.stat().st_mode & 0o200 for path in paths)
    for path in paths:
        path.chmod(path.stat().st_mode | 0o200)


#: The modules that save.
SAVING = replay_buffer, shard_group, shard_checkpoints, checkpoint_manifest, files
#: A call is interrupted before each line of so many.
STEP = 17 if FACTOR is None else 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a lock that it released last
@pytest.mark.parametrize("is_first", [True, False])
def test_ctrl_c_leaves_a_save(single: DistributedReplayBuffer, tmp_path: Path, is_first: bool) -> None:
    single.save_checkpoint(folder := tmp_path / "checkpoint")
    n_rows, at = 20, 0
    while True:
        if is_first:
            folder = tmp_path / str(at)
        add_rows(single, "small", range(n_rows, n_rows + 1))
        n_rows += 1
        interrupt = Interrupt(at, *SAVING)
        with interrupt:
            single.save_checkpoint(folder)
        if not interrupt.happened:
            break
        assert is_first or read_manifest(folder).rings_in(folder)
        single.save_checkpoint(folder)
        rings = read_manifest(folder).rings
        assert rings is not None
        assert rings["learner-0"].n_transitions == n_rows, f"interrupted at line {at}"
        at += STEP
    assert at > 50

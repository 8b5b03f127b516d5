"""A save of a distributed buffer has every transition of every shard, or leaves the save before as it was."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN

from distributed.dying_shard import DyingShard, die_at, stop_at
from distributed.emitted import observation
from distributed.test_replay_buffer import add_rows, new_buffer
from distributed.test_writer import until
from sb3_compressed import BufferCheckpointCallback, CompressedReplayBuffer
from sb3_compressed.callbacks.checkpoint_folder import list_checkpoints
from sb3_compressed.distributed import DistributedReplayBuffer, shard_group
from sb3_compressed.distributed.checkpoint_manifest import read_manifest
from sb3_compressed.errors import ShardTimeout, ShardUnavailable

pytestmark = pytest.mark.usefixtures("local_ray")


def saved_actions(folder: Path) -> list[int]:
    """Return the numbers of all transitions in a checkpoint, sorted, after comparing the observations."""
    actions: list[int] = []
    for name, path in read_manifest(folder).rings_in(folder).items():
        ring: Any = CompressedReplayBuffer.from_checkpoint(path, device="cpu", num_threads=1)
        for row in range(ring.size()):
            for env in range(ring.n_envs):
                action = int(ring.actions[row, env, 0])
                assert (ring.observations[row, env] == observation("small", *divmod(action, 4))).all(), name
                actions.append(action)
    return sorted(actions)


@pytest.fixture(scope="module", params=["memory", "folders"])
def shards(
    request: pytest.FixtureRequest, local_ray: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DistributedReplayBuffer]:
    """Return a buffer of four environments, each in a shard of its own."""
    storage = "memory" if request.param == "memory" else tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_group, "Shard", DyingShard)
        buffer = new_buffer("small", 100, n_envs=4, n_shards=4, storage=storage, timeout=3.0)
    yield buffer
    buffer.close()


@pytest.fixture
def filled(shards: DistributedReplayBuffer) -> DistributedReplayBuffer:
    """Return that buffer with the transitions 0 to 99."""
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
    """In 0.2.0, each shard removed what the others had saved before it began."""
    folder = tmp_path / "checkpoint"
    thread = resume_when(lambda: len([*folder.glob("cut-*/ring-*")]) >= 3, stop_at("save"))
    filled.save_checkpoint(folder)
    thread.join()
    assert saved_actions(folder) == [*range(100)]


@pytest.mark.parametrize("point", ["save", "saved"])
def test_a_shard_that_is_stopped_leaves_the_last_save(
    filled: DistributedReplayBuffer, tmp_path: Path, point: str
) -> None:
    folder = tmp_path / "checkpoint"
    filled.save_checkpoint(folder)
    manifest = read_manifest(folder)
    stopped = stop_at(point)
    with pytest.raises(ShardTimeout, match=r"shard \d"):
        filled.save_checkpoint(folder)
    assert read_manifest(folder) == manifest
    assert saved_actions(folder) == [*range(100)]
    os.kill(int(stopped.read_text()), signal.SIGCONT)  # it finishes the save that has failed
    add_rows(filled, "small", range(25, 35))
    filled.save_checkpoint(folder)
    assert saved_actions(folder) == [*range(140)]
    assert [path.name for path in folder.glob("cut-*")] == [read_manifest(folder).cut]


@pytest.mark.parametrize("point", ["save", "saved"])
def test_a_shard_that_is_killed_leaves_the_last_save(
    request: pytest.FixtureRequest, filled: DistributedReplayBuffer, tmp_path: Path, point: str
) -> None:
    folder = tmp_path / "checkpoint"
    filled.save_checkpoint(folder)
    manifest = read_manifest(folder)
    die_at(point)
    with pytest.raises(ShardUnavailable, match=r"shard \d"):
        filled.save_checkpoint(folder)
    assert read_manifest(folder) == manifest
    assert saved_actions(folder) == [*range(100)]
    filled._group.refresh_all()  # when Ray has restarted it
    filled.save_checkpoint(folder)
    assert len(saved_actions(folder)) == (75 if request.node.callspec.params["shards"] == "memory" else 100)


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
    buffer: Any = model.replay_buffer
    buffer.close()

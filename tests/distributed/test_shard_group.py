"""Calls to shards end: with a result, or with an error that names the shard."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from distributed.buffers import add_rows, new_buffer, pid_of, refreshed
from distributed.dying_shard import DyingShard
from distributed.stopped import short_timeout, stopped, until
from sb3_compressed.distributed import DistributedReplayBuffer, shard_group
from sb3_compressed.errors import ShardTimeout

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def kill(buffer: DistributedReplayBuffer, shard: int) -> None:
    """Kill a shard, and wait until it was restarted."""
    pid = pid_of(buffer, shard)
    os.kill(pid, signal.SIGKILL)
    view = buffer._group.shards[shard]
    n_restarts = view.n_restarts

    def is_restarted() -> bool:
        buffer._group.refresh(0.2)
        return view.n_restarts > n_restarts

    until(is_restarted)


# -- shards that are stopped ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistributedReplayBuffer]:
    """Return a buffer with two shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_group, "Shard", DyingShard)
        buffer = new_buffer("small", 50, n_envs=2, n_shards=2)
    add_rows(buffer, "small", range(20))
    yield buffer
    buffer.close()


def add_and_flush(buffer: DistributedReplayBuffer) -> None:
    """Send some transitions, and wait until they have arrived."""
    add_rows(buffer, "small", range(40, 43))
    buffer.flush()


CALLS: dict[str, Callable[[DistributedReplayBuffer, Path], Any]] = {
    "writer": lambda buffer, folder: buffer.writer("other", 1),
    "save_checkpoint": lambda buffer, folder: buffer.save_checkpoint(folder, overwrite=True),
    "load_checkpoint": lambda buffer, folder: buffer.load_checkpoint(folder),
    "flush": lambda buffer, folder: add_and_flush(buffer),
    "reset": lambda buffer, folder: buffer.reset(),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_a_stopped_shard_end(pair: DistributedReplayBuffer, tmp_path: Path, name: str) -> None:
    pair.save_checkpoint(tmp_path, overwrite=True)
    with stopped(pid_of(pair, 1)), short_timeout(1.5, pair), pytest.raises(ShardTimeout, match="shard 1"):
        CALLS[name](pair, tmp_path)
    CALLS[name](pair, tmp_path)
    add_rows(pair, "small", range(20, 40))
    refreshed(pair)
    assert pair.sample(8).actions.shape == (8, 1)


def test_a_call_may_take_longer_than_the_timeout(pair: DistributedReplayBuffer) -> None:
    """A shard that works answers pings meanwhile."""
    busy = pair._group.shards[0].actor.work.remote(4.0)
    with short_timeout(3.0, pair):
        assert pair._group.call("rings")
    assert ray.get(busy)


def test_closing_with_stopped_shards_ends(local_ray: None) -> None:
    """Also if one of them has not answered before."""
    buffer = new_buffer("small", 50, n_shards=2)
    add_rows(buffer, "small", range(15))
    with stopped(pid_of(buffer, 0)), stopped(pid_of(buffer, 1)), short_timeout(1.5, buffer):
        buffer._group.shards[1].is_answering = False
        buffer.close()


# -- starting ------------------------------------------------------------------------------------------------


def test_resources_that_no_node_has_are_an_error(local_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_group, "START_TIME", 1.0)
    with pytest.raises(ShardTimeout, match=r"1 of 1 shards .*'num_cpus': 64.* 2 CPU"):
        new_buffer("small", 50, ray_options={"num_cpus": 64}, timeout=1.0)


# -- restarts ------------------------------------------------------------------------------------------------


def test_what_was_inserted_and_lost_is_counted_exactly(local_ray: None) -> None:
    buffer = new_buffer("small", 1000, segment_length=64)
    add_rows(buffer, "small", range(264))
    for _, writer in buffer._local:
        writer.flush()  # the buffer does not hear of what was acknowledged here
    kill(buffer, 0)
    add_rows(buffer, "small", range(264, 700))
    buffer.flush()
    buffer.sample(4)
    found = buffer.statistics()
    assert (found.n_inserted, found.n_lost, found.n_transitions, found.n_restarts) == (700, 264, 436, 1)
    buffer.close()

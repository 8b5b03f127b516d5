"""Writers send each transition once, whatever happens to the shard."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from distributed.dying_shard import DyingShard, die_at
from distributed.emitted import add_to, transition
from distributed.segments import batches_of, rewards_of, spec_of
from distributed.stopped import full_disk, short_timeout, stopped, until
from sb3_compressed.arrays.payload_batch import codec_digest
from sb3_compressed.distributed.codec_cache import CodecCache
from sb3_compressed.distributed.ray_session import ACTOR_FAILURES, new_actor
from sb3_compressed.distributed.shard import WriterReplaced
from sb3_compressed.distributed.writer import ReplayWriter
from sb3_compressed.errors import ShardTimeout

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def call(shard: Any, method: str, *args: Any) -> Any:
    """Call a shard, again while it is being restarted."""

    def result() -> Any:
        try:
            return [ray.get(getattr(shard, method).remote(*args))]
        except ACTOR_FAILURES:
            return None

    return until(result)[0]


def content(shard: Any, name: str) -> list[int]:
    """Return the actions in a ring, the oldest first."""
    actions: list[int] = call(shard, "content", name)
    return actions


@pytest.fixture(scope="module")
def memory(local_ray: None) -> Iterator[Any]:
    """Return a shard in memory for images, of which each test uses other rings."""
    shard = new_actor(DyingShard, {}, spec_of("images"), 300, None, "run", "create", 0)
    yield shard
    ray.kill(shard)


@pytest.fixture(scope="module")
def folder(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a shard with a folder."""
    path = tmp_path_factory.mktemp("shard")
    shard = new_actor(DyingShard, {}, spec_of("vector", n_steps=3), 300, path, "run", "create", 0)
    yield shard
    ray.kill(shard)


def writer_of(shard: Any, kind: str, name: str, n_envs: int = 1, length: int = 10, **options: Any) -> ReplayWriter:
    n_steps = 3 if kind == "vector" else 1
    return ReplayWriter(shard, spec_of(kind, n_steps=n_steps), name, n_envs, length, **options)


def test_transitions_arrive_in_segments(memory: Any) -> None:
    writer = writer_of(memory, "images", "plain", n_envs=2)
    assert (writer.n_staged, writer.n_acknowledged) == (0, 0)
    writer.flush()
    writer.poll()
    for number in range(25):
        transition("images", number, 2, action=2 * number).add_to(writer)
        assert writer.n_staged + writer.n_acknowledged == 2 * (number + 1)
        assert writer.n_staged <= 2 * 10 * 2, "a segment on its way, and the next one"
    assert writer.n_staged >= 10
    writer.flush()
    assert (writer.n_staged, writer.n_acknowledged, writer.n_lost) == (0, 50, 0)
    assert writer.status is not None
    assert writer.status.n_inserted == 50
    assert content(memory, "plain") == [*range(50)]
    for number in range(25, 45):
        transition("images", number, 2, action=2 * number).add_to(writer)

    def is_acknowledged() -> bool:
        writer.poll()
        return writer.n_staged == 0

    until(is_acknowledged)
    assert content(memory, "plain") == [*range(90)]


@pytest.mark.parametrize("length", [1, 500])
def test_lengths_of_segments(memory: Any, length: int) -> None:
    writer = writer_of(memory, "images", f"length-{length}", length=length)
    add_to(writer, "images", range(160))
    writer.flush()
    assert content(memory, f"length-{length}") == [*range(160)]


def test_a_writer_is_sent_to_another_process(memory: Any) -> None:
    from distributed.remote_writer import RemoteWriter

    writer = writer_of(memory, "images", "remote")
    remote = new_actor(RemoteWriter, {}, writer)
    assert ray.get(remote.add.remote(range(50))) == 50
    assert content(memory, "remote") == [*range(50)]
    add_to(writer, "images", range(100, 103))  # which takes over the ring
    with pytest.raises(TypeError, match="'remote' belongs"):
        pickle.dumps(writer)
    writer.flush()
    with pytest.raises(WriterReplaced, match="'remote'"):
        ray.get(remote.add.remote(range(50, 60)))
    assert content(memory, "remote") == [*range(50), 100, 101, 102]
    ray.kill(remote)


def test_codecs_that_a_shard_does_not_have_are_sent(memory: Any) -> None:
    writer = writer_of(memory, "images", "codecs", length=40)
    add_to(writer, "images", range(10))
    writer.flush()
    for number in range(10, 160):
        transition("images", number).add_to(writer)
        codec = writer._staging.observations.codec  # type: ignore[union-attr]
        writer._sent.add(codec_digest(codec))  # as if it had been sent
    writer.flush()
    assert (writer.n_acknowledged, writer.n_lost) == (160, 0)
    assert content(memory, "codecs") == [*range(160)]
    reply = ray.get(memory.sample.remote("learner", [200]))
    batches_of(reply, "images", CodecCache())


def test_rings_may_be_resized_at_any_time(memory: Any) -> None:
    writer = writer_of(memory, "images", "resized", length=64)
    add_to(writer, "images", range(100))
    sizes = [50, 37, 200, 64, 65, 2, 300]
    for index, n_rows in enumerate(sizes):
        resized = memory.resize.remote({"resized": n_rows})
        add_to(writer, "images", range(100 + 70 * index, 100 + 70 * (index + 1)))
        ray.get(resized)
    writer.flush()
    n = 100 + 70 * len(sizes)
    assert (writer.n_acknowledged, writer.n_lost) == (n, 0)
    found = content(memory, "resized")
    assert found == [*range(n - len(found), n)]
    assert len(found) > 64


# -- deaths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["insert", "inserted", "opened"])
def test_a_shard_in_memory_returns_empty(memory: Any, point: str) -> None:
    name = f"dies-{point}"
    writer = writer_of(memory, "images", name)
    if point != "opened":
        add_to(writer, "images", range(35))
    died = die_at(point)
    add_to(writer, "images", range(writer.n_staged + writer.n_acknowledged, 100))
    writer.flush()
    assert not died.exists()
    assert (writer.n_acknowledged, writer.n_lost, writer.n_staged) == (100, 0, 0)
    found = content(memory, name)
    assert found == [*range(100 - len(found), 100)], "nothing twice"
    assert len(found) >= 65 - 10


@pytest.mark.parametrize("point", ["insert", "inserted", "open"])
def test_a_shard_with_a_folder_has_everything(folder: Any, point: str) -> None:
    name = f"dies-{point}"
    writer = writer_of(folder, "vector", name)
    if point != "open":
        add_to(writer, "vector", range(35))
    died = die_at(point)
    add_to(writer, "vector", range(writer.n_staged + writer.n_acknowledged, 100))
    writer.flush()
    assert not died.exists()
    assert (writer.n_acknowledged, writer.n_lost, writer.n_staged) == (100, 0, 0)
    assert content(folder, name) == [*range(100)], "nothing twice, and everything acknowledged"
    # Episodes continue.
    [samples] = batches_of(ray.get(folder.sample.remote(name, [3000])), "vector", CodecCache())
    rewards = rewards_of(samples)
    for number in range(90):
        if not {number, number + 1} & {36, 73} and number in rewards:
            assert rewards[number] == pytest.approx(sum(0.9**k * (number + k) for k in range(3))), number


# -- shards that do not answer -------------------------------------------------------------------------------


def test_a_ring_that_cannot_be_opened_in_time_is_an_error(memory: Any) -> None:
    writer = writer_of(memory, "images", "not opened")
    with stopped(call(memory, "ping")), short_timeout(0.2, writer):
        with pytest.raises(ShardTimeout, match="'not opened'"):
            add_to(writer, "images", range(5))
        assert writer.n_staged == 0
    add_to(writer, "images", range(5))
    writer.flush()
    assert content(memory, "not opened") == [*range(5)]


# -- full disks ----------------------------------------------------------------------------------------------


def test_a_full_disk_loses_nothing(folder: Any) -> None:
    writer = writer_of(folder, "vector", "full")
    add_to(writer, "vector", range(20))
    writer.flush()
    with full_disk(pid=call(folder, "ping")):
        with pytest.raises(OSError, match="File too large"):
            add_to(writer, "vector", range(20, 120))
        with pytest.raises(OSError, match="File too large"):
            writer.flush()
    n_added = writer.n_staged + writer.n_acknowledged
    assert writer.n_lost == 0
    add_to(writer, "vector", range(n_added, 150))
    writer.flush()
    assert (writer.n_acknowledged, writer.n_lost) == (150, 0)
    assert content(folder, "full") == [*range(150)]

"""Batches come from the other shards while some fail or are late; a shard that does not return is an error."""

from __future__ import annotations

import copy
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from gymnasium import spaces
from numpy.typing import NDArray

from distributed.buffers import actions_of, add_rows, assert_true, new_buffer, pid_of, pipeline_of, refreshed, stored
from distributed.dying_shard import DyingShard, die_at
from distributed.emitted import NUMBERS, SIZE
from distributed.stopped import short_timeout, stopped, until
from sb3_compressed import BufferNotReady, CompressedReplayBuffer
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.common.tree_map import leaves, tree_map
from sb3_compressed.distributed import DistributedReplayBuffer, shard_group
from sb3_compressed.errors import ShardUnavailable
from sb3_compressed.samplers import RecentSampler

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


@pytest.fixture(scope="module")
def killed_often(local_ray: None) -> Iterator[DistributedReplayBuffer]:
    """Return a prioritized buffer of two shards that tests kill."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_group, "Shard", DyingShard)
        buffer = new_buffer("dict", 200, n_envs=2, n_shards=2, prefetch=4, sampler="prioritized")
    yield buffer
    buffer.close()


@pytest.fixture
def mortal(killed_often: DistributedReplayBuffer) -> DistributedReplayBuffer:
    """Return that buffer when it is empty."""
    killed_often.reset()
    refreshed(killed_often)
    return killed_often


def shards_in(buffer: DistributedReplayBuffer, batch: Any) -> set[int]:
    """Return the shards that the transitions of a batch come from."""
    return {*(batch.indices >> 53).tolist()}


def test_a_shard_that_dies_is_replaced_by_the_others(
    mortal: DistributedReplayBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    before = mortal.statistics()
    n_restarts = [view.n_restarts for view in mortal._group.shards]
    add_rows(mortal, "dict", range(50))
    refreshed(mortal)
    assert shards_in(mortal, mortal.sample(64)) == {0, 1}
    early = mortal.sample(64)
    died = die_at("sample")
    with caplog.at_level(logging.WARNING):
        number = 50
        while died.exists() or mortal.statistics().n_restarts == before.n_restarts:
            add_rows(mortal, "dict", range(number, number + 5))
            assert_true(mortal.sample(32), "dict", 2)
            number += 5
    assert "failed" in caplog.text
    assert "was restarted" in caplog.text
    found = mortal.statistics()
    assert found.n_restarts == before.n_restarts + 1
    assert found.n_lost >= before.n_lost + 50
    assert found.n_failed > before.n_failed

    def returned() -> bool:
        nonlocal number
        add_rows(mortal, "dict", range(number, number + 5))
        number += 5
        batch = mortal.sample(64)
        assert_true(batch, "dict", 2)
        return shards_in(mortal, batch) == {0, 1}

    until(returned)
    n_skipped = mortal.n_skipped_updates
    mortal.update_priorities(early.indices, np.ones(64))
    mortal.sample(4)
    refreshed(mortal)
    dead = 1 if mortal._group.shards[0].n_restarts == n_restarts[0] else 0
    n_of_dead = int((early.indices >> 53 == dead).sum())
    assert mortal.n_skipped_updates == n_skipped + n_of_dead > n_skipped


def test_a_shard_that_is_stopped_is_left_out_until_it_continues(
    mortal: DistributedReplayBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    add_rows(mortal, "dict", range(1000, 1050))
    refreshed(mortal)
    pids = mortal._group.call("ping")
    before, mortal._pipeline = mortal._pipeline, pipeline_of(mortal, 4)
    with stopped(pids[0]), short_timeout(0.5, mortal), caplog.at_level(logging.WARNING):
        for number in range(1050, 1150):
            add_rows(mortal, "dict", range(number, number + 1))
            batch = mortal.sample(32)
            assert_true(batch, "dict", 2)
        assert shards_in(mortal, batch) == {1}
        assert caplog.text.count("shard 0 is late") == 1
        assert caplog.text.count("did not answer") == 1
        assert mortal.statistics().n_lost > 0
    until(lambda: shards_in(mortal, mortal.sample(64)) == {0, 1})
    mortal._pipeline = before
    refreshed(mortal)
    assert mortal.statistics().n_late > 0 or mortal._pipeline is before
    assert mortal._group.call("ping") == pids


def test_all_shards_die_at_once(mortal: DistributedReplayBuffer) -> None:
    add_rows(mortal, "dict", range(2000, 2050))
    refreshed(mortal)
    mortal.sample(32)
    for pid in mortal._group.call("ping"):
        os.kill(pid, signal.SIGKILL)
    mortal._pipeline.discard()
    add_rows(mortal, "dict", range(2050, 2061))
    for number in range(2061, 2080):
        assert_true(mortal.sample(32), "dict", 2)
        add_rows(mortal, "dict", range(number, number + 1))
    refreshed(mortal)
    seen = {action for _ in range(20) for action in assert_true(mortal.sample(64), "dict", 2)}
    assert 2 * 2065 in seen  # of 60 at most


def test_shards_that_lost_everything_do_not_end_the_training(
    mortal: DistributedReplayBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    add_rows(mortal, "dict", range(3000, 3020))
    refreshed(mortal)
    mortal._pipeline._timeout, before = 0.2, mortal._pipeline._timeout
    last = mortal.sample(32)
    mortal._group.call("reset")
    mortal._pipeline._rounds.clear()
    mortal._pipeline._batches.clear()
    mortal._group.refresh_all()
    with caplog.at_level(logging.WARNING):
        assert actions_of(mortal.sample(32)) == actions_of(last)
    assert "the last batch is returned again" in caplog.text
    with pytest.raises(BufferNotReady):
        mortal.sample(31)
    add_rows(mortal, "dict", range(4000, 4020))
    mortal._pipeline._timeout = before
    assert min(assert_true(mortal.sample(32), "dict", 2)) >= 8000


# -- restarts with large arguments ----------------------------------------------------------------------------


class LargeSampler(RecentSampler):
    """A sampler that is larger than what Ray sends with a call."""

    def __init__(self, table: NDArray[np.float64] | None = None) -> None:
        super().__init__()
        self.table = np.zeros(100_000) if table is None else table


def bounded(shape: tuple[int, ...]) -> spaces.Box:
    """Return a space of which the upper bound differs by pixel."""
    high = np.random.default_rng(shape).integers(100, 256, shape, np.uint8)
    return spaces.Box(np.zeros_like(high), high, dtype=np.uint8)


def half_of_bounds(space: spaces.Space[Any], number: int) -> Any:
    """Return an observation that differs by number."""
    if isinstance(space, spaces.Dict):
        return {key: half_of_bounds(part, number) for key, part in space.items()}
    assert isinstance(space, spaces.Box)
    return space.high // 2 + np.uint8(number)


@pytest.mark.parametrize(
    "space",
    [
        pytest.param(bounded((4, SIZE, SIZE)), id="image"),
        pytest.param(spaces.Dict(stack=bounded((4, SIZE, SIZE)), rgb=bounded((3, 64, 64))), id="two-images"),
    ],
)
def test_a_shard_is_restarted_with_large_spaces_codecs_and_samplers(space: spaces.Space[Any]) -> None:
    dictionary = bounded((4, SIZE, SIZE)).high.tobytes() * 8
    buffer = DistributedReplayBuffer(
        200, space, NUMBERS, "cpu", segment_length=4, timeout=60.0,
        compression_method=ZstdDict(dictionary=dictionary), sampler=LargeSampler(),
    )  # fmt: skip
    writer = buffer.writer("other", 1)

    def add(number: int) -> None:
        for each, action in ((buffer, number), (writer, number + 30)):
            obs = tree_map(lambda value: value[np.newaxis], half_of_bounds(space, action))
            arguments: Any = np.array([action]), np.array([1.0]), np.array([False]), [{}]
            each.add(obs, copy.deepcopy(obs), *arguments)

    def flush() -> None:
        writer.flush()
        buffer.record_status(writer.name, writer.status)
        refreshed(buffer)

    for number in range(8):
        add(number)
    flush()
    os.kill(pid_of(buffer), signal.SIGKILL)
    for number in range(8, 16):
        add(number)
    flush()
    assert buffer.statistics().n_restarts == 1
    assert [*stored(buffer).values()] == [8, 8]  # what both have added since
    batch = buffer.sample(32)
    assert {*actions_of(batch)} <= {*range(8, 16), *range(38, 46)}
    for row, action in enumerate(actions_of(batch)):
        expected = half_of_bounds(space, action)
        found = tree_map(lambda value: value[row].numpy(), batch.observations)  # noqa: B023  # it is called at once
        for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    buffer.close()


# -- shards that do not return --------------------------------------------------------------------------------


def kill_process(buffer: DistributedReplayBuffer) -> None:
    os.kill(pid_of(buffer), signal.SIGKILL)


def kill_actor(buffer: DistributedReplayBuffer) -> None:
    ray.kill(buffer._group.shards[0].actor)


@pytest.mark.parametrize(
    ("kill", "options"), [(kill_process, {"max_restarts": 0}), (kill_actor, {})], ids=["process", "actor"]
)
def test_a_shard_that_ray_gives_up_is_an_error(
    kill: Callable[[DistributedReplayBuffer], None], options: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    buffer = new_buffer("images", 200, n_envs=2, n_shards=2, prefetch=0, storage=folder, ray_options=options)
    writers = [buffer.writer(name, 1) for name in ("new", "other")]  # of both shards, and without a timeout
    add_rows(buffer, "images", range(20))
    refreshed(buffer)
    add_rows(buffer, "images", range(20, 25))
    kill(buffer)
    of_first, of_second = sorted(writers, key=lambda writer: writer.shard_name)
    with pytest.raises(ShardUnavailable, match="shard 0"):
        add_rows(of_first, "images", range(1))
    add_rows(of_second, "images", range(20))
    with pytest.raises(ShardUnavailable, match="shard 0"):
        buffer.sample(32)
    with pytest.raises(ShardUnavailable, match="shard 0"):
        add_rows(buffer, "images", range(25, 100))
    n_added = 20 + buffer._local[0][1].n_staged
    with pytest.raises(ShardUnavailable, match="shard 0"):
        buffer.save_checkpoint(tmp_path / "checkpoint")
    assert buffer.size() > 0
    with pytest.raises(ShardUnavailable, match="shard 0"):  # since it lacks what was staged
        buffer.close()
    for shard, n_stored in ((0, 20), (1, n_added)):
        (ring,) = folder.glob(f"shard-{shard}/ring-learner-*")
        assert CompressedReplayBuffer.from_checkpoint(ring, device="cpu").size() == n_stored

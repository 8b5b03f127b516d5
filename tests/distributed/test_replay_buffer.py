"""The distributed buffer returns what SB3's would, from any number of shards, also while some of them fail."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch as th
from chi_square import assert_frequencies
from commands import error_of
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import ImageEnv

from distributed.counting_shard import CountingShard
from distributed.dying_shard import DyingShard, die_at
from distributed.emitted import NUMBERS, SPACES, observation, sb3_buffer, transition
from distributed.test_writer import until
from sb3_compressed import (
    BufferNotReady,
    CompressedReplayBuffer,
    CorruptPayload,
    StorageError,
    buffer_statistics,
    load_checkpoint,
    prioritize,
    save_checkpoint,
)
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.datasets import trajectories
from sb3_compressed.distributed import DistributedReplayBuffer, shard_group
from sb3_compressed.distributed.sample_pipeline import SamplePipeline
from sb3_compressed.distributed.shard import SampleReply
from sb3_compressed.samplers import PrioritizedSampler, WithoutReplacementSampler

pytestmark = pytest.mark.usefixtures("local_ray")

#: Transitions of other writers than the learner begin here.
REMOTE = 700_000


def new_buffer(kind: str, n_rows: int, n_envs: int = 1, **options: Any) -> DistributedReplayBuffer:
    defaults = {"device": "cpu", "segment_length": 10, "timeout": 60.0}
    return DistributedReplayBuffer(n_rows * n_envs, SPACES[kind], NUMBERS, n_envs=n_envs, **{**defaults, **options})


def add_rows(buffer: Any, kind: str, numbers: range) -> None:
    """Add transitions of all environments; the actions of a row are consecutive."""
    for number in numbers:
        transition(kind, number, buffer.n_envs, action=number * buffer.n_envs).add_to(buffer)


def actions_of(batch: Any) -> list[int]:
    """Return the numbers of the transitions in a batch."""
    return [*map(int, batch.actions.reshape(-1))]


def assert_true(
    batch: Any, kind: str, n_envs: int = 1, convert: Callable[[Any], Any] = lambda value: value
) -> list[int]:
    """Assert that a batch consists of what was added; return the numbers of its transitions."""
    actions = actions_of(batch)
    assert batch.rewards.reshape(-1).tolist() == actions
    for row, action in enumerate(actions):
        number, env = (action, 0) if action >= REMOTE else divmod(action, n_envs)
        for found, each in ((batch.observations, number), (batch.next_observations, number + 1)):
            expected = observation(kind, each, env)
            for key, value in expected.items() if isinstance(expected, dict) else [("", expected)]:
                tensor = (found[key] if key else found)[row]
                np.testing.assert_array_equal(tensor.numpy().reshape(value.shape), convert(value))
    return actions


def pipeline_of(buffer: DistributedReplayBuffer, prefetch: int, timeout: float = 60.0) -> SamplePipeline:
    """Return another pipeline for the shards of a buffer."""
    return SamplePipeline(buffer._group, prefetch, timeout, np.random.default_rng(0), buffer.flush)


def refreshed(buffer: DistributedReplayBuffer) -> None:
    """Let the buffer know the present state of all shards, and discard what was sampled before."""
    buffer.flush()
    buffer._group.refresh_all()
    buffer._pipeline.discard()


@pytest.fixture(scope="module")
def shared(local_ray: None) -> Iterator[DistributedReplayBuffer]:
    """Return a buffer of 4 environments in 3 shards."""
    buffer = new_buffer("transposed", 60, n_envs=4, n_shards=3)
    yield buffer
    buffer.close()


@pytest.fixture
def images(shared: DistributedReplayBuffer) -> DistributedReplayBuffer:
    """Return that buffer when it is empty."""
    shared.reset()
    refreshed(shared)
    return shared


# -- adding and sampling -------------------------------------------------------------------------------------


def test_batches_are_those_of_sb3(images: DistributedReplayBuffer) -> None:
    assert images.size() == 0
    add_rows(images, "transposed", range(2))
    batch = images.sample(3)
    assert_true(batch, "transposed", 4)
    expected = sb3_buffer("transposed", 60, 4)
    add_rows(expected, "transposed", range(2))
    for name, value in expected.sample(3)._asdict().items():
        found = getattr(batch, name)
        if value is None:
            assert found is None
        else:
            assert (found.dtype, found.shape, found.device) == (value.dtype, value.shape, value.device)
    assert type(batch) is type(expected.sample(3))


@pytest.mark.parametrize("last", [7, 30, 100])
def test_all_transitions_are_drawn_equally(images: DistributedReplayBuffer, last: int) -> None:
    add_rows(images, "transposed", range(last))
    assert images.size() == min(last, 60)
    refreshed(images)
    assert images.size() == min(last, 60)
    first = 4 * max(last - 60, 0)
    counts = np.zeros(4 * min(last, 60))
    for _ in range(40):
        np.add.at(counts, np.array(actions_of(images.sample(64))) - first, 1)
    assert_true(images.sample(40), "transposed", 4)
    assert_frequencies(counts)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 3, 16])
def test_any_number_of_batches_is_requested_ahead(images: DistributedReplayBuffer, prefetch: int) -> None:
    add_rows(images, "transposed", range(60))
    refreshed(images)
    before, images._pipeline = images._pipeline, pipeline_of(images, prefetch)
    try:
        n_sampled, seen = images.n_sampled, set()
        sizes = [1, 32, 32, 32, 7, 7, 1, 100, *[16] * 20]
        for size in sizes:
            batch = images.sample(size)
            assert len(batch.actions) == size
            seen |= {*assert_true(batch, "transposed", 4)}
            assert images.statistics().staleness <= prefetch
        assert images.n_sampled == n_sampled + sum(sizes)
        assert images.statistics().staleness >= prefetch // 2
        assert len(seen) > 100
    finally:
        images._pipeline = before


def test_statistics(images: DistributedReplayBuffer) -> None:
    add_rows(images, "transposed", range(100))
    refreshed(images)
    n_before = images.statistics().n_inserted
    add_rows(images, "transposed", range(100, 105))
    images.sample(16)
    refreshed(images)
    found = images.statistics()
    assert found.n_transitions == images.n_transitions == 240
    assert found.n_inserted == n_before + 4 * 5
    assert found.n_sampled == images.n_sampled
    assert (found.n_lost, found.n_restarts, found.n_failed, found.n_late) == (0, 0, 0, 0)
    assert 0 < found.n_bytes_inserted < 0.3 * 2 * 1600 * found.n_inserted
    assert found.n_bytes_sampled > 0
    assert found.waited > 0


def test_output_formats(images: DistributedReplayBuffer) -> None:
    add_rows(images, "transposed", range(20))
    try:
        images.output_dtype = "float"
        batch = images.sample(8)
        assert batch.observations.dtype == th.float32
        assert_true(batch, "transposed", 4, lambda value: value.astype(np.float32))
        images.normalize_images = True
        for format in ("float", "raw"):
            images.output_dtype = format
            batch = images.sample(8)
            assert_true(batch, "transposed", 4, lambda value: value.astype(np.float32) / 255)
    finally:
        images.output_dtype, images.normalize_images = "raw", False


def test_wrong_arguments_add_nothing_to_any_shard(images: DistributedReplayBuffer) -> None:
    add_rows(images, "transposed", range(305, 310))
    step = transition("transposed", 310, 4, action=1240)
    fewer = step.obs[:3]
    wrong_arguments: list[dict[str, Any]] = [
        {"obs": fewer}, {"next_obs": fewer}, {"obs": step.obs[:, :2]}, {"action": step.action[:3]},
        {"reward": step.reward[:3]}, {"done": step.done[:3]}, {"infos": step.infos[:3]}, {"infos": [{}, {}, {}, 3]},
        {"next_obs": np.where(np.arange(4).reshape(4, 1, 1, 1) == 3, 0.5, step.obs)},
    ]  # fmt: skip
    for wrong in wrong_arguments:
        with pytest.raises((ValueError, TypeError)):
            images.add(**{**vars(step), **wrong})
    add_rows(images, "transposed", range(310, 370))
    refreshed(images)
    seen = {*assert_true(images.sample(600), "transposed", 4)}
    assert seen <= {*range(1240, 1480)}
    assert len(seen) > 200


def test_lists_are_accepted(images: DistributedReplayBuffer) -> None:
    add_rows(images, "transposed", range(360, 370))
    step = transition("transposed", 370, 4, action=1480)
    images.add(
        step.obs.tolist(), step.next_obs, step.action.tolist(), step.reward.tolist(), [False] * 4, tuple(step.infos)
    )
    refreshed(images)
    actions = actions_of(images.sample(2000))
    assert {1480, 1481, 1482, 1483} <= {*actions}


def test_a_checkpoint_is_one_state_of_all_shards(images: DistributedReplayBuffer, tmp_path: Path) -> None:
    add_rows(images, "transposed", range(300, 390))
    save_checkpoint(images, tmp_path / "checkpoint")
    add_rows(images, "transposed", range(390, 410))
    images.flush()
    images.load_checkpoint(tmp_path / "checkpoint")
    assert images.size() == 60
    for _ in range(2):
        assert {*actions_of(images.sample(1500))} <= {*range(4 * 330, 4 * 390)}
    add_rows(images, "transposed", range(500, 510))
    refreshed(images)
    seen = {*assert_true(images.sample(5000), "transposed", 4)}
    assert seen <= {*range(4 * 340, 4 * 390), *range(4 * 500, 4 * 510)}
    assert {*range(4 * 500, 4 * 510)} <= seen


@pytest.mark.parametrize(("n_saved", "n_loaded"), [(2, 1), (1, 3)])
def test_a_checkpoint_continues_with_another_number_of_shards(
    local_ray: None, tmp_path: Path, n_saved: int, n_loaded: int
) -> None:
    """Each environment continues its own rows, so the newest transitions replace the oldest ones."""
    buffer = new_buffer("small", 20, n_envs=3, n_shards=n_saved)
    add_rows(buffer, "small", range(20))
    buffer.save_checkpoint(tmp_path / "checkpoint")
    buffer.close()
    again = new_buffer("small", 20, n_envs=3, n_shards=n_loaded)
    again.load_checkpoint(tmp_path / "checkpoint")
    add_rows(again, "small", range(100, 112))
    refreshed(again)
    assert {*assert_true(again.sample(2000), "small", 3)} == {*range(3 * 12, 3 * 20), *range(3 * 100, 3 * 112)}
    again.close()


def test_tools_for_buffers_in_the_process_say_that_rings_are_buffers(
    images: DistributedReplayBuffer, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match="are in other processes; load_checkpoint opens the folder of each"):
        next(trajectories(images))
    with pytest.raises(TypeError, match="buffer_statistics is for compressed buffers, got a DistributedReplayBuffer"):
        buffer_statistics(images)
    add_rows(images, "transposed", range(420, 430))
    checkpoint = tmp_path / "step_0000000430"
    images.save_checkpoint(checkpoint / "buffer")
    for folder in (checkpoint / "buffer", checkpoint):
        error = error_of("inspect", folder)
        ring = Path(error.partition(", such as ")[2])
        assert error == f"{folder} contains a distributed buffer; pass the folder of a ring, such as {ring}"
        assert sum(len(episode) for episode in trajectories(load_checkpoint(ring, device="cpu"))) > 0


def test_reset_removes_everything(images: DistributedReplayBuffer) -> None:
    add_rows(images, "transposed", range(510, 515))
    images.reset()
    assert (images.size(), images.n_transitions) == (0, 0)
    images._pipeline._timeout, before = 0.5, images._pipeline._timeout
    with pytest.raises(BufferNotReady, match="no shard has a transition to sample: add some first"):
        images.sample(4)
    images._pipeline._timeout = before
    add_rows(images, "transposed", range(600, 605))
    assert {*assert_true(images.sample(100), "transposed", 4)} <= {*range(2400, 2420)}
    refreshed(images)
    assert images.size() == 5


def test_layouts_may_differ_between_shards(images: DistributedReplayBuffer) -> None:
    add_rows(images, "transposed", range(20))
    images.flush()
    images.sample(4)
    refreshed(images)
    parts = images._pipeline.next(32)
    assert len(parts) == 3
    for part, n_frames in zip(parts, (2, 1, 4), strict=True):
        n = 2 * len(part.block.arrays["rings"])
        items = np.stack([observation("images", 3 * k) for k in range(n)])
        none = get_codec("none")
        payloads = none.encode(items.reshape(n * n_frames, -1))
        part.block.batches["observations"] = PayloadBatch([none], Payloads.of(payloads), n_frames)
        part.block.values["layouts"]["observations"] = None if n_frames == 1 else [0, n_frames]
    decoded = images._decoded(parts, "observations", 32)
    row = 0
    for part in parts:
        size = part.last - part.first
        for name, begin in (("observations", 2 * part.first), ("next_observations", 2 * part.first + size)):
            for k in range(size):
                np.testing.assert_array_equal(decoded[name][row + k], observation("images", 3 * (begin + k)))
        row += size
    images._pipeline.discard()


def test_damaged_replies_are_reported_once(images: DistributedReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    get = ray.get

    def damaged(replies: Any, **options: Any) -> Any:
        reply = get(replies, **options)
        if isinstance(reply, SampleReply) and reply.block is not None:
            block = reply.block.copy()
            block[-9] ^= 1
            return reply._replace(block=block)
        return reply

    add_rows(images, "transposed", range(20))
    refreshed(images)
    with monkeypatch.context() as patch:
        patch.setattr(ray, "get", damaged)
        with pytest.raises(CorruptPayload, match="the checksum of the block is wrong"):
            images.sample(20)
    assert_true(images.sample(20), "transposed", 4)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_cannot_be_copied(images: DistributedReplayBuffer, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="a distributed buffer cannot be pickled or copied"):
        copied(images)


# -- other writers -------------------------------------------------------------------------------------------


def test_transitions_of_other_writers_are_sampled(local_ray: None) -> None:
    """Shards that had nothing when they last answered are asked again."""
    buffer = new_buffer("dict", 100, n_shards=2, prefetch=4)
    for number in range(12):
        transition("dict", number).add_to(buffer)
    assert_true(buffer.sample(16), "dict")
    writers = [buffer.writer(name, 1) for name in ("a", "b")]
    assert {buffer._writers[name][1] for name in ("a", "b", "learner-0")} == {0, 1}
    assert buffer.writer("a", 1)._shard is writers[0]._shard, "a new writer of the same name continues its ring"
    for writer, first in zip(writers, (REMOTE, REMOTE + 1000), strict=True):
        for number in range(first, first + 30):
            transition("dict", number).add_to(writer)
        writer.flush()
    seen: set[int] = set()

    def are_all_seen() -> bool:
        seen.update(assert_true(buffer.sample(32), "dict"))
        return {number // 1000 for number in seen} == {0, 700, 701}

    until(are_all_seen)
    assert buffer._group.rows.keys() == {"a", "b", "learner-0"}
    assert 90 <= sum(buffer._group.rows.values()) <= 100
    for wrong, n_envs, message in (
        ("learner-0", 1, "names that begin with 'learner-'"), ("c", 0, "n_envs"),
        ("a", 2, "the ring of 'a' has 1 environments, got n_envs=2"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            buffer.writer(wrong, n_envs)
    refreshed(buffer)
    counts = np.zeros(3)
    for _ in range(20):
        for number in actions_of(buffer.sample(64)):
            counts[0 if number < REMOTE else 1 + (number >= REMOTE + 1000)] += 1
    assert_frequencies(counts, [12, 30, 30])
    buffer.close()
    buffer.close()
    for use in (lambda: buffer.sample(4), lambda: transition("dict", 0).add_to(buffer), buffer.reset):
        with pytest.raises(RuntimeError, match="the buffer is closed"):
            use()


# -- rings of several writers ----------------------------------------------------------------------------------


def stored(buffer: DistributedReplayBuffer) -> dict[str, int]:
    """Return how many transitions each ring contains."""
    return {name: size for rings in buffer._group.call("rings") for name, (_, size) in rings.items()}


def write(buffer: DistributedReplayBuffer, kind: str, writers: dict[str, Any], numbers: range, repeat: int = 1) -> None:
    """Add transitions with writers in this process, a part at a time; ``repeat`` of each with the first one."""
    for first in range(numbers.start, numbers.stop, 10):
        for index, writer in enumerate(writers.values()):
            n = 10 * (repeat if index == 0 else 1)
            begin = REMOTE + 50_000 * index + first * (n // 10)
            for number in range(begin, begin + n):
                transition(kind, number).add_to(writer)
            writer.flush()
            buffer.record_statuses(writer.name, writer.take_statuses())


PLACES = ["memory", "folder"]


def place_of(where: str, tmp_path: Path) -> dict[str, Any]:
    return {"storage": tmp_path / "shards"} if where == "folder" else {}


@pytest.mark.parametrize("where", PLACES)
def test_the_rows_of_a_writer_that_is_gone_are_used_by_others(local_ray: None, where: str, tmp_path: Path) -> None:
    buffer = new_buffer("small", 400, n_shards=2, **place_of(where, tmp_path))
    writers = {name: buffer.writer(name, 1) for name in ("gone", "a")}
    write(buffer, "small", writers, range(300))
    assert sum(stored(buffer).values()) > 370
    a = {"a": writers["a"]}
    write(buffer, "small", a, range(20_000, 20_900))
    assert stored(buffer)["gone"] == 0
    assert stored(buffer)["a"] > 350
    refreshed(buffer)
    seen = {*assert_true(buffer.sample(6000), "small")}
    last = REMOTE + 20_900
    assert seen == {*range(last - stored(buffer)["a"], last)}, "the newest transitions"
    # A writer that returns can insert at once, and gets its rows back.
    write(buffer, "small", {"gone": writers["gone"]}, range(10_000, 10_010))
    assert stored(buffer)["gone"] > 2
    write(buffer, "small", writers, range(30_000, 31_000))
    assert min(stored(buffer).values()) >= 100
    assert 360 <= sum(stored(buffer).values()) <= 400
    assert writers["gone"].n_lost == 0
    buffer.close()


@pytest.mark.parametrize("where", PLACES)
def test_collectors_replace_the_transitions_of_the_learner(local_ray: None, where: str, tmp_path: Path) -> None:
    buffer = new_buffer("small", 400, n_shards=2, prefetch=0, **place_of(where, tmp_path))
    add_rows(buffer, "small", range(100))
    writers = {name: buffer.writer(name, 1) for name in ("a", "b")}
    write(buffer, "small", writers, range(100))
    assert stored(buffer) == {"learner-0": 100, "a": 100, "b": 100}, "all fits"
    write(buffer, "small", writers, range(100, 400))
    assert stored(buffer)["learner-0"] == 0
    assert min(stored(buffer)["a"], stored(buffer)["b"]) > 180
    refreshed(buffer)
    assert buffer.size() == sum(stored(buffer).values()) <= 400
    seen = {*assert_true(buffer.sample(6000), "small")}
    assert len(seen) == buffer.size()
    add_rows(buffer, "small", range(500, 540))  # the learner adds again
    refreshed(buffer)
    assert set(range(532, 540)) <= {*assert_true(buffer.sample(6000), "small")}
    buffer.close()


def test_collectors_of_different_speed_fill_the_buffer(local_ray: None) -> None:
    buffer = new_buffer("small", 800, n_shards=2)
    writers = {name: buffer.writer(name, 1) for name in ("fast", "slow")}
    write(buffer, "small", writers, range(200), repeat=6)
    found = stored(buffer)
    assert 0.9 * 800 < sum(found.values()) <= 800
    assert found["fast"] > 4 * found["slow"] > 300
    buffer.close()


@pytest.mark.parametrize("where", PLACES)
def test_a_restarted_shard_has_the_rows_of_before(local_ray: None, where: str, tmp_path: Path) -> None:
    buffer = new_buffer("small", 400, **place_of(where, tmp_path))
    writers = {name: buffer.writer(name, 1) for name in ("a", "gone")}
    write(buffer, "small", writers, range(100))
    write(buffer, "small", {"a": writers["a"]}, range(20_000, 20_600))
    before, rows = stored(buffer), dict(buffer._group.rows)
    assert before["a"] > 350
    pid = ray.get(buffer.shards[0].actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    if where == "folder":
        assert stored(buffer) == before
    write(buffer, "small", {"a": writers["a"]}, range(30_000, 30_700))
    assert stored(buffer)["a"] == rows["a"]
    write(buffer, "small", {"gone": writers["gone"]}, range(10_000, 10_010))
    assert 0 < stored(buffer)["gone"] <= 10
    refreshed(buffer)
    assert buffer.statistics().n_restarts == 1
    buffer.close()
    if where == "folder":
        again = new_buffer("small", 400, storage_mode="resume", **place_of(where, tmp_path))
        assert stored(again)["a"] > 350
        again.close()


@pytest.mark.parametrize("size", [400, 200, 1000])
def test_a_checkpoint_keeps_rings_of_different_size(local_ray: None, size: int, tmp_path: Path) -> None:
    buffer = new_buffer("small", 400)
    writers = {name: buffer.writer(name, 1) for name in ("a", "slow")}
    write(buffer, "small", writers, range(100), repeat=9)
    before = stored(buffer)
    assert before["a"] > 4 * before["slow"] > 100
    buffer.save_checkpoint(tmp_path / "checkpoint")
    buffer.close()
    again = new_buffer("small", size, n_shards=2)
    again.load_checkpoint(tmp_path / "checkpoint")
    found = stored(again)
    if size >= 400:
        assert found["slow"] >= 0.8 * before["slow"]
        assert found["a"] >= 0.8 * before["a"]
    assert 0.8 * min(size, 400) <= sum(found.values()) <= size
    assert found["a"] > 3 * found["slow"]
    again.close()


def test_a_checkpoint_of_version_0_2_is_loaded_into_equal_rings(local_ray: None, tmp_path: Path) -> None:
    buffer = new_buffer("small", 100)
    add_rows(buffer, "small", range(70))
    a = buffer.writer("a", 1)
    assert stored(buffer) == {"learner-0": 70}
    write(buffer, "small", {"a": a}, range(10))
    buffer.save_checkpoint(tmp_path / "checkpoint")
    manifest = tmp_path / "checkpoint" / "distributed.json"
    saved = json.loads(manifest.read_text())
    rings = saved.pop("rings")
    assert {name: ring["n_transitions"] for name, ring in rings.items()} == stored(buffer) == {"learner-0": 70, "a": 10}
    (tmp_path / "checkpoint" / saved["cut"]).rename(tmp_path / "checkpoint" / "cut-3")
    manifest.write_text(json.dumps({**saved, "version": 1, "cut": 3, "n_rows": 50}))
    buffer.load_checkpoint(tmp_path / "checkpoint")
    assert stored(buffer) == {"learner-0": 50, "a": 10}
    buffer.close()


# -- priorities ----------------------------------------------------------------------------------------------


def test_priorities(local_ray: None) -> None:
    sampler = PrioritizedSampler(alpha=0.8, beta=0.5, beta_steps=400, epsilon=0.0)
    buffer = new_buffer("vector", 30, n_envs=3, n_shards=2, prefetch=0, sampler=sampler)
    add_rows(buffer, "vector", range(40))
    refreshed(buffer)
    batch = buffer.sample(2000)
    assert batch.weights.tolist() == [[1.0]] * 2000
    assert batch.weights.dtype == th.float32
    actions, indices = np.array(assert_true(batch, "vector", 3)), batch.indices
    assert sorted({*actions.tolist()}) == [*range(30, 120)]
    assert len(np.unique(indices)) == 90
    numbers = dict(zip(actions.tolist(), indices.tolist(), strict=True))
    errors = np.random.default_rng(0).uniform(0.2, 2.0, 90)
    errors[::3] *= 3  # those of one shard
    order = np.array([numbers[action] for action in range(30, 120)])
    assert buffer.update_priorities(order, th.tensor(-errors).reshape(-1, 1)) == 0
    buffer.sample(1)
    refreshed(buffer)
    priorities = errors**0.8
    np.testing.assert_allclose(buffer._group.masses.sum(), priorities.sum())
    counts, n_draws = np.zeros(90), 2
    for _ in range(60):
        batch = buffer.sample(64)
        drawn = np.array(actions_of(batch)) - 30
        np.add.at(counts, drawn, 1)
        expected = (priorities[drawn].min() / priorities[drawn]) ** (0.5 + 0.5 * n_draws / 400)
        np.testing.assert_allclose(batch.weights.numpy().reshape(-1), expected, rtol=1e-5)
        np.testing.assert_array_equal(batch.indices, order[drawn])
        n_draws += 1
    assert_frequencies(counts, priorities)
    # Updates of transitions that were overwritten are skipped and counted.
    add_rows(buffer, "vector", range(40, 50))
    buffer.flush()
    assert buffer.n_skipped_updates == 0
    buffer.update_priorities(order, np.ones(90))
    buffer.sample(1)
    refreshed(buffer)
    assert buffer.n_skipped_updates == 30
    for wrong, error in (
        ((order, np.ones(89)), ValueError), ((order, np.full(90, np.nan)), ValueError),
        ((order.astype(float), np.ones(90)), TypeError), ((np.array([-1]), np.ones(1)), ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            buffer.update_priorities(*wrong)
    # A VecNormalize normalizes what is returned, as in SB3.
    env: Any = VecNormalize(DummyVecEnv([lambda: ImageEnv(SPACES["vector"], NUMBERS)]))
    env.obs_rms.mean, env.obs_rms.var, env.ret_rms.var = np.arange(9.0), np.arange(1.0, 10.0), np.array(40.0)
    batch = buffer.sample(32, env)
    for row, action in enumerate(actions_of(batch)):
        expected = env.normalize_obs(observation("vector", *divmod(action, 3)))
        np.testing.assert_allclose(batch.observations[row].numpy(), expected)
        np.testing.assert_allclose(batch.rewards[row, 0].item(), env.normalize_reward(np.float32(action)), rtol=1e-6)
    # After a reset, numbers of before are those of no transitions.
    buffer.reset()
    add_rows(buffer, "vector", range(50))
    refreshed(buffer)
    before = buffer._group.masses.sum()
    n_skipped = buffer.n_skipped_updates
    buffer.update_priorities(order, np.full(90, 100.0))
    buffer.sample(1)
    refreshed(buffer)
    assert buffer._group.masses.sum() == before
    assert buffer.n_skipped_updates == n_skipped + 90
    buffer.close()


def test_new_transitions_have_the_largest_priority_of_all_shards(local_ray: None) -> None:
    sampler = PrioritizedSampler(alpha=1.0, epsilon=0.0)
    buffer = new_buffer("small", 100, n_shards=3, prefetch=0, sampler=sampler)
    writers = {name: buffer.writer(name, 1) for name in ("a", "b", "c")}
    write(buffer, "small", writers, range(10))
    refreshed(buffer)
    batch = buffer.sample(200)
    of_a = np.array(actions_of(batch)) < REMOTE + 50_000
    buffer.update_priorities(batch.indices[of_a], np.full(of_a.sum(), 8.0))
    buffer.sample(200)  # which sends the updates
    buffer.sample(200)  # which sends what is the largest one now
    write(buffer, "small", {"-": writers["a"], "b": writers["b"]}, range(10, 20))
    for shard in range(3):
        before = buffer.shards[shard].status
        assert before is not None
        assert before.max_updated == (8.0 if shard == 0 else 0.0)
    masses = buffer._group.masses.tolist()
    assert masses == [8.0 * 20, 1.0 * 10 + 8.0 * 10, 1.0 * 10]
    buffer.close()


def test_updates_of_priorities_need_no_calls_of_their_own(local_ray: None) -> None:
    """Shards have them before they draw, and at the latest when the buffer is flushed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_group, "Shard", CountingShard)
        buffer = new_buffer("small", 100, n_shards=2, prefetch=8, sampler="prioritized")
    add_rows(buffer, "small", range(50))
    write(buffer, "small", {"b": buffer.writer("b", 1)}, range(50))
    refreshed(buffer)
    for _ in range(80):
        batch = buffer.sample(64)
        buffer.update_priorities(batch.indices, np.full(64, 3.0))
    n_requests = 80 // 4 + 2  # two rounds of four batches are requested ahead
    assert buffer._group.call("n_calls") == [n_requests, n_requests]
    buffer.flush()
    refreshed(buffer)
    assert buffer._group.call("n_calls") == [n_requests + 1, n_requests + 1]
    np.testing.assert_allclose(buffer._group.masses.sum(), buffer.n_transitions * (3 + 1e-6) ** 0.6)
    buffer.close()


def test_updates_are_sent_before_a_checkpoint(local_ray: None, tmp_path: Path) -> None:
    sampler = PrioritizedSampler(alpha=1.0, epsilon=0.0)
    buffer = new_buffer("small", 100, sampler=sampler)
    add_rows(buffer, "small", range(20))
    batch = buffer.sample(400)
    buffer.update_priorities(batch.indices, np.full(400, 4.0))
    buffer.save_checkpoint(tmp_path / "checkpoint")
    refreshed(buffer)
    assert buffer._group.masses.tolist() == [4.0 * 20]
    again = new_buffer("small", 100, sampler=sampler)
    again.load_checkpoint(tmp_path / "checkpoint")
    assert again._group.masses.tolist() == [4.0 * 20]
    for each in (buffer, again):
        each.close()


def test_updates_need_priorities(images: DistributedReplayBuffer) -> None:
    with pytest.raises(TypeError, match=r"update_priorities\(\) is for buffers with sampler='prioritized'"):
        images.update_priorities(np.array([1]), np.ones(1))


# -- folders and options -------------------------------------------------------------------------------------

STORED: dict[str, Any] = {"compression_method": "zstd", "dtypes": {"vector": np.float64}, "segment_length": 7}


def test_a_folder_is_continued(local_ray: None, tmp_path: Path) -> None:
    """Each part of the space has its own shape and dtype, also a discrete one."""
    buffer = new_buffer("dict", 50, storage=tmp_path / "shards", **STORED)
    add_rows(buffer, "dict", range(70))
    refreshed(buffer)
    assert_true(buffer.sample(50), "dict")
    expected: Any = sb3_buffer("dict", 50, 1)
    add_rows(expected, "dict", range(3))
    for name, value in expected.sample(50).observations.items():
        found = buffer.sample(50).observations[name]
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
    buffer.close()
    with pytest.raises(StorageError, match="contains a shard; pass storage_mode='resume' to continue it") as raised:
        new_buffer("dict", 50, storage=tmp_path / "shards", **STORED)
    assert type(raised.value) is StorageError  # not that of Ray, whose message is a traceback
    with pytest.warns(UserWarning, match="50 transitions"):
        again = new_buffer("dict", 30, storage=tmp_path / "shards", storage_mode="resume", **STORED)
    assert again.size() == 30
    assert {*assert_true(again.sample(600), "dict")} == {*range(40, 70)}
    add_rows(again, "dict", range(70, 75))
    refreshed(again)
    assert {*assert_true(again.sample(600), "dict")} == {*range(45, 75)}
    again.close()


def test_a_folder_is_not_continued_with_fewer_shards(local_ray: None, tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage": tmp_path / "shards", "n_envs": 2}
    buffer = new_buffer("vector", 20, n_shards=2, **options)
    add_rows(buffer, "vector", range(5))
    buffer.close()
    for mode in ("create", "resume", "overwrite"):
        with pytest.raises(StorageError, match="contains 2 shards, got n_shards=1: pass n_shards=2"):
            new_buffer("vector", 20, n_shards=1, storage_mode=mode, **options)
    again = new_buffer("vector", 20, n_shards=3, resume=True, **options)
    assert again.n_transitions == 10
    again.close()


def test_vectors_in_a_folder(local_ray: None, tmp_path: Path) -> None:
    """In folders, vectors are slots."""
    buffer = new_buffer("vector", 40, n_envs=2, storage=tmp_path / "shards", n_steps=3, gamma=0.9, prefetch=2)
    add_rows(buffer, "vector", range(20))
    buffer.flush()
    batch = buffer.sample(64)
    for row, action in enumerate(actions_of(batch)):
        np.testing.assert_array_equal(batch.observations[row].numpy(), observation("vector", *divmod(action, 2)))
    is_inner = (batch.actions < 34).reshape(-1)
    expected = sum(0.9**k * (batch.actions.reshape(-1) + 2 * k) for k in range(3))
    np.testing.assert_allclose(batch.rewards.reshape(-1)[is_inner], expected[is_inner], rtol=1e-6)
    np.testing.assert_allclose(batch.discounts.reshape(-1)[is_inner], 0.9**3, rtol=1e-6)
    env = VecNormalize(DummyVecEnv([lambda: ImageEnv(SPACES["vector"], NUMBERS)]))
    with pytest.raises(ValueError, match="VecNormalize must have norm_reward=False"):
        buffer.sample(4, env)
    assert len(buffer.sample(4, VecNormalize(env.venv, norm_reward=False)).rewards) == 4
    # The process is killed, and continues with everything while the learner samples.
    pid = ray.get(buffer.shards[0].actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    for number in range(20, 30):
        add_rows(buffer, "vector", range(number, number + 1))
        assert len(buffer.sample(64).actions) == 64
    refreshed(buffer)
    assert buffer.size() == 30
    assert {*actions_of(buffer.sample(2000))} == {*range(60)}
    found = buffer.statistics()
    assert (found.n_restarts, found.n_lost) == (1, 0)
    assert found.n_inserted > 40, "of both processes"
    buffer.close()


# -- faults --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed_often(local_ray: None) -> Iterator[DistributedReplayBuffer]:
    """Return a prioritized buffer of two shards that tests kill."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_group, "Shard", DyingShard)
        buffer = new_buffer("images", 200, n_envs=2, n_shards=2, prefetch=4, sampler="prioritized")
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
    epochs = [view.epoch for view in mortal.shards]
    add_rows(mortal, "images", range(50))
    refreshed(mortal)
    assert shards_in(mortal, mortal.sample(64)) == {0, 1}
    early = mortal.sample(64)
    died = die_at("sample")
    with caplog.at_level(logging.WARNING):
        number = 50
        while died.exists() or mortal.statistics().n_restarts == before.n_restarts:
            add_rows(mortal, "images", range(number, number + 5))
            assert_true(mortal.sample(32), "images", 2)
            number += 5
    assert "failed" in caplog.text
    assert "was restarted, and" in caplog.text
    found = mortal.statistics()
    assert found.n_restarts == before.n_restarts + 1
    assert found.n_lost >= before.n_lost + 50
    assert found.n_failed > before.n_failed

    def returned() -> bool:
        nonlocal number
        add_rows(mortal, "images", range(number, number + 5))
        number += 5
        batch = mortal.sample(64)
        assert_true(batch, "images", 2)
        return shards_in(mortal, batch) == {0, 1}

    until(returned)
    n_skipped = mortal.n_skipped_updates
    mortal.update_priorities(early.indices, np.ones(64))
    mortal.sample(4)
    refreshed(mortal)
    dead = 1 if mortal.shards[0].epoch == epochs[0] else 0
    n_of_dead = int((early.indices >> 53 == dead).sum())
    assert mortal.n_skipped_updates == n_skipped + n_of_dead > n_skipped


def test_a_shard_that_is_stopped_is_left_out_until_it_continues(
    mortal: DistributedReplayBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    add_rows(mortal, "images", range(1000, 1050))
    refreshed(mortal)
    pids = [ray.get(view.actor.pid.remote()) for view in mortal.shards]
    before, mortal._pipeline = mortal._pipeline, pipeline_of(mortal, 4, timeout=0.5)
    for _, writer in mortal._local:
        writer._timeout = 0.5
    os.kill(pids[0], signal.SIGSTOP)
    try:
        with caplog.at_level(logging.WARNING):
            for number in range(1050, 1150):
                add_rows(mortal, "images", range(number, number + 1))
                batch = mortal.sample(32)
                assert_true(batch, "images", 2)
            assert shards_in(mortal, batch) == {1}
        assert caplog.text.count("shard 0 is late") == 1
        assert caplog.text.count("did not answer") == 1
        assert mortal.statistics().n_lost > 0
    finally:
        os.kill(pids[0], signal.SIGCONT)
    until(lambda: shards_in(mortal, mortal.sample(64)) == {0, 1})
    mortal._pipeline = before
    for _, writer in mortal._local:
        writer._timeout = 60.0
    refreshed(mortal)
    assert mortal.statistics().n_late > 0 or mortal._pipeline is before
    assert [ray.get(view.actor.pid.remote()) for view in mortal.shards] == pids


def test_all_shards_die_at_once(mortal: DistributedReplayBuffer) -> None:
    add_rows(mortal, "images", range(2000, 2050))
    refreshed(mortal)
    mortal.sample(32)
    for view in mortal.shards:
        os.kill(ray.get(view.actor.pid.remote()), signal.SIGKILL)
    mortal._pipeline.discard()
    add_rows(mortal, "images", range(2050, 2061))
    for number in range(2061, 2080):
        assert_true(mortal.sample(32), "images", 2)
        add_rows(mortal, "images", range(number, number + 1))
    refreshed(mortal)
    seen = {action for _ in range(20) for action in assert_true(mortal.sample(64), "images", 2)}
    assert 2 * 2065 in seen  # of 60 at most


def test_what_a_killed_shard_had_acknowledged_to_others_is_counted_as_lost(mortal: DistributedReplayBuffer) -> None:
    """Its last replies to other writers may arrive after those of the process that replaces it."""
    add_rows(mortal, "images", range(30))
    refreshed(mortal)
    group, view, n_lost = mortal._group, mortal.shards[0], mortal.statistics().n_lost
    before: Any = view.status
    ((name, size),) = before.sizes.items()
    late = before._replace(number=before.number + 5, sizes={name: size + 8})
    os.kill(ray.get(view.actor.pid.remote()), signal.SIGKILL)

    def is_replaced() -> bool:
        group.refresh(0.2)
        return view.status is not None and view.status.incarnation != before.incarnation

    until(is_replaced)
    assert mortal.statistics().n_lost == n_lost + before.n_transitions
    group.update(view, late)
    group.update(view, late)
    group.update(view, before)
    assert mortal.statistics().n_lost == n_lost + before.n_transitions + 8


def test_shards_that_lost_everything_do_not_end_the_training(
    mortal: DistributedReplayBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    add_rows(mortal, "images", range(3000, 3020))
    refreshed(mortal)
    mortal._pipeline._timeout, before = 0.2, mortal._pipeline._timeout
    last = mortal.sample(32)
    mortal._group.call("reset")
    mortal._pipeline._rounds.clear()
    mortal._group.refresh_all()
    with caplog.at_level(logging.WARNING):
        assert actions_of(mortal.sample(32)) == actions_of(last)
    assert "the last batch is returned again" in caplog.text
    with pytest.raises(BufferNotReady):
        mortal.sample(31)
    add_rows(mortal, "images", range(4000, 4020))
    mortal._pipeline._timeout = before
    assert min(assert_true(mortal.sample(32), "images", 2)) >= 8000


def test_a_stopped_shard_does_not_keep_the_buffer_from_closing(local_ray: None) -> None:
    buffer = new_buffer("small", 50, n_shards=1, prefetch=0, timeout=0.3)
    add_rows(buffer, "small", range(15))
    pid = ray.get(buffer.shards[0].actor.pid.remote())
    os.kill(pid, signal.SIGSTOP)
    buffer.shards[0].is_answering = False
    buffer.close()
    os.kill(pid, signal.SIGCONT)


# -- constructing --------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "hindsight": ({"n_sampled_goal": 4}, "hindsight replay cannot be distributed.*n_sampled_goal"),
    "an environment": ({"env": None}, "hindsight replay cannot be distributed.*env"),
    "no shards": ({"n_shards": 0}, "n_shards"),
    "very many shards": ({"n_shards": 1024}, "n_shards must be less than 1024"),
    "no timeout": ({"timeout": 0}, "timeout must be a positive number of seconds"),
    "an infinite timeout": ({"timeout": float("inf")}, "timeout must be a positive number of seconds"),
    "a negative lease": ({"lease": -1}, "lease must be a positive number of seconds"),
    "a negative prefetch": ({"prefetch": -1}, "prefetch"),
    "no segments": ({"segment_length": 0}, "segment_length"),
    "no steps": ({"n_steps": 0}, "n_steps"),
    "an unknown storage mode": ({"storage_mode": "continue"}, "storage_mode must be one of.*got 'continue'"),
    "a repair": ({"storage_mode": "repair"}, "storage_mode must be one of.*got 'repair'"),
    "an unknown sampler": ({"sampler": "none such"}, "none such"),
    "a sampler of epochs": ({"sampler": WithoutReplacementSampler()}, "sampler must be 'uniform', 'prioritized' or"),
    "an unknown codec": ({"compression_method": "none-such"}, "unknown codec 'none-such'"),
    "an impossible stack": ({"frame_stack": 3}, "frame_stack=3 divides neither"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_options_are_refused(kind: str) -> None:
    options, message = WRONG[kind]
    with pytest.raises(ValueError, match=message):
        new_buffer("images", 10, **options)


def test_n_step_returns_of_dicts_are_refused() -> None:
    with pytest.raises(ValueError, match="SB3 has no n-step returns for Dict observations"):
        new_buffer("dict", 10, n_steps=3)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="none_such"):
        new_buffer("images", 10, none_such=3)


# -- training ------------------------------------------------------------------------------------------------


def test_dqn_learns_with_priorities(local_ray: None, tmp_path: Path) -> None:
    """With one step, the gamma of the buffer is not used, so it need not be that of the model."""
    model = DQN(
        "MlpPolicy", "CartPole-v1", replay_buffer_class=DistributedReplayBuffer, gamma=0.95, learning_starts=50,
        batch_size=32, policy_kwargs={"net_arch": [8]}, buffer_size=400, device="cpu", seed=0,
        replay_buffer_kwargs={"n_shards": 2, "sampler": "prioritized", "segment_length": 10},
    )  # fmt: skip
    buffer: Any = model.replay_buffer
    with prioritize(model):
        model.learn(250)
    refreshed(buffer)
    assert buffer.size() == 252, "DQN collects 4 steps at a time"
    assert buffer.n_sampled == 51 * 32
    assert ray.get(buffer.shards[0].actor.status.remote()).mass != 252, "priorities were updated"
    model.learn(100, reset_num_timesteps=False)
    with pytest.raises(TypeError, match="use save_checkpoint"):
        model.save_replay_buffer(io.BytesIO())
    model.save(tmp_path / "model")
    assert DQN.load(tmp_path / "model", device="cpu").gamma == 0.95
    buffer.close()


def test_sac_learns_with_loss_adjusted_priorities(local_ray: None) -> None:
    model = SAC(
        "MlpPolicy", "Pendulum-v1", replay_buffer_class=DistributedReplayBuffer, learning_starts=30, batch_size=16,
        policy_kwargs={"net_arch": [8]}, buffer_size=300, device="cpu", seed=0,
        replay_buffer_kwargs={"sampler": PrioritizedSampler(mode="lap"), "prefetch": 2, "segment_length": 10},
    )  # fmt: skip
    with prioritize(model):
        model.learn(100)
    buffer: Any = model.replay_buffer
    assert buffer.sample(4).weights.tolist() == [[1.0]] * 4
    assert buffer.size() == 100
    buffer.close()


def test_other_buffers_are_not_affected(images: DistributedReplayBuffer) -> None:
    """Two buffers in one process, one of them local."""
    local = CompressedReplayBuffer(40, SPACES["images"], NUMBERS, device="cpu")
    add_rows(local, "images", range(20))
    add_rows(images, "transposed", range(20))
    for _ in range(3):
        assert_true(local.sample(8), "images")
        assert_true(images.sample(8), "transposed", 4)
    assert not isinstance(images, HerReplayBuffer)

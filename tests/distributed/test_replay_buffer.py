"""The distributed buffer returns what SB3's would, from any number of shards."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from chi_square import assert_frequencies
from commands import error_of

from distributed.buffers import REMOTE, actions_of, add_rows, assert_true, new_buffer, pipeline_of, refreshed
from distributed.emitted import SIZE, observation, sb3_buffer, transition
from distributed.stopped import until
from sb3_compressed import (
    BufferNotReady,
    buffer_statistics,
    load_checkpoint,
)
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.datasets import trajectories
from sb3_compressed.distributed import DistributedReplayBuffer
from sb3_compressed.samplers import WithoutReplacementSampler

pytestmark = pytest.mark.usefixtures("local_ray")


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


@pytest.mark.parametrize("last", [30, 100])
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


@pytest.mark.parametrize("prefetch", [0, 1, 16])
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
        assert images.n_sampled == n_sampled + sum(sizes)
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
    assert 0 < found.n_bytes_inserted < 0.3 * 2 * 4 * SIZE**2 * found.n_inserted
    assert found.n_bytes_sampled > 0


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


@pytest.mark.parametrize("with_timeouts", [False, True])
def test_extend_adds_all_steps_by_position_or_name(with_timeouts: bool, images: DistributedReplayBuffer) -> None:
    """SB3's own ``extend`` ignores arguments that are passed by name, and adds nothing."""
    steps = [transition("transposed", number, 4, action=4 * number) for number in range(20)]
    given: dict[str, Any] = {
        name: np.stack([vars(step)[name] for step in steps]) for name in ("obs", "next_obs", "action", "reward")
    }
    done = np.stack([step.done for step in steps])
    obs, next_obs, action, reward = given.values()
    if with_timeouts:
        images.extend(**given, done=done, timeouts=np.zeros((20, 4), bool))
    else:
        images.extend(obs, next_obs, action, reward, done, [step.infos for step in steps])
    refreshed(images)
    assert images.n_transitions == 80
    assert {*assert_true(images.sample(2000), "transposed", 4)} == {*range(80)}
    with pytest.raises(ValueError, match="number of steps"):
        images.extend(obs, next_obs, action, reward, done[:7], [step.infos for step in steps])
    with pytest.raises(ValueError, match="pass infos, or timeouts"):
        images.extend(obs, next_obs, action, reward, done)
    assert repr(images) == "<DistributedReplayBuffer: 80 of 240 transitions in 3 shards>"


@pytest.mark.slow
def test_a_checkpoint_continues_with_another_number_of_shards(local_ray: None, tmp_path: Path) -> None:
    """Each environment continues its own rows, so the newest transitions replace the oldest ones."""
    buffer = new_buffer("small", 20, n_envs=3, n_shards=2)
    add_rows(buffer, "small", range(20))
    buffer.save_checkpoint(tmp_path / "checkpoint")
    buffer.close()
    again = new_buffer("small", 20, n_envs=3)
    again.load_checkpoint(tmp_path / "checkpoint")
    add_rows(again, "small", range(100, 112))
    refreshed(again)
    assert {*assert_true(again.sample(2000), "small", 3)} == {*range(3 * 12, 3 * 20), *range(3 * 100, 3 * 112)}
    again.close()


def test_tools_for_buffers_in_the_process_say_that_rings_are_buffers(
    images: DistributedReplayBuffer, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match="load_checkpoint"):
        next(trajectories(images))
    with pytest.raises(TypeError, match="got a DistributedReplayBuffer"):
        buffer_statistics(images)
    add_rows(images, "transposed", range(420, 430))
    checkpoint = tmp_path / "step_0000000430"
    images.save_checkpoint(checkpoint / "buffer")
    for folder in (checkpoint / "buffer", checkpoint):
        error = error_of("inspect", folder)
        ring = Path(error.partition(", such as ")[2])
        named = checkpoint / "buffer"
        assert error == f"{named} contains a distributed buffer: pass the folder of a ring, such as {ring}"
        assert sum(len(episode) for episode in trajectories(load_checkpoint(ring, device="cpu"))) > 0


def test_reset_removes_everything(images: DistributedReplayBuffer) -> None:
    add_rows(images, "transposed", range(510, 515))
    images.reset()
    assert (images.size(), images.n_transitions) == (0, 0)
    images._pipeline._timeout, before = 0.5, images._pipeline._timeout
    with pytest.raises(BufferNotReady, match="add some"):
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
        layout = None if n_frames == 1 else FrameLayout((4, SIZE, SIZE), 0, n_frames)
        payloads = none.encode(items.reshape(n * n_frames, -1))
        part.block.batches["observations"] = PayloadBatch([none], Payloads.of(payloads), n_frames)
        part.block.values["layouts"]["observations"] = layout
    decoded = images._decoder.decoded(parts, "observations")
    row = 0
    for part in parts:
        size = part.last - part.first
        for name, begin in (("observations", 2 * part.first), ("next_observations", 2 * part.first + size)):
            for k in range(size):
                np.testing.assert_array_equal(decoded[name][row + k], observation("images", 3 * (begin + k)))
        row += size
    images._pipeline.discard()


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy])
def test_it_cannot_be_copied(images: DistributedReplayBuffer, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="pickled"):
        copied(images)


def test_updates_need_priorities(images: DistributedReplayBuffer) -> None:
    with pytest.raises(TypeError, match=r"update_priorities\(\) is for buffers with sampler='prioritized'"):
        images.update_priorities(np.array([1]), np.ones(1))


# -- other writers -------------------------------------------------------------------------------------------


def test_transitions_of_other_writers_are_sampled(local_ray: None) -> None:
    """Shards that had nothing when they last answered are asked again."""
    buffer = new_buffer("dict", 100, n_shards=2, prefetch=4)
    for number in range(12):
        transition("dict", number).add_to(buffer)
    assert_true(buffer.sample(16), "dict")
    writers = [buffer.writer(name, 1) for name in ("a", "b")]
    assert {buffer._registry.writers[name][1] for name in ("a", "b", "learner-0")} == {0, 1}
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


# -- constructing --------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no shards": ({"n_shards": 0}, "n_shards"),
    "very many shards": ({"n_shards": 128}, "n_shards must be less than 128"),
    "no timeout": ({"timeout": 0}, "timeout must be a positive number of seconds"),
    "an infinite timeout": ({"timeout": float("inf")}, "timeout must be a positive number of seconds"),
    "a negative prefetch": ({"prefetch": -1}, "prefetch"),
    "no segments": ({"segment_length": 0}, "segment_length"),
    "no steps": ({"n_steps": 0}, "n_steps"),
    "an unknown storage mode": ({"storage_mode": "continue"}, "storage_mode must be one of.*got 'continue'"),
    "a repair": ({"storage_mode": "repair"}, "storage_mode must be one of.*got 'repair'"),
    "an unknown sampler": ({"sampler": "none such"}, "none such"),
    "a sampler of epochs": ({"sampler": WithoutReplacementSampler()}, "sampler must be 'uniform', 'prioritized' or"),
    "an unknown codec": ({"compression_method": "none-such"}, "unknown codec 'none-such'"),
    "an impossible stack": ({"frame_stack": 5}, "frame_stack=5 divides neither"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_options_are_refused(kind: str) -> None:
    options, message = WRONG[kind]
    with pytest.raises(ValueError, match=message):
        new_buffer("images", 10, **options)


def test_n_step_returns_of_dicts_are_refused() -> None:
    with pytest.raises(ValueError, match="n-step"):
        new_buffer("dict", 10, n_steps=3)


@pytest.mark.parametrize("name", ["none_such", "n_sampled_goal"])
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        new_buffer("images", 10, **{name: 3})


def test_unknown_time_limits_warn() -> None:
    options: dict[str, Any] = {"n_steps": 3, "handle_timeout_termination": False, "compression_method": "none-such"}
    with (
        pytest.warns(UserWarning, match="n-step"),
        pytest.raises(ValueError, match="unknown codec"),  # before any shard starts
    ):
        new_buffer("images", 10, **options)

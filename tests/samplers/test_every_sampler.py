"""What every registered sampler does, in every replay class."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffer_pairs import SB3_OPTIMIZED
from conftest import Stream
from small_samplers import ValidSampler, WeightedSampler
from support import filled, new_buffer

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
)
from sb3_compressed.samplers import Sampler, registry

ROWS = 40


def registered() -> list[Sampler]:
    """Return a sampler of each name, and the small ones."""
    return [*(cls() for cls in registry.SAMPLERS.values()), ValidSampler(), WeightedSampler()]


SAMPLERS = {type(sampler).__name__: sampler for sampler in registered()}
BUFFERS: dict[str, tuple[type[Any], str, dict[str, Any]]] = {
    "replay": (CompressedReplayBuffer, "cart", {}),
    "one environment": (CompressedReplayBuffer, "acrobot", {}),
    "optimized": (CompressedReplayBuffer, "cart", SB3_OPTIMIZED),
    "n-step": (CompressedNStepReplayBuffer, "cart", {"n_steps": 3}),
    "dict": (CompressedDictReplayBuffer, "goal-bits", {}),
    "her": (CompressedHerReplayBuffer, "goal-bits", {}),
}

all_samplers = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
all_buffers = pytest.mark.parametrize(
    ("buffer_class", "stream", "options"), BUFFERS.values(), ids=BUFFERS, indirect=["stream"]
)


def expected_valid(buffer: Any) -> Any:
    """Return which transitions may be drawn, by SB3's own rules, ``(n_rows * n_envs,)``."""
    if hasattr(buffer, "ep_length"):
        return buffer.ep_length.reshape(-1) > 0
    rows = np.arange(buffer.buffer_size)
    valid = rows < buffer.size()
    if buffer.optimize_memory_usage and buffer.full:
        valid &= rows != buffer.pos
    return np.repeat(valid, buffer.n_envs)


@all_samplers
@all_buffers
def test_batches_consist_of_current_transitions_over_several_laps(
    sampler: Sampler, buffer_class: type[Any], stream: Stream, options: dict[str, Any]
) -> None:
    buffer = new_buffer(buffer_class, stream, ROWS, sampler=sampler, **options)
    n_batches = 0
    for step, transition in enumerate(stream[-1][: 3 * ROWS]):
        transition.add_to(buffer)
        if step % 7 == 0 and expected_valid(buffer).any():
            for batch_size in (1, 5, 33):
                batch = buffer.sample(batch_size)
                np.testing.assert_array_equal(buffer.sampler.is_valid, expected_valid(buffer))
                assert buffer.sampler.is_valid[batch.indices].all()
                rows, envs = np.divmod(batch.indices, buffer.n_envs)
                assert len(batch.actions) == len(batch.weights) == batch_size
                np.testing.assert_array_equal(batch.actions, buffer.actions[rows, envs])
                assert (batch.weights > 0).all()
                n_batches += 1
    assert n_batches > 30


@all_samplers
@all_buffers
def test_resumed_sampling_continues_exactly(
    sampler: Sampler, buffer_class: type[Any], stream: Stream, options: dict[str, Any]
) -> None:
    buffer = filled(stream, 60, ROWS, buffer_class, sampler=sampler, **options)
    buffer.sample(13)
    other = new_buffer(buffer_class, stream, ROWS, sampler=sampler, **options).sampler
    other.load_state_dict(pickle.loads(pickle.dumps(buffer.sampler.state_dict())))
    duplicates = [buffer.sampler, other, copy.deepcopy(buffer.sampler)]
    for _ in range(4):
        state = np.random.get_state()  # noqa: NPY002
        draws = []
        for each in duplicates:
            np.random.set_state(state)  # noqa: NPY002
            draws.append(each.draw(29))
        for draw in draws[1:]:
            np.testing.assert_array_equal(draw.indices, draws[0].indices)
            np.testing.assert_array_equal(draw.weights, draws[0].weights)


@all_samplers
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_a_state_of_another_size_is_refused(sampler: Sampler, stream: Stream) -> None:
    buffers = [new_buffer(CompressedReplayBuffer, stream, rows, sampler=sampler) for rows in (10, 11)]
    for buffer in buffers:
        stream[-1][0].add_to(buffer)
        buffer.sample(1)
    before = pickle.dumps(buffers[0].sampler.state_dict())
    with pytest.raises(ValueError, match=r"40|\(40,\)"):
        buffers[0].sampler.load_state_dict(buffers[1].sampler.state_dict())
    assert pickle.dumps(buffers[0].sampler.state_dict()) == before


@all_samplers
@pytest.mark.parametrize("n_rows", [25, 60])
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_a_buffer_that_is_loaded_in_another_size_draws_as_a_new_one(
    sampler: Sampler, stream: Stream, n_rows: int, tmp_path: Path
) -> None:
    filled(stream, 50, ROWS, sampler=sampler).save_checkpoint(tmp_path)
    buffer = new_buffer(CompressedReplayBuffer, stream, n_rows, sampler=sampler)
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path, buffer_size=n_rows * buffer.n_envs, sampler=sampler)
    for transition in stream[-1][50 - min(n_rows, ROWS) : 50]:
        transition.add_to(buffer)
    draws = []
    for each in (loaded, buffer):
        for transition in stream[-1][50:55]:
            transition.add_to(each)
        np.random.seed(0)  # noqa: NPY002
        draws.append(each.sample(64))
    np.testing.assert_array_equal(draws[0].indices, draws[1].indices)
    np.testing.assert_array_equal(draws[0].observations, draws[1].observations)


@all_samplers
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_a_configuration_is_small_and_can_be_pickled_and_copied(sampler: Sampler, stream: Stream) -> None:
    buffer = new_buffer(CompressedReplayBuffer, stream, 10_000, sampler=sampler)
    assert not sampler.is_bound
    assert buffer.sampler.is_bound
    assert len(pickle.dumps(sampler)) < 1000
    assert not pickle.loads(pickle.dumps(sampler)).is_bound

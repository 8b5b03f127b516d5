"""``WithoutReplacementSampler`` and ``iterate``: each transition once an epoch."""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

import numpy as np
import pytest
from chi_square import assert_frequencies
from conftest import Stream
from drawn_examples import examples
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from support import add_all, filled

from sb3_compressed import BufferNotReady, CompressedHerReplayBuffer, CompressedReplayBuffer


def epochs_of(stream: Stream, n_steps: int, n_rows: int = 50, **options: Any) -> Any:
    return filled(stream, n_steps, n_rows, sampler="without-replacement", **options)


cart = pytest.mark.parametrize("stream", ["cart"], indirect=True)


@cart
@pytest.mark.parametrize(("n_steps", "batch_size"), [(1, 1), (13, 7), (50, 20), (71, 200), (71, 1000)])
def test_an_iteration_returns_each_transition_once_an_epoch(n_steps: int, batch_size: int, stream: Stream) -> None:
    buffer = epochs_of(stream, n_steps)
    n_valid = min(n_steps, 50) * 4
    batches = [batch.indices for batch in buffer.iterate(batch_size, epochs=3)]
    sizes = ([batch_size] * (n_valid // batch_size) + [n_valid % batch_size] * (n_valid % batch_size > 0)) * 3
    assert [len(batch) for batch in batches] == sizes
    epochs = np.concatenate(batches).reshape(3, n_valid)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(n_valid))
    if n_valid > 10:
        assert len({tuple(epoch) for epoch in epochs}) == 3


@cart
def test_sample_always_returns_whole_batches_across_epochs(stream: Stream) -> None:
    buffer = epochs_of(stream, 10)
    drawn = np.concatenate([buffer.sample(24).indices for _ in range(10)])
    assert len(drawn) == 240
    for epoch in drawn.reshape(6, 40):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(40))
    assert np.bincount(buffer.sample(1000).indices).tolist() == [25] * 40


@cart
def test_each_transition_is_equally_likely_at_each_position(stream: Stream) -> None:
    np.random.seed(0)  # noqa: NPY002
    buffer = epochs_of(stream, 3)
    counts = np.zeros((12, 12))
    for _ in range(3000):
        counts[np.arange(12), buffer.sample(12).indices] += 1
    assert_frequencies(counts, n_free=11 * 11)


@examples(100)
@given(data=st.data(), optimize_memory_usage=st.booleans())
def test_each_iteration_is_what_is_left_of_an_epoch(data: st.DataObject, optimize_memory_usage: bool) -> None:
    """Whatever is added and drawn in between, an iteration of a buffer with transitions returns some of them."""
    n_rows = 6
    buffer = CompressedReplayBuffer(
        n_rows, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), "cpu", sampler="without-replacement",
        optimize_memory_usage=optimize_memory_usage, handle_timeout_termination=not optimize_memory_usage,
    )  # fmt: skip
    n_added, left = 0, set[int]()
    for _ in range(data.draw(st.integers(1, 6), "n_rounds")):
        for _ in range(data.draw(st.sampled_from([0, 1, n_rows] if n_added else [1, 4, n_rows]), "n_adds")):
            zeros = np.zeros((1, 2), np.float32)
            buffer.add(zeros, zeros, np.array([[0]]), np.array([0.0]), np.array([False]), [{}])
            n_added += 1
        n_kept = min(n_added, n_rows - (optimize_memory_usage and n_added >= n_rows))
        valid = {*range(n_added - n_kept, n_added)}
        left &= valid

        def numbers_of(batch: Any) -> list[int]:  # of rows in the order in which they were added
            return [n_added - 1 - (n_added - 1 - row) % n_rows for row in batch.indices.tolist()]  # noqa: B023

        if n_drawn := data.draw(st.sampled_from([0, n_kept // 2]), "n_drawn"):
            for number in numbers_of(buffer.sample(n_drawn)):
                left = left or set(valid)
                left.remove(number)
        resume = data.draw(st.booleans(), "resume")
        expected = left if resume and left else valid
        iteration = buffer.iterate(data.draw(st.integers(1, n_rows), "batch_size"), resume=resume)
        n_batches = data.draw(st.sampled_from([1, n_rows]), "n_batches")  # and then it is abandoned
        found = [number for batch in islice(iteration, n_batches) for number in numbers_of(batch)]
        assert len({*found}) == len(found)
        assert {*found} <= expected
        left = expected - {*found}
        if n_batches == n_rows:
            assert not left


@cart
def test_an_interrupted_epoch_continues_from_a_pickle(stream: Stream) -> None:
    buffer = epochs_of(stream, 71)
    epoch = buffer.iterate(30)
    drawn = [next(epoch).indices for _ in range(3)]
    other = pickle.loads(pickle.dumps(buffer))
    expected = [batch.indices for batch in epoch]
    resumed = [batch.indices for batch in other.iterate(30, resume=True)]
    for ours, theirs in zip(resumed, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.sort(np.concatenate(drawn + resumed)), np.arange(200))
    assert other.sampler.n_left == 0
    assert sum(len(batch.indices) for batch in other.iterate(30, resume=True)) == 200  # the next one


@pytest.mark.parametrize("stream", ["goal-bits"], indirect=True)
def test_hindsight_epochs_contain_complete_episodes(stream: Stream) -> None:
    buffer = epochs_of(stream, 1, 60, cls=CompressedHerReplayBuffer)
    with pytest.raises(RuntimeError, match="first episode"):
        buffer.iterate(16)
    add_all(stream[-1][1:100], buffer)
    drawn = np.concatenate([batch.indices for batch in buffer.iterate(16)])
    np.testing.assert_array_equal(np.sort(drawn), np.flatnonzero(buffer.ep_length.reshape(-1) > 0))


@cart
def test_an_iteration_normalizes(stream: Stream) -> None:
    buffer = epochs_of(stream, 20)
    env = VecNormalize(make_vec_env("CartPole-v1", 4), norm_obs=False)
    env.ret_rms.update(np.array([3.0, 9.0]))
    for batch in buffer.iterate(30, env=env):
        rows, envs = np.divmod(batch.indices, 4)
        np.testing.assert_allclose(batch.rewards[:, 0], env.normalize_reward(buffer.rewards[rows, envs]), rtol=1e-6)


@cart
def test_wrong_iterations_raise_before_the_first_batch(stream: Stream) -> None:
    buffer = epochs_of(stream, 0)
    with pytest.raises(BufferNotReady):
        buffer.iterate(4)
    stream[-1][0].add_to(buffer)
    for arguments in ((0,), (-1,), (4, -1)):
        with pytest.raises(ValueError, match=r"batch_size|epochs"):
            buffer.iterate(*arguments)
    with pytest.raises(TypeError, match="epochs"):
        buffer.iterate(4, 1.5)
    assert list(buffer.iterate(4, epochs=0)) == []
    uniform = CompressedReplayBuffer(10, *stream[:2])
    with pytest.raises(TypeError, match="sampler='without-replacement'"):
        uniform.iterate(4)


@cart
@pytest.mark.parametrize(
    "wrong",
    [
        {"n_ordered": 201},
        {"n_ordered": 15},
        {"key": -1},
        {"n_epochs": -1},
        {"is_left": np.ones(200, np.bool_)},
        {"is_left": np.zeros(3, np.bool_)},
    ],
)
def test_an_invalid_state_is_refused(wrong: dict[str, Any], stream: Stream) -> None:
    buffer = epochs_of(stream, 30)
    buffer.sample(16)
    assert buffer.sampler is not None
    state = buffer.sampler.state_dict()
    before = pickle.dumps(state)
    with pytest.raises(ValueError, match=r"order|is_left"):
        buffer.sampler.load_state_dict({**state, **wrong})
    assert pickle.dumps(buffer.sampler.state_dict()) == before

"""Rollout buffers return the same batches as SB3's and sb3-contrib's, on real data, over several rollouts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import ROLLOUT_PAIRS
from conftest import Stream
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import RolloutBuffer
from support import Transition, assert_same_batch, n_episode_ends, recorded, same_draws

from sb3_compressed import CompressedRolloutBuffer
from sb3_compressed.arrays.memory_log import MIN_NBYTES

N_STEPS = 64


def make_pair(kind: str, stream: Stream, **options: Any) -> tuple[Any, Any]:
    """Return our buffer and its parent for a stream; ``options`` are ours."""
    compressed, parent = ROLLOUT_PAIRS[kind]
    assert issubclass(compressed, parent)
    space, action_space, n_envs, _ = stream
    kwargs: dict[str, Any] = {"device": "cpu", "gae_lambda": 0.95, "gamma": 0.9, "n_envs": n_envs}
    if kind.startswith("recurrent"):
        kwargs["hidden_state_shape"] = (N_STEPS, 1, n_envs, 8)
    arguments = (N_STEPS, space, action_space)
    return compressed(*arguments, **kwargs, **options), parent(*arguments, **kwargs)


def extra_arguments(
    kind: str, action_space: spaces.Space[Any], n_envs: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the additional arguments of ``add`` of the contrib buffers."""
    if kind.startswith("maskable"):
        assert isinstance(action_space, spaces.Discrete)
        return {"action_masks": rng.integers(0, 2, (n_envs, int(action_space.n)))}
    if kind.startswith("recurrent"):
        states = [th.as_tensor(rng.standard_normal((1, n_envs, 8)), dtype=th.float32) for _ in range(4)]
        return {"lstm_states": RNNStates((states[0], states[1]), (states[2], states[3]))}
    return {}


def fill(kind: str, buffer: Any, transitions: list[Transition], episode_start: Any) -> Any:
    """Reset a buffer and fill it with one rollout; return whether an episode starts after it."""
    rng = np.random.default_rng(0)
    buffer.reset()
    for transition in transitions:
        extra = extra_arguments(kind, buffer.action_space, buffer.n_envs, rng)
        transition.add_to_rollout(buffer, episode_start, rng, **extra)
        episode_start = transition.done
    buffer.compute_returns_and_advantage(th.zeros(buffer.n_envs), episode_start)
    return episode_start


def assert_equivalent(kind: str, ours: Any, theirs: Any, stream: Stream) -> None:
    """Fill both with rollouts of the stream and compare every batch of several epochs."""
    transitions, n_envs = stream[-1], stream[2]
    assert n_episode_ends(transitions) >= 3
    start = np.ones(n_envs, dtype=bool)
    for begin in range(0, 3 * N_STEPS, N_STEPS):
        rollout = transitions[begin : begin + N_STEPS]
        start, _ = [fill(kind, buffer, rollout, start) for buffer in (ours, theirs)]
        for batch_size in (48, 48, None):  # 48 leaves an incomplete last batch
            epochs = [partial(lambda buffer, size: [*buffer.get(size)], each, batch_size) for each in (ours, theirs)]
            ours_batches, their_batches = same_draws(*epochs, seed=begin)
            assert len(ours_batches) == len(their_batches) > (batch_size is not None)
            for ours_batch, their_batch in zip(ours_batches, their_batches, strict=True):
                assert_same_batch(ours_batch, their_batch)


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        ("plain", "atari"),
        ("plain", "atari-single"),
        ("plain", "atari-channel-last"),
        ("plain", "pendulum"),
        ("plain", "discrete"),
        ("plain", "multi-discrete"),
        ("dict", "console"),
        ("maskable", "atari"),
        ("maskable-dict", "console"),
        ("recurrent", "atari"),
        ("recurrent-dict", "console"),
    ],
    indirect=["stream"],
)
@pytest.mark.parametrize("method", ["auto", "zstd-5"])
def test_batches_equal_sb3s(kind: str, method: str, stream: Stream) -> None:
    assert_equivalent(kind, *make_pair(kind, stream, compression_method=method, num_threads=2), stream)


@pytest.mark.parametrize("kind", ROLLOUT_PAIRS)
def test_the_last_step_of_a_full_buffer_can_be_replaced(kind: str) -> None:
    """As in SB3, where only the end of the arrays refuses a step."""
    stream = recorded("console" if "dict" in kind else "atari")
    buffers = make_pair(kind, stream)
    transitions = stream[-1]
    for buffer in buffers:
        fill(kind, buffer, transitions[:N_STEPS], np.ones(buffer.n_envs))
        rng = np.random.default_rng(1)
        for row, number in ((N_STEPS - 1, N_STEPS), (3, N_STEPS + 1), (N_STEPS - 1, N_STEPS + 2)):
            buffer.pos = row
            extra = extra_arguments(kind, buffer.action_space, buffer.n_envs, rng)
            transitions[number].add_to_rollout(buffer, transitions[number].done, rng, **extra)
            assert (buffer.pos, buffer.full) == (row + 1, True)
        with pytest.raises(IndexError):
            transitions[0].add_to_rollout(buffer, transitions[0].done, rng, **extra)
    for ours, theirs in zip(*same_draws(*[lambda b=b: [*b.get(50)] for b in buffers], seed=0), strict=True):
        assert_same_batch(ours, theirs)


def test_a_full_rollout_buffer_takes_no_more_steps_until_its_reset_frees_the_memory(stream: Stream) -> None:
    ours, _ = make_pair("plain", stream, compression_method="zstd")
    transitions = stream[-1]
    start = fill("plain", ours, transitions[:N_STEPS], np.ones(4, dtype=bool))
    first = ours.observations_nbytes
    with pytest.raises(IndexError, match="reset"):
        transitions[N_STEPS].add_to_rollout(ours, start, np.random.default_rng(0))
    fill("plain", ours, transitions[:N_STEPS], np.ones(4, dtype=bool))
    assert ours.observations_nbytes < first + MIN_NBYTES  # a segment is freed when the next one is begun
    ours.reset()
    assert ours.observations_nbytes < MIN_NBYTES  # of the last segment
    assert not np.asarray(ours.observations).any()


def test_the_next_rollout_is_compressed_by_the_trained_codec(stream: Stream) -> None:
    buffer, _ = make_pair("plain", stream)
    untrained = buffer.observations.codec
    fill("plain", buffer, stream[-1][:N_STEPS], np.ones(4, dtype=bool))
    trained = buffer.observations.codec
    assert trained != untrained
    assert trained.is_short_lived
    buffer.reset()
    assert buffer.observations.codec is trained


def test_arguments_of_other_classes_raise(stream: Stream) -> None:
    buffer, _ = make_pair("plain", stream)
    arguments = (stream[-1][0].obs, np.zeros(4), 0.5, True, th.zeros(4), th.zeros(4))
    with pytest.raises(TypeError, match="action_masks"):
        buffer.add(*arguments, action_masks=np.ones((4, 4)))
    assert buffer.pos == 0
    buffer.add(*arguments)


def test_a_users_to_torch_receives_arrays(stream: Stream) -> None:
    class Halved(CompressedRolloutBuffer):
        def to_torch(self, array: np.ndarray[Any, Any], copy: bool = True) -> th.Tensor:
            assert type(array) is np.ndarray
            return super().to_torch(array, copy) / 2

    space, action_space, n_envs, transitions = stream
    buffers = [cls(8, space, action_space, "cpu", n_envs=n_envs) for cls in (Halved, CompressedRolloutBuffer)]
    for buffer in buffers:
        fill("plain", buffer, transitions[:8], np.ones(n_envs, dtype=bool))
    halved, batch = same_draws(*[partial(lambda each: next(each.get(16)), buffer) for buffer in buffers], seed=0)
    for ours, theirs in zip(halved, batch, strict=True):
        assert th.equal(ours, theirs / 2)


def test_numbers_broadcast_as_in_sb3(stream: Stream) -> None:
    pair = make_pair("plain", stream)
    for reward, start in ((0.5, True), (np.full(1, 2.0), np.ones((1, 4))), (np.arange(4.0)[None], np.zeros(1))):
        for buffer in pair:
            buffer.add(stream[-1][0].obs, np.zeros(4), reward, start, th.zeros(4), th.zeros(4))
    for name in ("rewards", "episode_starts"):
        np.testing.assert_array_equal(getattr(pair[0], name), getattr(pair[1], name))


@pytest.mark.parametrize("is_ready", [False, True])
@pytest.mark.parametrize(
    "index",
    [3, slice(1, 5), [2, 0], np.array([5, 1], np.uint8), np.array([[0, 1], [2, 3]]), np.arange(8) % 3 == 0],
    ids=str,
)
def test_get_samples_reads_any_index_as_sb3s_does(index: Any, is_ready: bool) -> None:
    space, actions = spaces.Box(0, 255, (1, 40, 40), np.uint8), spaces.Box(-1, 1, (2,), np.float32)
    ours = CompressedRolloutBuffer(8, space, actions, "cpu", compression_method="zstd3", n_envs=1)
    theirs = RolloutBuffer(8, space, actions, "cpu", n_envs=1)
    rng = np.random.default_rng(0)
    for _ in range(8):
        obs, action = rng.integers(0, 256, (1, 1, 40, 40), np.uint8), rng.random((1, 2), np.float32)
        for buffer in (ours, theirs):
            buffer.add(obs, action, np.ones(1), np.zeros(1), th.ones(1), th.ones(1))
    if is_ready:
        for buffer in (ours, theirs):
            next(buffer.get(4))
    samples = ours._get_samples(index)
    assert_same_batch(samples, theirs._get_samples(index))
    for tensor in samples:
        tensor.zero_()  # a copy
    assert_same_batch(ours._get_samples(index), theirs._get_samples(index))

"""``sampler=`` of replay buffers: batches consist of the drawn transitions, as SB3's own code returns them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch as th
from conftest import Stream
from small_samplers import ScriptedSampler, ValidSampler, WeightedSampler
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from support import assert_same_batch, same_draws

from sb3_compressed import (
    BufferNotReady,
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_compressed.arrays.located_items import LocatedItems
from sb3_compressed.buffers.replay_mixin import CompressedReplay
from sb3_compressed.buffers.weighted_samples import WeightedDictReplayBufferSamples, WeightedReplayBufferSamples
from sb3_compressed.persistence.ring_resize import resize
from sb3_compressed.samplers import Draw, Sampler

ROWS = 70
PAIRS: dict[str, tuple[type[Any], type[Any]]] = {
    "replay": (CompressedReplayBuffer, ReplayBuffer),
    "n-step": (CompressedNStepReplayBuffer, NStepReplayBuffer),
    "dict": (CompressedDictReplayBuffer, DictReplayBuffer),
    "her": (CompressedHerReplayBuffer, HerReplayBuffer),
}
SB3_OPTIMIZED = {"optimize_memory_usage": True, "handle_timeout_termination": False}


def make(buffer_class: type[Any], stream: Stream, rows: int = ROWS, **kwargs: Any) -> Any:
    """Return a buffer for the environment of a stream."""
    space, action_space, n_envs, _ = stream
    if issubclass(buffer_class, HerReplayBuffer):
        kwargs["env"] = make_vec_env(BitFlippingEnv, n_envs, env_kwargs={"n_bits": 4, "image_obs_space": True})
        kwargs["env"].reset()
    return buffer_class(rows * n_envs, space, action_space, device="cpu", n_envs=n_envs, **kwargs)


@contextmanager
def draws_replaced(**functions: Any) -> Iterator[None]:
    """Replace functions of ``np.random``, so that SB3's code gets chosen numbers."""
    with pytest.MonkeyPatch.context() as patch:
        for name, function in functions.items():
            patch.setattr(np.random, name, function)
        yield


def sb3_batch_at(buffer: ReplayBuffer, indices: Any, env: VecNormalize | None = None) -> Any:
    """Return the batch that SB3 creates for flat indices."""
    rows, envs = np.divmod(indices, buffer.n_envs)
    with draws_replaced(randint=lambda *args, **kwargs: envs):
        return buffer._get_samples(rows, env=env)


def flat(batch: Any, buffer: Any) -> Any:
    """Return the flat indices of a batch."""
    return batch.indices % (buffer.buffer_size * buffer.n_envs)


def without_draw(batch: Any) -> Any:
    """Return a batch with SB3's fields only."""
    is_dict = isinstance(batch.observations, dict)
    return (DictReplayBufferSamples if is_dict else ReplayBufferSamples)(*batch[:-2])


CASES = [
    ("replay", "atari", {}),
    ("replay", "atari-single", {}),
    ("replay", "atari", SB3_OPTIMIZED),
    ("replay", "atari-channel-last", {"handle_timeout_termination": False}),
    ("replay", "pendulum", {}),
    ("replay", "discrete", {}),
    ("n-step", "atari", {"n_steps": 3, "gamma": 0.9}),
    ("n-step", "atari-single", {"n_steps": 5, "gamma": 0.99}),
    ("n-step", "cart", {"n_steps": 4, "gamma": 0.5}),
    ("dict", "console", {}),
    ("dict", "bits", {}),
]


@pytest.mark.parametrize(("kind", "stream", "theirs"), CASES, indirect=["stream"])
def test_batches_contain_what_sb3s_buffer_returns_for_the_drawn_transitions(
    kind: str, stream: Stream, theirs: dict[str, Any]
) -> None:
    compressed, parent = PAIRS[kind]
    method: dict[str, Any] = {"compression_method": "zstd-5"} if stream[0].shape != (3,) else {}
    buffer, expected = (
        make(compressed, stream, sampler=ValidSampler(), **theirs, **method),
        make(parent, stream, **theirs),
    )
    for step, transition in enumerate(stream[-1]):
        transition.add_to(buffer)
        transition.add_to(expected)
        if step in (0, 20, ROWS - 2, ROWS - 1, ROWS) or step % 50 == 49:
            for batch_size in (1, 64):
                batch = buffer.sample(batch_size)
                assert_same_batch(without_draw(batch), sb3_batch_at(expected, flat(batch, buffer)))
                assert (batch.indices // buffer.n_envs <= step).all()
                assert (batch.indices // buffer.n_envs > step - ROWS).all()
                np.testing.assert_array_equal(batch.weights, np.ones((batch_size, 1), np.float32))


@pytest.mark.parametrize(
    "options", [{}, {"copy_info_dict": True, "n_sampled_goal": 1}, {"optimize_memory_usage": True}]
)
@pytest.mark.parametrize("strategy", ["final", "future"])
@pytest.mark.parametrize("stream", ["bits"], indirect=True)
def test_hindsight_batches_contain_what_sb3s_buffer_returns_for_the_drawn_transitions(
    stream: Stream, options: dict[str, Any], strategy: str
) -> None:
    theirs = {name: value for name, value in options.items() if name != "optimize_memory_usage"}
    buffer = make(
        CompressedHerReplayBuffer, stream, sampler=ValidSampler(), goal_selection_strategy=strategy, **options
    )
    expected = make(HerReplayBuffer, stream, goal_selection_strategy=strategy, **theirs)
    for step, transition in enumerate(stream[-1]):
        transition.add_to(buffer)
        transition.add_to(expected)
        if step in (20, ROWS - 2, ROWS - 1, ROWS) or step % 50 == 49:
            draw = buffer._draw(32)  # apart, so that both draw goals from the same state
            np.random.seed(step)  # noqa: NPY002
            batch = buffer._samples_of(draw, None)
            indices = flat(batch, buffer)
            np.testing.assert_array_equal(indices, draw.indices)
            assert (expected.ep_length.reshape(-1)[indices] > 0).all()
            n_virtual = int(buffer.her_ratio * 32)
            virtual_first = np.roll(indices, n_virtual)
            np.random.seed(step)  # noqa: NPY002
            with draws_replaced(choice=lambda *args, order=virtual_first, **kwargs: order):
                theirs_batch = expected.sample(32)
            assert_same_batch(without_draw(batch), theirs_batch)


@pytest.mark.parametrize("stream", ["bits"], indirect=True)
def test_an_order_of_the_sampler_does_not_select_virtual_transitions(stream: Stream) -> None:
    sampler = ScriptedSampler()
    buffer = make(CompressedHerReplayBuffer, stream, sampler=sampler)
    for transition in stream[-1][:60]:
        transition.add_to(buffer)
    [valid] = np.nonzero(buffer.ep_length.reshape(-1) > 0)
    weights = np.arange(1, 21, dtype=np.float32)
    buffer.sampler.result = Draw(valid[:20], weights)
    n_real = 20 - int(buffer.her_ratio * 20)
    real: set[int] = set()
    for _ in range(50):
        batch = buffer.sample(20)
        np.testing.assert_array_equal(np.sort(batch.indices), valid[:20])
        np.testing.assert_array_equal(batch.weights[:, 0], weights[np.searchsorted(valid[:20], batch.indices)])
        real |= {*batch.indices[:n_real].tolist()}
    assert real == {*valid[:20].tolist()}


@pytest.mark.parametrize("stream", ["bits"], indirect=True)
def test_hindsight_replay_without_a_complete_episode_raises_sb3s_error(stream: Stream) -> None:
    buffers = [
        make(HerReplayBuffer, stream),
        make(CompressedHerReplayBuffer, stream, sampler=ValidSampler()),
    ]
    messages = []
    for buffer in buffers:
        stream[-1][0].add_to(buffer)
        with pytest.raises(RuntimeError) as error:
            buffer.sample(4)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("stream", ["goal-bits"], indirect=True)
def test_hindsight_transitions_are_included_while_their_episodes_are_complete(stream: Stream) -> None:
    buffer = make(CompressedHerReplayBuffer, stream, rows=23, sampler=WeightedSampler())
    updated: list[Any] = []
    n_checked = n_kept = 0
    for step, transition in enumerate(stream[-1]):
        transition.add_to(buffer)
        if step % 4 == 3 and (buffer.ep_length > 0).any():
            batch = buffer.sample(32)
            np.testing.assert_array_equal(buffer.sampler.is_valid, buffer.ep_length.reshape(-1) > 0)
            numbers = np.arange(max(step - 22, 0) * 2, (step + 1) * 2)
            values = dict(zip(numbers % 46, numbers, strict=True))
            known = dict(updated)
            for index in np.flatnonzero(buffer.sampler.is_valid):  # what was not overwritten keeps its value
                assert buffer.sampler.values[index] == known.get(values[index], 1.0)
                n_checked += 1
                n_kept += values[index] in known
            assert buffer.update_priorities(batch.indices, batch.indices + 2.0) == 0
            updated += zip(batch.indices.tolist(), (batch.indices + 2.0).tolist(), strict=True)
    assert n_checked > 100
    assert n_kept > 20
    n_complete = (buffer.ep_length > 0).sum()
    with pytest.warns(UserWarning, match="truncated"):
        buffer.truncate_last_trajectory()
    assert (buffer.ep_length > 0).sum() > n_complete
    buffer.sample(4)
    assert buffer.sampler.is_valid.sum() == (buffer.ep_length > 0).sum()


@pytest.mark.parametrize("stream", ["pendulum", "atari"], indirect=True)
@pytest.mark.parametrize("kind", ["replay", "n-step"])
def test_vec_normalize_normalizes_the_drawn_transitions(kind: str, stream: Stream) -> None:
    compressed, parent = PAIRS[kind]
    env = VecNormalize(make_vec_env("Pendulum-v1", stream[2]), norm_obs=len(stream[0].shape or ()) == 1)
    env.ret_rms.update(np.array([3.0, 7.0]))
    buffer, expected = make(compressed, stream, sampler=ValidSampler()), make(parent, stream)
    for transition in stream[-1][:100]:
        transition.add_to(buffer)
        transition.add_to(expected)
    batch = buffer.sample(32, env)
    assert_same_batch(without_draw(batch), sb3_batch_at(expected, flat(batch, buffer), env))


def test_output_format_applies(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, sampler=ValidSampler(), output_dtype="float", normalize_images=True)
    expected = make(ReplayBuffer, stream)
    for transition in stream[-1][:100]:
        transition.add_to(buffer)
        transition.add_to(expected)
    batch = buffer.sample(8)
    theirs = sb3_batch_at(expected, flat(batch, buffer))
    np.testing.assert_array_equal(batch.observations, theirs.observations.float() / 255)
    np.testing.assert_array_equal(batch.next_observations, theirs.next_observations.float() / 255)


def test_observations_and_next_observations_are_decoded_at_once(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = make(CompressedReplayBuffer, stream, sampler=ValidSampler())
    for transition in stream[-1][:100]:
        transition.add_to(buffer)
    assert buffer.n_envs > 1
    decoded: list[int] = []
    located = CompressedArray._located

    def counted(self: CompressedArray, references: Any, *args: Any, **kwargs: Any) -> LocatedItems:
        decoded.append(len(references))
        return located(self, references, *args, **kwargs)

    monkeypatch.setattr(CompressedArray, "_located", counted)
    batch = buffer.sample(32)
    assert decoded == [64]
    first, second = batch.next_observations, batch.observations
    assert second.data_ptr() == first.data_ptr() + first.nbytes  # tensors of the decoded memory, without a copy


@pytest.mark.parametrize("kind", ["replay", "n-step"])
def test_uniform_sampling_is_sb3s_own(kind: str, stream: Stream) -> None:
    compressed, parent = PAIRS[kind]
    buffer, expected = make(compressed, stream, sampler="uniform"), make(parent, stream)
    assert buffer.sampler is None
    for transition in stream[-1][:100]:
        transition.add_to(buffer)
        transition.add_to(expected)
    assert_same_batch(*same_draws(lambda: buffer.sample(32), lambda: expected.sample(32), seed=3))
    with pytest.raises(TypeError, match="sampler='prioritized'"):
        buffer.update_priorities([0], [1.0])
    assert buffer.n_skipped_updates == 0
    assert not [name for name in vars(buffer) if "sampler" in name]


def test_batches_are_named_tuples_that_begin_with_sb3s_fields(stream: Stream) -> None:
    assert WeightedReplayBufferSamples._fields == (*ReplayBufferSamples._fields, "weights", "indices")
    assert WeightedDictReplayBufferSamples._fields == (*DictReplayBufferSamples._fields, "weights", "indices")
    buffer = make(CompressedReplayBuffer, stream, sampler=ValidSampler())
    stream[-1][0].add_to(buffer)
    batch = buffer.sample(3)
    assert type(batch) is WeightedReplayBufferSamples
    assert batch.indices.dtype == np.int64
    assert (batch.weights.dtype, batch.weights.shape) == (th.float32, (3, 1))
    assert type(pickle.loads(pickle.dumps(batch))) is WeightedReplayBufferSamples


# -- which transitions the sampler is informed of ----------------------------------------------------------------


@pytest.mark.parametrize("n_steps", [0, 1, 5, 9, 10, 11, 20, 37])
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_each_written_transition_is_added_once_before_a_draw(n_steps: int, stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=ValidSampler())
    for transition in stream[-1][:7]:
        transition.add_to(buffer)
    assert buffer.sampler.added == []  # nothing happens in add
    buffer.sample(2)
    for transition in stream[-1][7 : 7 + n_steps]:
        transition.add_to(buffer)
    for _ in range(3):
        buffer.sample(2)
    added = buffer.sampler.added
    np.testing.assert_array_equal(added[0], np.arange(28))
    if n_steps == 0:
        assert len(added) == 1
        return
    assert len(added) == 2
    rows = np.arange(7 + n_steps - min(n_steps, 10), 7 + n_steps) % 10  # from the oldest to the newest
    np.testing.assert_array_equal(added[1], (rows[:, np.newaxis] * 4 + np.arange(4)).reshape(-1))
    assert buffer.sampler.removed == []


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_the_row_that_sb3_reserves_is_excluded_once_the_ring_is_full(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=ValidSampler(), **SB3_OPTIMIZED)
    for step, transition in enumerate(stream[-1][:47]):
        transition.add_to(buffer)
        if step % 3 == 0 or step == 9:
            buffer.sample(4)
            is_valid = buffer.sampler.is_valid.reshape(10, 4)
            expected = np.arange(10) < buffer.pos if not buffer.full else np.arange(10) != buffer.pos
            np.testing.assert_array_equal(is_valid, np.repeat(expected[:, np.newaxis], 4, axis=1))


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_reset_excludes_everything(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=WeightedSampler())
    for transition in stream[-1][:25]:
        transition.add_to(buffer)
    before = buffer.sample(8)
    buffer.reset()
    with pytest.raises(BufferNotReady):
        buffer.sample(1)
    for transition in stream[-1][:5]:
        transition.add_to(buffer)
    batch = buffer.sample(64)
    assert {*flat(batch, buffer).tolist()} <= {*range(20)}
    np.testing.assert_array_equal(np.flatnonzero(buffer.sampler.is_valid), np.arange(20))
    assert buffer.update_priorities(before.indices, np.full(8, 9.0)) == 8
    assert buffer.sampler.values.max() == 1.0
    assert buffer.update_priorities(batch.indices, np.full(64, 9.0)) == 0


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_position_may_be_assigned_directly(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=ValidSampler())
    for transition in stream[-1][:4]:
        transition.add_to(buffer)
    buffer.sample(1)
    buffer.pos = 7
    np.testing.assert_array_equal(np.sort(np.unique(flat(buffer.sample(500), buffer))), np.arange(28))
    buffer.pos, buffer.full = 3, True
    np.testing.assert_array_equal(np.sort(np.unique(flat(buffer.sample(900), buffer))), np.arange(40))


@pytest.mark.parametrize("n_rows", [4, 9, 25])
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_an_interrupt_after_the_position_was_moved_keeps_the_priorities(stream: Stream, n_rows: int) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=WeightedSampler())
    for transition in stream[-1][:n_rows]:
        transition.add_to(buffer)
    batch = buffer.sample(8)
    buffer.update_priorities(batch.indices, np.full(8, 9.0))
    transition = stream[-1][n_rows]
    # All that an add has done when it is interrupted before it returns.
    infos = transition.infos
    ReplayBuffer.add(
        buffer, transition.obs, transition.next_obs, transition.action, transition.reward, transition.done, infos
    )
    assert buffer.update_priorities(batch.indices, np.full(8, 5.0)) == np.count_nonzero(
        batch.indices < (n_rows + 1 - 10) * buffer.n_envs
    )
    assert buffer.sample(500).indices.max() == (n_rows + 1) * buffer.n_envs - 1
    assert buffer.sampler.values.max() == 5.0


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_extend_counts_rows(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=ValidSampler())
    steps = stream[-1][:13]
    columns = zip(*((t.obs, t.next_obs, t.action, t.reward, t.done, t.infos) for t in steps), strict=True)
    buffer.extend(*map(list, columns))
    assert buffer.sample(400).indices.max() == 13 * 4 - 1
    assert buffer.sampler.is_valid.all()


def test_a_failed_add_is_not_counted(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, sampler=ValidSampler())
    for transition in stream[-1][:3]:
        transition.add_to(buffer)
    with pytest.raises(ValueError, match="reward"):
        dataclasses.replace(stream[-1][3], reward=np.zeros(99)).add_to(buffer)
    stream[-1][3].add_to(buffer)
    buffer.sample(1)
    np.testing.assert_array_equal(np.concatenate(buffer.sampler.added), np.arange(16))


@pytest.mark.parametrize("kind", ["replay", "n-step"])
@pytest.mark.parametrize("stream", ["acrobot"], indirect=True)
def test_a_buffer_of_one_row_can_be_sampled(kind: str, stream: Stream) -> None:
    buffer = make(PAIRS[kind][0], stream, rows=1, sampler=ValidSampler())
    for step, transition in enumerate(stream[-1][:3]):
        transition.add_to(buffer)
        batch = buffer.sample(2)
        np.testing.assert_array_equal(batch.indices, [step, step])
        np.testing.assert_array_equal(batch.observations, np.repeat(transition.obs, 2, axis=0))


def test_an_empty_batch_can_be_sampled(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, sampler=ValidSampler())
    for _ in range(2):
        batch = buffer.sample(0)
        assert batch.observations.shape == (0, *stream[0].shape)  # type: ignore[misc]
        assert batch.weights.shape == (0, 1)
        assert batch.indices.shape == (0,)
        stream[-1][0].add_to(buffer)


def test_an_empty_buffer_cannot_be_sampled(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, sampler=ValidSampler())
    with pytest.raises(BufferNotReady):
        buffer.sample(1)


# -- priorities --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_priorities_decide_what_is_drawn_until_it_is_overwritten(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=WeightedSampler())
    for transition in stream[-1][:10]:
        transition.add_to(buffer)
    assert buffer.update_priorities(np.arange(40), np.zeros(40)) == 0
    assert buffer.update_priorities(th.tensor([13, 6]), th.tensor([[-3.0], [1.0]], requires_grad=True)) == 0
    batch = buffer.sample(1000)
    counts = np.bincount(batch.indices, minlength=40)
    assert counts[13] + counts[6] == 1000
    assert 650 < counts[13] < 850
    np.testing.assert_allclose(batch.weights[:, 0], np.where(batch.indices == 13, 1 / 3, 1.0), rtol=1e-6)
    for transition in stream[-1][10:13]:
        transition.add_to(buffer)
    assert buffer.update_priorities(batch.indices[:1], [7.0]) == (batch.indices[0] < 12)
    assert buffer.update_priorities([6, 13, 44], [9.0, 5.0, 2.0]) == 1
    assert buffer.n_skipped_updates == 1 + (batch.indices[0] < 12)
    assert buffer.sampler.values[[6, 13, 4]].tolist() == [1.0, 5.0, 2.0]
    assert buffer.update_priorities([], []) == 0


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_priorities_of_excluded_transitions_are_not_updated(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=WeightedSampler(), **SB3_OPTIMIZED)
    for transition in stream[-1][:12]:
        transition.add_to(buffer)
    assert buffer.update_priorities([8, 11, 12], [5.0, 5.0, 5.0]) == 2  # row 2 is reserved
    assert buffer.sampler.values[[8, 11, 12]].tolist() == [0.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("indices", "td_errors", "error", "message"),
    [
        ([1, 2], [1.0, float("nan")], ValueError, "nan for the index 2"),
        ([1, 2], [float("-inf"), 1.0], ValueError, "inf for the index 1"),
        ([1, 2], [1.0], ValueError, r"\(2,\) and \(1,\)"),
        ([[1, 2]], [[1.0, 2.0]], ValueError, "same shape"),
        ([1, 2], [[1.0, 2.0, 3.0]] * 2, ValueError, r"same shape .*sequence_priorities\(\)"),
        ([1.0, 2.0], [1.0, 2.0], TypeError, "integers"),
        ([1, 2], ["a", "b"], TypeError, "numbers"),
        ([1, 12], [1.0, 2.0], ValueError, "from 0 to 11, got 12"),
        ([1, -1], [1.0, 2.0], ValueError, "got -1"),
    ],
)
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_wrong_priorities_raise_and_change_nothing(
    indices: Any, td_errors: Any, error: type[Exception], message: str, stream: Stream
) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=WeightedSampler())
    for transition in stream[-1][:3]:
        transition.add_to(buffer)
    with pytest.raises(error, match=message):
        buffer.update_priorities(indices, td_errors)
    buffer.sample(1)
    assert buffer.sampler.values.tolist() == [1.0] * 12 + [0.0] * 28


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_a_sampler_without_priorities_is_named(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, sampler=ValidSampler())
    stream[-1][0].add_to(buffer)
    with pytest.raises(TypeError, match="ValidSampler has no priorities"):
        buffer.update_priorities([0], [1.0])


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (Draw(np.arange(3)), ValueError, "must return 4 integer indices"),
        (Draw(np.arange(4.0)), ValueError, "must return 4 integer indices"),  # type: ignore[arg-type]
        (Draw([0, 1, 2, 3]), ValueError, "must return 4 integer indices"),  # type: ignore[arg-type]
        (Draw(np.array([0, 1, 2, 40])), ValueError, "from 0 to 39, got 40"),
        (Draw(np.array([0, 1, 2, -1])), ValueError, "got -1"),
        (Draw(np.array([0, 1, 2, 12])), ValueError, "12, which may not be drawn"),
        (Draw(np.arange(4), np.ones(3, np.float32)), ValueError, "4 weights"),
        (Draw(np.arange(4), np.array([1, np.nan, 1, 1], np.float32)), ValueError, "not finite"),
        (np.arange(4), TypeError, "must return a Draw, got ndarray"),
    ],
)
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_a_wrong_draw_raises_and_names_the_sampler(
    result: Any, error: type[Exception], message: str, stream: Stream
) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=ScriptedSampler())
    for transition in stream[-1][:3]:
        transition.add_to(buffer)
    buffer.sampler.result = result
    with pytest.raises(error, match=f"ScriptedSampler.*{message}"):
        buffer.sample(4)


# -- configurations, copies and user's classes -------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_each_buffer_copies_the_sampler(stream: Stream) -> None:
    configured = WeightedSampler()
    first, second = (make(CompressedReplayBuffer, stream, sampler=configured) for _ in range(2))
    assert not configured.is_bound
    assert first.sampler is not second.sampler
    for transition in stream[-1][:3]:
        transition.add_to(first)
    first.sample(2)
    assert not hasattr(configured, "values")
    assert not second.sampler.is_valid.any()
    with pytest.raises(ValueError, match="belongs to a buffer"):
        make(CompressedReplayBuffer, stream, sampler=first.sampler)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_copies_and_pickles_contain_the_sampler(duplicate: Any, stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=WeightedSampler())
    for transition in stream[-1][:14]:
        transition.add_to(buffer)
    buffer.update_priorities(np.arange(20, 56), np.arange(36.0))
    stream[-1][14].add_to(buffer)  # not passed to the sampler yet
    other = duplicate(buffer)
    batches = same_draws(lambda: buffer.sample(32), lambda: other.sample(32), seed=0)
    np.testing.assert_array_equal(batches[0].indices, batches[1].indices)
    np.testing.assert_array_equal(batches[0].observations, batches[1].observations)
    values = other.sampler.values.copy()
    buffer.update_priorities([50], [99.0])
    np.testing.assert_array_equal(other.sampler.values, values)


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_take_over_takes_the_sampler_of_the_other_buffer(stream: Stream) -> None:
    buffer, other = (make(CompressedReplayBuffer, stream, rows=10, sampler=WeightedSampler()) for _ in range(2))
    for transition in stream[-1][:23]:
        transition.add_to(buffer)
    for transition in stream[-1][:14]:
        transition.add_to(other)
    before = buffer.sample(8)
    other.update_priorities(np.arange(16, 56), np.arange(16.0, 56.0))
    buffer.take_over(other)
    assert buffer.sampler is other.sampler
    assert buffer.update_priorities(before.indices, np.full(8, 99.0)) == 8
    assert np.sort(buffer.sampler.values).tolist() == [*range(16, 56)]
    batch = buffer.sample(8)
    assert buffer.update_priorities(batch.indices, np.full(8, 99.0)) == 0


@pytest.mark.parametrize("n_steps", [0, 5, 10, 14])
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_the_sampler_begins_anew_where_the_other_buffer_has_none(n_steps: int, stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=WeightedSampler())
    other = make(CompressedReplayBuffer, stream, rows=12)
    for transition in stream[-1][:23]:
        transition.add_to(buffer)
    before = buffer.sample(8)
    for transition in stream[-1][:n_steps]:
        transition.add_to(other)
    buffer.take_over(other)
    assert buffer.update_priorities(before.indices, np.full(8, 99.0)) == 8
    assert buffer.sampler.values.sum() == min(n_steps, 12) * 4
    stream[-1][n_steps].add_to(buffer)
    batch = buffer.sample(32)
    assert buffer.update_priorities(batch.indices, np.full(32, 99.0)) == 0


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_a_resized_buffer_keeps_its_sampler(stream: Stream) -> None:
    buffer = make(CompressedReplayBuffer, stream, rows=10, sampler=WeightedSampler())
    for transition in stream[-1][:13]:
        transition.add_to(buffer)
    resize(buffer, 16 * 4)
    for transition in stream[-1][13:17]:
        transition.add_to(buffer)
    batch = buffer.sample(100)
    assert buffer.sampler.is_valid.sum() == 14 * 4
    rows, envs = np.divmod(flat(batch, buffer), 4)
    np.testing.assert_array_equal(batch.observations, buffer.observations[rows, envs])


def test_a_saved_model_does_not_contain_the_sampler_of_its_buffer(tmp_path: Path) -> None:
    sizes = []
    for sampler in ("uniform", "recent", WeightedSampler()):
        kwargs = {"sampler": sampler}
        model = DQN(
            "MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=kwargs,
            buffer_size=100_000, learning_starts=10, seed=0, policy_kwargs={"net_arch": [8]}, device="cpu",
        )  # fmt: skip
        model.learn(60)
        assert kwargs == {"sampler": sampler}
        model.save(tmp_path / "model")
        sizes.append((tmp_path / "model.zip").stat().st_size)
        loaded = DQN.load(tmp_path / "model", env=model.get_env())
        assert type(loaded.replay_buffer.sampler) is type(model.replay_buffer.sampler)  # type: ignore[union-attr]
        assert loaded.learn(40, reset_num_timesteps=False).num_timesteps == 100
        if sampler != "uniform":
            assert loaded.replay_buffer.sampler.is_valid.sum() == 40  # type: ignore[union-attr]
    assert max(sizes) - min(sizes) < 500


class CountingBuffer(CompressedReplayBuffer):
    """A user's buffer, with an array and samples of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.costs = np.arange(self.buffer_size * self.n_envs, dtype=np.float32).reshape(self.buffer_size, self.n_envs)
        self.n_batches = 0
        self.counts = {"batches": 0}
        self.seen: Any = None

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        self.n_batches += 1
        self.counts["batches"] += 1
        samples = super()._get_samples(batch_inds, env)
        self.seen = self.costs[batch_inds, np.zeros(len(batch_inds), dtype=np.int64)]
        assert float(self.costs.mean()) == float(np.mean(self.costs)) > 0
        return samples


@pytest.mark.parametrize("stream", ["cart", "acrobot"], indirect=True)
def test_a_users_get_samples_is_called(stream: Stream) -> None:
    buffer = make(CountingBuffer, stream, sampler=ValidSampler())
    for transition in stream[-1][:30]:
        transition.add_to(buffer)
    for _ in range(3):
        batch = buffer.sample(16)
        np.testing.assert_array_equal(buffer.seen, flat(batch, buffer).astype(np.float32))
    assert buffer.n_batches == buffer.counts["batches"] == 3
    assert type(buffer.costs) is np.ndarray


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_a_get_samples_that_ignores_the_drawn_environments_raises(stream: Stream) -> None:
    class FirstEnvironment(CompressedReplayBuffer):
        def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
            return ReplayBufferSamples(*[th.as_tensor(self.rewards[batch_inds, 0])] * 5)

    buffer = make(FirstEnvironment, stream, sampler=ValidSampler())
    replaced = make(CompressedReplayBuffer, stream, sampler=ValidSampler())
    replaced._get_samples = replaced._get_samples  # bound to the buffer itself
    for each in (buffer, replaced):
        stream[-1][0].add_to(each)
        with pytest.raises(TypeError, match="_get_samples must index arrays as"):
            each.sample(4)


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_a_users_samples_get_the_two_fields(stream: Stream) -> None:
    class Own(NamedTuple):
        observations: Any
        bonus: Any

    class OwnSamples(CompressedReplayBuffer):
        def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
            samples = super()._get_samples(batch_inds, env)
            return Own(samples.observations, samples.rewards + 1)

    buffer = make(OwnSamples, stream, sampler=ValidSampler())
    stream[-1][0].add_to(buffer)
    assert buffer.sample(4)._fields == ("observations", "bonus", "weights", "indices")


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_an_update_of_an_empty_buffer_is_an_error(stream: Stream) -> None:
    with pytest.raises(ValueError, match="of which none was sampled yet, got 0"):
        make(CompressedReplayBuffer, stream, sampler="prioritized").update_priorities([0], [1.0])


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_a_mixin_that_extends_sample_can_have_a_sampler(stream: Stream) -> None:
    class Counting:
        n_samples = 0

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            self.n_samples += 1
            return super().sample(*args, **kwargs)  # type: ignore[misc]

    class Counted(Counting, CompressedReplayBuffer):
        pass

    buffer = make(Counted, stream, sampler="prioritized")
    stream[-1][0].add_to(buffer)
    assert len(buffer.sample(8).indices) == 8
    assert buffer.n_samples == 1


def test_a_parent_with_a_sample_of_its_own_cannot_have_a_sampler(stream: Stream) -> None:
    class Parent(ReplayBuffer):
        def sample(self, batch_size: int, env: Any = None) -> Any:
            return super().sample(batch_size, env)

    class Compressed(CompressedReplay, Parent):
        pass

    assert make(Compressed, stream).sampler is None
    with pytest.raises(TypeError, match=r"Parent\.sample"):
        make(Compressed, stream, sampler=ValidSampler())


@pytest.mark.parametrize(
    ("sampler", "error", "message"),
    [
        ("prioritised", ValueError, "did you mean 'prioritized'"),
        ("without_replacement", ValueError, "did you mean 'without-replacement'"),
        (3, TypeError, "got 3"),
        (None, TypeError, "did you mean 'uniform'"),
        (ValidSampler, TypeError, r"did you mean ValidSampler\(\)"),
    ],
)
@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_unknown_samplers_raise(sampler: Any, error: type[Exception], message: str, stream: Stream) -> None:
    with pytest.raises(error, match=f"must be one of .*uniform.*{message}"):
        make(CompressedReplayBuffer, stream, sampler=sampler)


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_rollout_buffers_have_no_sampler(stream: Stream) -> None:
    space, action_space, n_envs, _ = stream
    with pytest.raises(ValueError, match="sampler is for replay buffers"):
        CompressedRolloutBuffer(8, space, action_space, n_envs=n_envs, sampler=ValidSampler())


def test_sampler_is_an_abstract_class_with_one_abstract_method() -> None:
    assert Sampler.__abstractmethods__ == {"draw"}

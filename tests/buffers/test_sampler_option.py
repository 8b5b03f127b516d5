"""``sampler=`` of replay buffers: batches consist of the drawn transitions, as SB3's own code returns them."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, SB3_OPTIMIZED
from small_samplers import ScriptedSampler, ValidSampler, WeightedSampler
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from support import (
    Stream,
    Transition,
    add_all,
    assert_same_batch,
    batch_at,
    draws_replaced,
    filled,
    new_buffer,
    recorded,
    same_draws,
)

from sb3_compressed import BufferNotReady, CompressedHerReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.buffers.resize import resize
from sb3_compressed.buffers.weighted_samples import WeightedDictReplayBufferSamples, WeightedReplayBufferSamples
from sb3_compressed.samplers import Draw, bound_sampler

ROWS = 70


def steps(begin: int, end: int) -> list[Transition]:
    """Return transitions of CartPole in four environments."""
    return recorded("cart")[-1][begin:end]


def cart(n_steps: int, sampler: Any = None, rows: int = 10, cls: Any = CompressedReplayBuffer, **options: Any) -> Any:
    """Return a buffer with the first of them, whose sampler records what it is informed of by default."""
    return filled("cart", n_steps, rows, cls, sampler=sampler or ValidSampler(), **options)


def assert_as_drawn(batch: Any, buffer: Any, expected: ReplayBuffer, env: VecNormalize | None = None) -> None:
    """Assert that a batch is what SB3 creates for its indices, with weights and indices."""
    rows, envs = np.divmod(batch.indices, buffer.n_envs)
    assert_same_batch(without_draw(batch), batch_at(expected, rows, envs, env))


def without_draw(batch: Any) -> Any:
    """Return a batch with SB3's fields only."""
    is_dict = isinstance(batch.observations, dict)
    return (DictReplayBufferSamples if is_dict else ReplayBufferSamples)(*batch[:-2])


@pytest.mark.parametrize(
    ("kind", "stream", "theirs"),
    [
        ("replay", "atari", {}),
        ("replay", "atari", SB3_OPTIMIZED),
        ("replay", "pendulum", {"handle_timeout_termination": False}),
        ("n-step", "atari-single", {"n_steps": 5, "gamma": 0.99}),
        ("n-step", "cart", {"n_steps": 4, "gamma": 0.5}),
        ("dict", "console", {}),
    ],
    indirect=["stream"],
)
def test_batches_contain_what_sb3s_buffer_returns_for_the_drawn_transitions(
    kind: str, stream: Stream, theirs: dict[str, Any]
) -> None:
    compressed, parent = REPLAY_PAIRS[kind]
    method: dict[str, Any] = {"compression_method": "zstd-5"} if stream[0].shape != (3,) else {}
    buffer = new_buffer(compressed, stream, ROWS, sampler=ValidSampler(), **theirs, **method)
    expected = new_buffer(parent, stream, ROWS, **theirs)
    for step, transition in enumerate(stream[-1]):
        add_all([transition], buffer, expected)
        if step in (0, 20, ROWS - 2, ROWS - 1, ROWS) or step % 50 == 49:
            for batch_size in (1, 64):
                batch = buffer.sample(batch_size)
                assert_as_drawn(batch, buffer, expected)
                np.testing.assert_array_equal(batch.weights, np.ones((batch_size, 1), np.float32))


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("final", {"copy_info_dict": True, "n_sampled_goal": 1}), ("future", {"optimize_memory_usage": True})],
)
@pytest.mark.parametrize("stream", ["bits"], indirect=True)
def test_hindsight_batches_contain_what_sb3s_buffer_returns_for_the_drawn_transitions(
    stream: Stream, strategy: str, options: dict[str, Any]
) -> None:
    theirs = {name: value for name, value in options.items() if name != "optimize_memory_usage"}
    goals = {"goal_selection_strategy": strategy}
    buffer = new_buffer(CompressedHerReplayBuffer, stream, ROWS, sampler=ValidSampler(), **goals, **options)
    expected = new_buffer(HerReplayBuffer, stream, ROWS, **goals, **theirs)
    for step, transition in enumerate(stream[-1]):
        add_all([transition], buffer, expected)
        if step in (20, ROWS - 2, ROWS - 1, ROWS) or step % 50 == 49:
            draw = buffer._draw(32)  # apart, so that both draw goals from the same state
            np.random.seed(step)  # noqa: NPY002
            batch = buffer._samples_of(draw, None)
            indices = batch.indices
            np.testing.assert_array_equal(indices, draw.indices)
            assert (expected.ep_length.reshape(-1)[indices] > 0).all()
            n_virtual = int(buffer.her_ratio * 32)
            virtual_first = np.roll(indices, n_virtual)
            np.random.seed(step)  # noqa: NPY002
            with draws_replaced(choice=lambda *args, order=virtual_first, **kwargs: order):
                theirs_batch = expected.sample(32)
            assert_same_batch(without_draw(batch), theirs_batch)


def test_an_order_of_the_sampler_does_not_select_virtual_transitions() -> None:
    buffer = filled("bits", 60, ROWS, CompressedHerReplayBuffer, sampler=ScriptedSampler())
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


@pytest.mark.parametrize("stream", ["goal-bits"], indirect=True)
def test_hindsight_transitions_are_included_while_their_episodes_are_complete(stream: Stream) -> None:
    buffer = new_buffer(CompressedHerReplayBuffer, stream, 23, sampler=WeightedSampler())
    updated: dict[int, float] = {}
    n_checked = n_kept = 0
    for step, transition in enumerate(stream[-1]):
        transition.add_to(buffer)
        if step % 4 == 3 and (buffer.ep_length > 0).any():
            batch = buffer.sample(32)
            np.testing.assert_array_equal(buffer.sampler.is_valid, buffer.ep_length.reshape(-1) > 0)
            steps_of = step - (buffer.pos - 1 - np.arange(46) // 2) % 23  # when each transition was added
            for index in np.flatnonzero(buffer.sampler.is_valid).tolist():  # what was not overwritten keeps its value
                is_updated = updated.get(index, -1) == steps_of[index]
                assert buffer.sampler.values[index] == (steps_of[index] + 2.0 if is_updated else 1.0)
                n_checked += 1
                n_kept += is_updated
            assert buffer.update_priorities(batch.indices, steps_of[batch.indices] + 2.0) == 0
            updated.update((index, steps_of[index]) for index in batch.indices.tolist())
    assert n_checked > 100
    assert n_kept > 20
    n_complete = (buffer.ep_length > 0).sum()
    with pytest.warns(UserWarning, match="truncated"):
        buffer.truncate_last_trajectory()
    assert (buffer.ep_length > 0).sum() > n_complete
    buffer.sample(4)
    assert buffer.sampler.is_valid.sum() == (buffer.ep_length > 0).sum()


@pytest.mark.parametrize("stream", ["goal-bits"], indirect=True)
def test_hindsight_transitions_are_excluded_though_an_interrupt_came_first(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = new_buffer(CompressedHerReplayBuffer, stream, 23, sampler="prioritized")
    remove = type(buffer.sampler).remove
    n_interrupted = 0

    def interrupted(self: Any, indices: Any) -> None:
        monkeypatch.setattr(type(self), "remove", remove)
        raise KeyboardInterrupt

    for transition in stream[-1]:
        monkeypatch.setattr(type(buffer.sampler), "remove", interrupted)
        try:
            transition.add_to(buffer)
        except KeyboardInterrupt:
            n_interrupted += 1
            transition.add_to(buffer)
        monkeypatch.setattr(type(buffer.sampler), "remove", remove)
        np.testing.assert_array_equal(buffer.sampler.is_valid, buffer.ep_length.reshape(-1) > 0)
        if (buffer.ep_length > 0).any():
            buffer.sample(4)
    assert n_interrupted > 3


@pytest.mark.parametrize("stream", ["pendulum", "atari"], indirect=True)
@pytest.mark.parametrize("kind", ["replay", "n-step"])
def test_vec_normalize_normalizes_the_drawn_transitions(kind: str, stream: Stream) -> None:
    compressed, parent = REPLAY_PAIRS[kind]
    env = VecNormalize(make_vec_env("Pendulum-v1", stream[2]), norm_obs=len(stream[0].shape or ()) == 1)
    env.ret_rms.update(np.array([3.0, 7.0]))
    buffer, expected = filled(stream, 100, ROWS, compressed, sampler=ValidSampler()), filled(stream, 100, ROWS, parent)
    assert_as_drawn(buffer.sample(32, env), buffer, expected, env)


def test_batches_are_named_tuples_that_begin_with_sb3s_fields() -> None:
    assert WeightedReplayBufferSamples._fields == (*ReplayBufferSamples._fields, "weights", "indices")
    assert WeightedDictReplayBufferSamples._fields == (*DictReplayBufferSamples._fields, "weights", "indices")
    batch = cart(1).sample(3)
    assert type(batch) is WeightedReplayBufferSamples
    assert batch.indices.dtype == np.int64
    assert (batch.weights.dtype, batch.weights.shape) == (th.float32, (3, 1))
    assert type(pickle.loads(pickle.dumps(batch))) is WeightedReplayBufferSamples


# -- which transitions the sampler is informed of ----------------------------------------------------------------


def test_each_written_transition_is_added_once() -> None:
    buffer = cart(0)
    for step in range(37):
        add_all(steps(step, step + 1), buffer)
        buffer.sample(2)
    rows = np.arange(37)[:, np.newaxis] % 10
    np.testing.assert_array_equal(buffer.sampler.added, rows * 4 + np.arange(4))
    assert buffer.sampler.removed == []


def test_reset_excludes_everything() -> None:
    buffer = cart(25, WeightedSampler())
    buffer.update_priorities(np.arange(40), np.full(40, 9.0))
    buffer.reset()
    with pytest.raises(BufferNotReady):
        buffer.sample(1)
    add_all(steps(0, 5), buffer)
    batch = buffer.sample(64)
    assert {*batch.indices.tolist()} <= {*range(20)}
    np.testing.assert_array_equal(np.flatnonzero(buffer.sampler.is_valid), np.arange(20))
    assert buffer.update_priorities([20, 39], [9.0, 9.0]) == 2
    assert buffer.sampler.values.max() == 1.0
    assert buffer.update_priorities(batch.indices, np.full(64, 9.0)) == 0


def test_nothing_remains_of_priorities_before_a_reset_that_many_steps_follow() -> None:
    buffer = cart(3, WeightedSampler())
    buffer.update_priorities(np.arange(12), np.full(12, 9.0))
    buffer.reset()
    n_steps = 6
    columns = [
        np.stack([getattr(step, name) for step in steps(0, n_steps)])
        for name in ("obs", "next_obs", "action", "reward", "done")
    ]
    buffer.extend(*columns, timeouts=np.zeros((n_steps, 4), bool))
    assert buffer.sampler.values[: n_steps * 4].tolist() == [1.0] * n_steps * 4


def test_position_may_be_assigned_directly() -> None:
    buffer = cart(4)
    buffer.sample(1)
    buffer.pos = 7
    np.testing.assert_array_equal(np.unique(buffer.sample(500).indices), np.arange(28))
    buffer.pos, buffer.full = 3, True
    np.testing.assert_array_equal(np.unique(buffer.sample(900).indices), np.arange(40))


@pytest.mark.parametrize("n_rows", [4, 9, 25])
def test_an_interrupt_after_the_position_was_moved_keeps_the_priorities(n_rows: int) -> None:
    buffer = cart(n_rows, WeightedSampler())
    batch = buffer.sample(8)
    buffer.update_priorities(batch.indices, np.full(8, 9.0))
    [step] = steps(n_rows, n_rows + 1)
    # All that an add has done when it is interrupted before it returns.
    ReplayBuffer.add(buffer, step.obs, step.next_obs, step.action, step.reward, step.done, step.infos)
    new = n_rows % 10 * 4 + np.arange(4)
    assert {*new.tolist()} <= {*buffer.sample(500).indices.tolist()}
    assert buffer.sampler.values[new].tolist() == [1.0] * 4
    kept = np.setdiff1d(batch.indices, new)
    assert buffer.sampler.values[kept].tolist() == [9.0] * len(kept)


def test_an_empty_batch_of_any_buffer_can_be_sampled_but_nothing_of_an_empty_buffer() -> None:
    buffer = cart(0)
    with pytest.raises(BufferNotReady):
        buffer.sample(1)
    for _ in range(2):
        batch = buffer.sample(0)
        assert (batch.observations.shape, batch.weights.shape, batch.indices.shape) == ((0, 4), (0, 1), (0,))
        add_all(steps(0, 1), buffer)


# -- priorities --------------------------------------------------------------------------------------------------


def test_priorities_decide_what_is_drawn_until_it_is_overwritten() -> None:
    buffer = cart(10, WeightedSampler())
    assert buffer.update_priorities(np.arange(40), np.zeros(40)) == 0
    assert buffer.update_priorities(th.tensor([13, 6]), th.tensor([[-3.0], [1.0]], requires_grad=True)) == 0
    batch = buffer.sample(1000)
    counts = np.bincount(batch.indices, minlength=40)
    assert counts[13] + counts[6] == 1000
    assert 650 < counts[13] < 850
    np.testing.assert_allclose(batch.weights[:, 0], np.where(batch.indices == 13, 1 / 3, 1.0), rtol=1e-6)
    add_all(steps(10, 13), buffer)
    assert buffer.sampler.values[:14].tolist() == [1.0] * 12 + [0.0, 3.0]
    assert buffer.update_priorities([6, 13], [9.0, 5.0]) == 0
    assert buffer.sampler.values[[6, 13]].tolist() == [9.0, 5.0]
    assert buffer.update_priorities([], []) == 0


def test_priorities_of_excluded_transitions_are_not_updated() -> None:
    buffer = cart(12, WeightedSampler(), **SB3_OPTIMIZED)
    assert buffer.update_priorities([8, 11, 12], [5.0, 5.0, 5.0]) == buffer.n_skipped_updates == 2  # row 2 is reserved
    assert buffer.sampler.values[[8, 11, 12]].tolist() == [0.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("indices", "td_errors", "error", "message"),
    [
        ([1, 2], [1.0, float("nan")], ValueError, "nan"),
        ([1, 2], [float("-inf"), 1.0], ValueError, "inf"),
        ([1, 2], [1.0], ValueError, "shape"),
        ([[1, 2]], [[1.0, 2.0]], ValueError, "shape"),
        ([1, 2], [[1.0, 2.0, 3.0]] * 2, ValueError, "sequence_priorities"),
        ([1.0, 2.0], [1.0, 2.0], TypeError, "integers"),
        ([1, 2], ["a", "b"], TypeError, "numbers"),
        ([1, 40], [1.0, 2.0], ValueError, "got 40"),
        ([1, -1], [1.0, 2.0], ValueError, "got -1"),
    ],
)
def test_wrong_priorities_raise_and_change_nothing(
    indices: Any, td_errors: Any, error: type[Exception], message: str
) -> None:
    buffer = cart(3, WeightedSampler())
    with pytest.raises(error, match=message):
        buffer.update_priorities(indices, td_errors)
    buffer.sample(1)
    assert buffer.sampler.values.tolist() == [1.0] * 12 + [0.0] * 28


def test_updates_without_priorities_raise() -> None:
    for sampler, message in ((ValidSampler(), "ValidSampler"), ("uniform", "prioritized")):
        with pytest.raises(TypeError, match=message):
            cart(1, sampler).update_priorities([0], [1.0])
    assert cart(0, "prioritized").update_priorities([0], [1.0]) == 1


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (Draw(np.arange(3)), ValueError, "4 integer"),
        (Draw(np.arange(4.0)), ValueError, "4 integer"),  # type: ignore[arg-type]
        (Draw([0, 1, 2, 3]), ValueError, "4 integer"),  # type: ignore[arg-type]
        (Draw(np.array([0, 1, 2, 40])), ValueError, "got 40"),
        (Draw(np.array([0, 1, 2, -1])), ValueError, "got -1"),
        (Draw(np.array([0, 1, 2, 12])), ValueError, "12"),
        (Draw(np.arange(4), np.ones(3, np.float32)), ValueError, "weights"),
        (Draw(np.arange(4), np.array([1, np.nan, 1, 1], np.float32)), ValueError, "finite"),
        (np.arange(4), TypeError, "ndarray"),
    ],
)
def test_a_wrong_draw_raises_and_names_the_sampler(result: Any, error: type[Exception], message: str) -> None:
    buffer = cart(3, ScriptedSampler())
    buffer.sampler.result = result
    with pytest.raises(error, match=f"ScriptedSampler.*{message}"):
        buffer.sample(4)


# -- configurations, copies and user's classes -------------------------------------------------------------------


def test_each_buffer_copies_the_sampler() -> None:
    configured = WeightedSampler()
    first, second = (cart(n_steps, configured) for n_steps in (3, 0))
    assert not configured.is_bound
    assert first.sampler is not second.sampler
    first.sample(2)
    assert not hasattr(configured, "values")
    assert not second.sampler.is_valid.any()
    with pytest.raises(ValueError, match="belongs"):
        cart(0, first.sampler)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_copies_and_pickles_contain_the_sampler(duplicate: Any) -> None:
    buffer = cart(14, WeightedSampler())
    buffer.update_priorities(np.arange(4, 40), np.arange(36.0))
    add_all(steps(14, 15), buffer)
    other = duplicate(buffer)
    first, second = same_draws(lambda: buffer.sample(32), lambda: other.sample(32), seed=0)
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_array_equal(first.observations, second.observations)
    values = other.sampler.values.copy()
    buffer.update_priorities([30], [99.0])
    np.testing.assert_array_equal(other.sampler.values, values)


def test_take_over_takes_the_sampler_of_the_other_buffer() -> None:
    buffer, other = (cart(n_steps, WeightedSampler()) for n_steps in (23, 14))
    other.update_priorities(np.arange(40), np.arange(40.0))
    buffer.take_over(other)
    assert buffer.sampler is other.sampler
    add_all(steps(14, 15), buffer)
    assert buffer.sampler.values.tolist() == [*range(16), 1, 1, 1, 1, *range(20, 40)]


@pytest.mark.parametrize("n_steps", [0, 5, 10, 14])
def test_the_sampler_begins_anew_where_the_other_buffer_has_none(n_steps: int) -> None:
    buffer, other = cart(23, WeightedSampler()), cart(n_steps, "uniform", rows=12)
    buffer.take_over(other)
    assert buffer.sampler.values.sum() == min(n_steps, 12) * 4
    add_all(steps(n_steps, n_steps + 1), buffer)
    batch = buffer.sample(32)
    assert buffer.update_priorities(batch.indices, np.full(32, 99.0)) == 0


def test_a_resized_buffer_keeps_its_sampler() -> None:
    buffer = cart(13, WeightedSampler())
    resize(buffer, 16 * 4)
    add_all(steps(13, 17), buffer)
    batch = buffer.sample(100)
    assert buffer.sampler.is_valid.sum() == 14 * 4
    rows, envs = np.divmod(batch.indices, 4)
    np.testing.assert_array_equal(batch.observations, buffer.observations[rows, envs])


def test_a_saved_model_does_not_contain_the_sampler_of_its_buffer(tmp_path: Path) -> None:
    sizes = []
    for sampler in ("uniform", WeightedSampler()):
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
    """A user's buffer, which counts its batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_batches = 0
        self.counts = {"batches": 0}
        self.seen: Any = None

    def _samples_at(self, rows: Any, envs: Any, env: Any = None) -> Any:
        self.n_batches += 1
        self.counts["batches"] += 1
        samples = super()._samples_at(rows, envs, env)
        self.seen = rows * self.n_envs + envs
        return samples


@pytest.mark.parametrize("name", ["cart", "acrobot"])
def test_a_users_samples_at_is_called_with_and_without_a_sampler(name: str) -> None:
    buffer = filled(name, 30, ROWS, CountingBuffer, sampler=ValidSampler())
    for _ in range(3):
        batch = buffer.sample(16)
        np.testing.assert_array_equal(buffer.seen, batch.indices)
    assert buffer.n_batches == buffer.counts["batches"] == 3
    uniform, expected = (filled(name, 30, ROWS, cls) for cls in (CountingBuffer, ReplayBuffer))
    batch, theirs = same_draws(lambda: uniform.sample(16), lambda: expected.sample(16), seed=0)
    assert_same_batch(batch, theirs)
    assert_same_batch(batch, batch_at(expected, *np.divmod(uniform.seen, uniform.n_envs)))
    assert uniform.n_batches == 1


class OwnGetSamples(CompressedReplayBuffer):
    """Overrides SB3's method, which receives no environments."""

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        return super()._get_samples(batch_inds, env)


class InFront(ReplayBuffer):
    """Overrides it in a class in front of ours."""

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        return super()._get_samples(batch_inds, env)


class Both(InFront, CompressedReplayBuffer):
    """Inherits that."""


@pytest.mark.parametrize(("cls", "name"), [(OwnGetSamples, "OwnGetSamples"), (Both, "InFront")])
def test_a_get_samples_of_a_user_is_an_error_with_a_sampler(cls: Any, name: str) -> None:
    assert len(cart(3, "uniform", cls=cls).sample(4).rewards) == 4
    with pytest.raises(TypeError, match=rf"{name}\._get_samples.*_samples_at"):
        cart(0, cls=cls)


def test_pickles_of_a_class_that_overrides_get_samples_raise_with_a_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of another version of the class."""
    buffer, uniform = cart(3, cls=CountingBuffer), cart(3, "uniform", cls=OwnGetSamples)
    assert len(pickle.loads(pickle.dumps(uniform)).sample(4).rewards) == 4
    pickled = pickle.dumps(buffer)
    monkeypatch.setattr(CountingBuffer, "_get_samples", lambda self, rows, env=None: None, raising=False)
    with pytest.raises(TypeError, match="_samples_at"):
        pickle.loads(pickled)


def test_a_users_samples_get_the_two_fields() -> None:
    class Own(NamedTuple):
        observations: Any
        bonus: Any

    class OwnSamples(CompressedReplayBuffer):
        def _samples_at(self, rows: Any, envs: Any, env: Any = None) -> Any:
            samples = super()._samples_at(rows, envs, env)
            return Own(samples.observations, samples.rewards + 1)

    assert cart(1, cls=OwnSamples).sample(4)._fields == ("observations", "bonus", "weights", "indices")


def test_a_mixin_that_extends_sample_can_have_a_sampler() -> None:
    class Counting:
        n_samples = 0

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            self.n_samples += 1
            return super().sample(*args, **kwargs)  # type: ignore[misc]

    class Counted(Counting, CompressedReplayBuffer):
        pass

    buffer = cart(1, "prioritized", cls=Counted)
    assert len(buffer.sample(8).indices) == 8
    assert buffer.n_samples == 1


def test_a_parent_with_a_sample_of_its_own_cannot_have_a_sampler() -> None:
    class Parent(ReplayBuffer):
        def sample(self, batch_size: int, env: Any = None) -> Any:
            return super().sample(batch_size, env)

    class Compressed(CompressedReplay, Parent):
        pass

    assert new_buffer(Compressed, "cart", ROWS).sampler is None
    with pytest.raises(TypeError, match=r"Parent\.sample"):
        cart(0, cls=Compressed)


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
def test_unknown_samplers_raise(sampler: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"uniform.*{message}"):
        new_buffer(CompressedReplayBuffer, "cart", ROWS, sampler=sampler)


def test_rollout_buffers_have_no_sampler() -> None:
    with pytest.raises(ValueError, match="replay"):
        CompressedRolloutBuffer(8, *recorded("cart")[:2], sampler=ValidSampler())


@pytest.mark.parametrize("sampler", ["uniform", "recent", "prioritized"])
def test_priorities_that_are_never_updated_warn_once(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_sampler, "MAX_WITHOUT_UPDATE", 3)
    buffer = cart(8, sampler)
    updated = cart(8, "prioritized")
    updated.update_priorities(updated.sample(4).indices, np.ones(4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            buffer.sample(4)
            updated.sample(4)
    assert [warning.filename for warning in caught] == [__file__] * (sampler == "prioritized")
    assert all("prioritize(model)" in str(warning.message) for warning in caught)

"""Prioritized replay draws, weights and continues as its sources define it."""
# ruff: noqa: NPY002  # samplers use NumPy's global random numbers, as SB3 does

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
from chi_square import assert_frequencies
from numpy.typing import NDArray

from sb3_compressed.errors import BufferNotReady
from sb3_compressed.samplers import PrioritizedSampler, sequence_priorities

N_ROWS, N_ENVS = 60, 3
N = N_ROWS * N_ENVS


def bound(n: int = N, **arguments: Any) -> PrioritizedSampler:
    """Return a sampler with ``n`` new transitions."""
    sampler = PrioritizedSampler(**arguments)
    sampler.bind(N_ROWS, N_ENVS)
    sampler.add(np.arange(n))
    return sampler


def after_overwrites_and_updates(**arguments: Any) -> tuple[PrioritizedSampler, NDArray[np.float64]]:
    """Return a sampler after many random changes, and its priorities by a straightforward model."""
    rng = np.random.default_rng(0)
    sampler = PrioritizedSampler(**arguments)
    sampler.bind(N_ROWS, N_ENVS)
    priorities, is_updated = np.zeros(N), np.zeros(N, bool)
    for step in range(4 * N_ROWS):
        row = step % N_ROWS * N_ENVS + np.arange(N_ENVS)
        new = priorities[is_updated].max(initial=0) or 1.0
        sampler.add(row)
        priorities[row], is_updated[row] = new, False
        if step % 3 == 0:
            indices = rng.choice(min((step + 1) * N_ENVS, N), 10)
            td_errors = rng.exponential(2.0, 10)
            sampler.update(indices, td_errors)
            for index, td_error in zip(indices, td_errors):
                floor = max(td_error, 1.0) if sampler.mode == "lap" else td_error + sampler.epsilon
                priorities[index], is_updated[index] = floor**sampler.alpha, True
    removed = rng.choice(N, 20, replace=False)
    sampler.remove(removed)
    priorities[removed] = 0
    sampler.update(removed[:5], np.full(5, 100.0))  # ignored: these may not be drawn
    return sampler, priorities


@pytest.mark.parametrize("mode", ["per", "lap"])
@pytest.mark.parametrize("stratified", [True, False])
def test_frequencies_match_priorities_after_overwrites_and_updates(mode: str, stratified: bool) -> None:
    sampler, priorities = after_overwrites_and_updates(mode=mode, stratified=stratified, alpha=0.7)
    np.testing.assert_allclose(sampler.priorities, priorities, rtol=1e-14)
    np.testing.assert_array_equal(sampler.is_valid, priorities > 0)
    np.random.seed(1)
    counts = np.bincount(np.concatenate([sampler.draw(64).indices for _ in range(2000)]), minlength=N)
    drawn = priorities > 0
    assert (counts[~drawn] == 0).all()
    assert_frequencies(counts[drawn], priorities[drawn])


def test_stratified_draws_take_one_item_from_each_part_of_the_total() -> None:
    sampler = bound()
    np.random.seed(0)
    for _ in range(20):
        np.testing.assert_array_equal(sampler.draw(N).indices, np.arange(N))
    assert len(set(bound(stratified=False).draw(N).indices)) < N


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_those_of_the_paper_with_the_largest_of_the_batch_at_one(beta: float) -> None:
    sampler, priorities = after_overwrites_and_updates(beta=beta)
    probabilities = priorities / priorities.sum()
    for _ in range(10):
        indices, weights = sampler.draw(50)
        expected = ((priorities > 0).sum() * probabilities[indices]) ** -beta
        assert weights is not None
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-6)
        assert weights.max() == 1


def test_beta_changes_linearly_over_the_draws() -> None:
    sampler = bound(beta=0.4, beta_final=0.9, beta_steps=5)
    betas = []
    for _ in range(8):
        betas.append(sampler.current_beta)
        sampler.draw(4)
    assert betas == pytest.approx([0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9])
    sampler.update(np.array([0]), np.array([8.0]))
    priorities = sampler.priorities
    indices, weights = sampler.draw(N)
    np.testing.assert_allclose(weights, (priorities[indices].min() / priorities[indices]) ** 0.9, rtol=1e-6)  # type: ignore[arg-type]


def test_lap_clips_small_errors_and_has_no_weights() -> None:
    sampler = bound(mode="lap", alpha=0.4)
    sampler.update(np.arange(4), np.array([0.0, 0.5, 1.0, 3.0]))
    np.testing.assert_allclose(sampler.priorities[:4], [1.0, 1.0, 1.0, 3.0**0.4], rtol=1e-15)
    assert sampler.draw(8).weights is None


def test_alpha_is_applied_once_to_updated_and_new_transitions() -> None:
    """New items got ``priority ** alpha ** 2`` in TorchRL (pull request #3925)."""
    sampler = bound(N - N_ENVS, alpha=0.5, epsilon=0.0)
    sampler.update(np.array([4]), np.array([16.0]))
    for step in range(5):
        sampler.add(np.arange(N_ENVS) + step * N_ENVS + 6)
        np.testing.assert_array_equal(sampler.priorities[6 + step * N_ENVS :][:N_ENVS], 4.0)
    assert sampler.priorities[4] == 4.0


def test_the_maximum_is_that_of_the_buffer_now() -> None:
    """An outlier, or the initial 1, must not determine the priority of new items forever (TorchRL issue #2210)."""
    sampler = bound(alpha=1.0, epsilon=0.0)
    assert sampler.new_priority == 1.0
    sampler.update(np.arange(9), np.full(9, 1e-3))
    assert sampler.new_priority == 1e-3, "items that were not updated yet do not count"
    sampler.update(np.array([3, 5, 7]), np.array([100.0, 50.0, 25.0]))
    assert sampler.new_priority == 100.0
    sampler.update(np.array([3]), np.array([0.01]))
    assert sampler.new_priority == 50.0
    sampler.add(np.array([5]))
    assert sampler.priorities[5] == 50.0
    assert sampler.new_priority == 25.0, "item 5 was overwritten"
    sampler.remove(np.array([7]))
    assert sampler.new_priority == 0.01
    sampler.add(np.arange(N))
    assert sampler.new_priority == 1.0


def test_new_transitions_can_be_drawn_after_all_priorities_were_zero() -> None:
    sampler = bound(epsilon=0.0)
    sampler.update(np.arange(N), np.zeros(N))
    with pytest.raises(ValueError, match=r"priorities of all transitions are 0.*epsilon > 0"):
        sampler.draw(4)
    sampler.add(np.array([17]))
    np.testing.assert_array_equal(sampler.draw(4).indices, 17)


def test_drawing_from_nothing_raises() -> None:
    sampler = bound(0)
    with pytest.raises(BufferNotReady, match="no transitions"):
        sampler.draw(4)
    sampler.add(np.arange(3))
    sampler.remove(np.arange(3))
    with pytest.raises(BufferNotReady, match="no transitions"):
        sampler.draw(4)
    with pytest.raises(ValueError, match="batch_size"):
        sampler.draw(0)


def test_values_that_do_not_fit_raise_and_change_nothing() -> None:
    sampler = bound(alpha=1.0)
    before = copy.deepcopy(sampler.state_dict())
    with pytest.raises(ValueError, match="a value for each item"):
        sampler.update(np.arange(3), np.ones(2))
    with pytest.raises(ValueError, match="item 1 must be in"):
        sampler.update(np.arange(3), np.array([1.0, 1e300, 1.0]))
    with pytest.raises(IndexError, match="out of bounds"):
        sampler.update(np.array([0, N]), np.ones(2))
    sampler.update(np.zeros(0, np.int64), np.zeros(0))
    assert_equal_states(sampler.state_dict(), before)


def assert_equal_states(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


def test_draws_use_only_the_global_random_numbers_and_one_for_each_transition() -> None:
    sampler = bound()
    np.random.seed(3)
    sampler.draw(32)
    following = np.random.random()
    np.random.seed(3)
    np.random.random(32)
    assert np.random.random() == following


def test_a_sampler_is_a_configuration_until_it_is_bound() -> None:
    sampler = PrioritizedSampler(0.5, beta_steps=10, mode="lap")
    assert repr(sampler) == (
        "PrioritizedSampler(alpha=0.5, beta=0.4, beta_final=1.0, beta_steps=10, epsilon=1e-06, stratified=True, "
        "mode='lap')"
    )
    assert sampler == eval(repr(sampler))
    assert sampler != PrioritizedSampler(0.5, beta_steps=11, mode="lap")
    with pytest.raises(ValueError, match="copy"):
        sampler.draw(4)
    other = copy.deepcopy(sampler)
    other.bind(10, 1)
    assert other == sampler, "configurations are compared"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"alpha": -0.1}, ValueError, "got -0.1"),
        ({"alpha": math.nan}, ValueError, "got nan"),
        ({"alpha": math.inf}, ValueError, "alpha"),
        ({"alpha": "0.6"}, TypeError, "alpha"),
        ({"alpha": True}, TypeError, "alpha"),
        ({"beta": 1.1}, ValueError, "got 1.1"),
        ({"beta": -1}, ValueError, "got -1"),
        ({"beta_final": math.nan}, ValueError, "beta_final"),
        ({"beta_steps": 0}, ValueError, "beta_steps"),
        ({"beta_steps": 1e6}, TypeError, "beta_steps"),
        ({"epsilon": -1e-6}, ValueError, "epsilon"),
        ({"stratified": 1}, TypeError, "stratified"),
        ({"mode": "rank"}, ValueError, "rank"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PrioritizedSampler(**arguments)


def test_statistics_equal_their_definitions() -> None:
    sampler, priorities = after_overwrites_and_updates()
    valid = priorities[priorities > 0]
    assert sampler.priority_max == pytest.approx(valid.max())
    expected = valid.sum() ** 2 / (len(valid) * (valid**2).sum())
    assert sampler.effective_sample_size == pytest.approx(expected)
    assert sampler.share_never_sampled == 1.0
    drawn = set(sampler.draw(40).indices)
    assert sampler.share_never_sampled == pytest.approx(1 - len(drawn) / len(valid))
    empty = bound(0)
    assert math.isnan(empty.effective_sample_size)
    assert math.isnan(empty.share_never_sampled)


def test_priorities_of_sequences_mix_maximum_and_mean_of_the_steps_that_count() -> None:
    errors = np.array([[1.0, -4.0, 100.0], [2.0, 2.0, 2.0], [np.nan, 0.5, np.inf], [9.0, 9.0, 9.0]], np.float32)
    mask = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_allclose(sequence_priorities(errors, mask), [0.9 * 4 + 0.1 * 2.5, 2.0, 0.5, 0.0])
    np.testing.assert_allclose(sequence_priorities(errors[:2], eta=0.5), [0.5 * 100 + 0.5 * 35, 2.0])
    assert sequence_priorities(np.zeros((0, 5))).shape == (0,)
    assert sequence_priorities(np.zeros((2, 0))).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("errors", "mask", "eta", "message"),
    [
        (np.ones(3), None, 0.9, r"must be \(batch, time\), got \(3,\)"),
        (np.ones((2, 3)), np.ones((2, 4)), 0.9, r"got \(2, 3\) and \(2, 4\)"),
        (np.ones((2, 3)), None, 1.5, "eta must be between 0 and 1, got 1.5"),
        (np.array([[1.0, 1.0], [1.0, np.nan]]), None, 0.9, "got nan for step 1 of sequence 1"),
    ],
)
def test_invalid_sequences_raise(errors: Any, mask: Any, eta: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequence_priorities(errors, mask, eta)

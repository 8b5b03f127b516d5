"""``RecentSampler``: the distribution of ages, also of transitions that may not be drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from chi_square import assert_frequencies

from sb3_compressed.samplers import RecentSampler


def filled(sampler: RecentSampler, n_rows: int, n_written: int, n_envs: int = 1) -> Any:
    """Return it as the sampler of a buffer into which rows were written."""
    sampler.bind(n_rows, n_envs)
    size = min(n_written, n_rows)
    rows = np.arange(n_written - size, n_written) % n_rows
    indices = (rows[:, np.newaxis] * n_envs + np.arange(n_envs)).reshape(-1)
    sampler.add(indices, SimpleNamespace(pos=n_written % n_rows, size=lambda: size))
    return sampler


def ages_of(sampler: Any, n: int, n_rows: int, n_written: int) -> Any:
    indices = sampler.draw(n).indices
    return (n_written - 1 - indices) % n_rows


def shares_of_ages(shortest: float, longest: float, n: int) -> Any:
    """Return the probabilities of the first ``n`` ages, by numerical integration.

    That is the mean over windows w, whose logarithm is uniform, of the length of [age, age + 1) below w, by w.
    """
    windows = shortest * (longest / shortest) ** ((np.arange(200_000) + 0.5) / 200_000)
    return np.array([(np.clip(windows - age, 0, 1) / windows).mean() for age in range(n)])


@pytest.mark.parametrize("n_written", [60, 100, 173])
def test_equal_lengths_draw_the_newest_transitions_uniformly(n_written: int) -> None:
    np.random.seed(0)  # noqa: NPY002
    sampler = filled(RecentSampler(shortest=30, longest=30), 100, n_written)
    counts = np.bincount(ages_of(sampler, 30_000, 100, n_written), minlength=100)
    assert counts[30:].sum() == 0
    assert_frequencies(counts[:30])


@pytest.mark.parametrize("n_written", [200, 333])
def test_ages_follow_log_uniform_windows(n_written: int) -> None:
    np.random.seed(0)  # noqa: NPY002
    sampler = filled(RecentSampler(shortest=0.05, longest=1.0), 200, n_written)
    counts = np.bincount(ages_of(sampler, 200_000, 200, n_written), minlength=200)
    shares = shares_of_ages(10, 200, 200)
    assert_frequencies(counts.reshape(40, 5).sum(axis=1), shares.reshape(40, 5).sum(axis=1))
    assert counts[:10].mean() > 20 * counts[-10:].mean()


def test_environments_are_drawn_equally_often() -> None:
    np.random.seed(0)  # noqa: NPY002
    sampler = filled(RecentSampler(), 50, 70, n_envs=4)
    rows, envs = np.divmod(sampler.draw(40_000).indices, 4)
    assert_frequencies(np.bincount(envs[rows == 19]))  # the newest row
    assert_frequencies(np.bincount(envs))


def test_transitions_that_may_not_be_drawn_are_left_out() -> None:
    sampler = filled(RecentSampler(shortest=20, longest=20), 100, 100)
    sampler.remove(np.arange(85, 100))
    assert {*sampler.draw(500).indices.tolist()} == {*range(80, 85)}
    sampler.remove(np.arange(70, 85))  # none is left in the window: the newest 20 of the others
    assert {*sampler.draw(2000).indices.tolist()} == {*range(50, 70)}
    sampler.remove(np.arange(1, 70))
    assert {*sampler.draw(20).indices.tolist()} == {0}


def test_a_length_may_exceed_the_number_of_transitions() -> None:
    sampler = filled(RecentSampler(shortest=1000, longest=5000), 100, 7)
    assert {*sampler.draw(500).indices.tolist()} == {*range(7)}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"shortest": 0}, ValueError),
        ({"shortest": 1.5}, ValueError),
        ({"longest": float("nan")}, ValueError),
        ({"shortest": 0.5, "longest": 0.2}, ValueError),
        ({"shortest": 10, "longest": 5}, ValueError),
        ({"shortest": "a"}, TypeError),
        ({"longest": True}, TypeError),
    ],
)
def test_invalid_lengths_raise(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{list(arguments)[-1]}|shortest"):
        RecentSampler(**arguments)


def test_an_invalid_state_is_refused() -> None:
    sampler = filled(RecentSampler(), 10, 5)
    with pytest.raises(ValueError, match="those of 10 rows, got 11"):
        sampler.load_state_dict({**sampler.state_dict(), "pos": 11})

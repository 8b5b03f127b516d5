"""The advice: how memory is extrapolated, and which buffer is said to be worth it."""

from __future__ import annotations

from typing import Any

import pytest

from sb3_compressed.benchmarking.advice import advise, costs


def measured(rss: float, growth: float | None = None, add: float = 10.0, sample: float = 100.0, **more: Any) -> Any:
    growth = rss if growth is None else growth
    return {"rss": rss, "growth": growth, "counted": 0.0, "add": add, "sample(32)": sample, "wrong": "", **more}


def advised(**ours: Any) -> str:
    every = {"SB3": measured(1000.0), **ours}
    return advise(costs(every, n_measured=100, buffer_size=10_000, batch_size=32)).contender


def test_what_does_not_grow_counts_once() -> None:
    every = {"SB3": measured(1000.0), "auto": measured(50.0, growth=30.0)}
    base, ours = costs(every, n_measured=100, buffer_size=10_000, batch_size=32)
    assert base.memory == 1000 * 10_000
    assert ours.memory == 50 * 100 + 30 * 9_900
    assert ours.ratio == ours.memory / base.memory
    assert ours.transition == ours.memory / 10_000


def test_memory_is_no_less_than_what_arrays_are_known_to_take() -> None:
    """What a process grows by is noise where buffers are small."""
    every = {"SB3": measured(-3.0, counted=40.0), "auto": measured(0.0, counted=30.0)}
    base, ours = costs(every, n_measured=100, buffer_size=10_000, batch_size=32)
    assert (base.memory, ours.memory) == (40 * 10_000, 30 * 10_000)


def test_times_are_relative() -> None:
    ours = costs({"SB3": measured(1.0), "auto": measured(1.0, add=5.0, sample=300.0)}, 100, 100, 32)[1]
    assert (ours.add, ours.add_ratio, ours.sample, ours.sample_ratio) == (5.0, 0.5, 300.0, 3.0)


def test_the_least_product_of_memory_and_time() -> None:
    assert advised(auto=measured(20.0), zstd3=measured(10.0, sample=300.0), none=measured(150.0, add=5.0)) == "auto"
    assert advised(auto=measured(20.0, add=30.0), none=measured(150.0)) == "auto", "microseconds for gigabytes"
    assert advised(auto=measured(20.0), zstd3=measured(10.0, sample=150.0)) == "zstd3"
    assert advised(auto=measured(20.0), none=measured(499.0, add=0.1, sample=1.0)) == "none"


def test_half_of_the_memory_is_the_limit() -> None:
    assert advised(auto=measured(400.0), none=measured(510.0, add=0.1, sample=1.0)) == "auto"


def test_sb3s_own_where_little_is_gained_or_anything_is_wrong() -> None:
    assert advised(auto=measured(600.0), none=measured(510.0)) == "SB3"
    assert advised(auto=measured(10.0, wrong="1 observations of 256 wrong")) == "SB3"
    assert advised(auto={"error": "ended with -9: "}) == "SB3"


def test_nothing_to_compare_with_is_an_error() -> None:
    with pytest.raises(ValueError, match="SB3's own buffer could not be measured, its process ended with -9"):
        costs({"SB3": {"error": "ended with -9: "}, "auto": measured(1.0)}, 100, 100, 32)

"""Memory is extrapolated, and the recommended buffer has the least memory times time."""

from __future__ import annotations

from typing import Any

import pytest

from sb3_compressed.benchmarking.recommendation import costs, recommend


def measured(rss: float, growth: float | None = None, add: float = 10.0, sample: float = 100.0, **more: Any) -> Any:
    growth = rss if growth is None else growth
    return {"rss": rss, "growth": growth, "counted": 0.0, "add": add, "sample(32)": sample, "wrong": "", **more}


def recommended(**buffers: Any) -> str:
    results = {"SB3": measured(1000.0), **buffers}
    return recommend(costs(results, 100, 10_000, "sample(32)"), "sample(32)")[0]


def test_memory_that_does_not_grow_counts_once() -> None:
    results = {"SB3": measured(1000.0), "auto": measured(50.0, growth=30.0)}
    base, ours = costs(results, 100, 10_000, "sample(32)")
    assert base.memory == 1000 * 10_000
    assert ours.memory == 50 * 100 + 30 * 9_900
    assert ours.ratio == ours.memory / base.memory
    assert ours.transition == ours.memory / 10_000


def test_memory_is_at_least_the_size_of_the_arrays() -> None:
    results = {"SB3": measured(-3.0, counted=40.0), "auto": measured(0.0, counted=30.0)}
    base, ours = costs(results, 100, 10_000, "sample(32)")
    assert (base.memory, ours.memory) == (40 * 10_000, 30 * 10_000)


def test_times_are_ratios_to_sb3() -> None:
    ours = costs({"SB3": measured(1.0), "auto": measured(1.0, add=5.0, sample=300.0)}, 100, 100, "sample(32)")[1]
    assert (ours.add, ours.add_ratio, ours.sample, ours.sample_ratio) == (5.0, 0.5, 300.0, 3.0)


def test_rollouts_are_not_extrapolated_and_read_per_transition() -> None:
    rollout = {"rss": 10.0, "counted": 0.0, "add": 4.0, "get": 1000.0, "wrong": ""}
    [base] = costs({"SB3": rollout}, 500, 500, "get")
    assert (base.memory, base.transition, base.add, base.sample) == (5000, 10, 4, 2)


def test_recommends_least_product_of_memory_and_time() -> None:
    assert recommended(auto=measured(20.0), zstd3=measured(10.0, sample=300.0), none=measured(150.0, add=5.0)) == "auto"
    assert recommended(auto=measured(20.0, add=30.0), none=measured(150.0)) == "auto"
    assert recommended(auto=measured(20.0), zstd3=measured(10.0, sample=150.0)) == "zstd3"
    assert recommended(auto=measured(20.0), none=measured(499.0, add=0.1, sample=1.0)) == "none"


def test_recommended_buffer_takes_at_most_half_of_the_memory() -> None:
    assert recommended(auto=measured(400.0), none=measured(510.0, add=0.1, sample=1.0)) == "auto"


def test_keeps_sb3_if_others_are_large_wrong_or_failed() -> None:
    assert recommended(auto=measured(600.0), none=measured(510.0)) == "SB3"
    assert recommended(auto=measured(10.0, wrong="1 observations of 256 wrong")) == "SB3"
    assert recommended(auto={"error": "the process ended with -9: "}) == "SB3"


def test_failed_measurement_of_sb3_raises() -> None:
    with pytest.raises(ValueError, match="SB3's buffer could not be measured: the process ended with -9"):
        costs({"SB3": {"error": "the process ended with -9: "}, "auto": measured(1.0)}, 100, 100, "sample(32)")

"""The recommended buffer has the least memory among those with which a training takes hardly longer."""

from __future__ import annotations

from typing import Any

import pytest

from sb3_compressed.benchmarking.recommendation import costs, recommend


def measured(memory: float, step: float = 100.0, **more: Any) -> Any:
    return {"memory": memory, "step": step, "add": 10.0, "read": 100.0, "weights": "a", **more}


def recommended(**buffers: Any) -> str:
    return recommend(costs({"SB3": measured(1000.0), **buffers}, 10))[0]


def test_costs_are_relative_to_sb3() -> None:
    results = {"SB3": measured(1000.0), "auto": measured(50.0, 90.0, add=5.0, read=300.0, weights="b")}
    base, ours = costs(results, 10)
    assert (base.ratio, base.time_ratio, base.add_ratio, base.read_ratio, base.equal_weights) == (1, 1, 1, 1, True)
    assert (ours.transition, ours.memory, ours.ratio, ours.time_ratio) == (5, 50, 0.05, 0.9)
    assert (ours.add_ratio, ours.read_ratio, ours.equal_weights) == (0.5, 3.0, False)


def test_recommends_the_smallest_of_those_that_are_fast() -> None:
    assert recommended(auto=measured(20.0), small=measured(10.0, 104.0), none=measured(440.0, 50.0)) == "small"
    assert recommended(auto=measured(20.0), small=measured(10.0, 106.0), none=measured(440.0, 50.0)) == "auto"


def test_recommends_the_faster_of_two_that_need_similar_memory() -> None:
    assert recommended(small=measured(20.0, 95.0), auto=measured(21.0, 90.0)) == "auto"
    assert recommended(auto=measured(21.0, 92.0), small=measured(20.0, 90.0)) == "auto", "the first of equal ones"


def test_a_buffer_that_is_slower_is_recommended_for_its_memory_only() -> None:
    results = {"SB3": measured(1000.0), "auto": measured(200.0, 190.0)}
    name, reason = recommend(costs(results, 10))
    assert name == "auto"
    assert reason.endswith("the training took 1.90x of the time. Keep SB3's buffer if its memory suffices.")


def test_recommends_the_fastest_if_all_are_slower() -> None:
    assert recommended(auto=measured(200.0, 110.0), small=measured(100.0, 120.0)) == "auto"


def test_keeps_sb3_unless_another_is_clearly_smaller_than_half() -> None:
    assert recommended(auto=measured(460.0), none=measured(510.0, 50.0)) == "SB3"
    assert recommended(auto={"error": "the process ended with -9: "}) == "SB3"


def test_failed_training_with_sb3_raises() -> None:
    with pytest.raises(ValueError, match="ended with -9"):
        costs({"SB3": {"error": "the process ended with -9: "}, "auto": measured(1.0)}, 100)

"""Results of ``prioritized_learning.py``: its statistics, and runs that are continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report
from prioritized_learning import (
    append_run,
    finished_runs,
    interquartile_mean,
    interval,
    normalized,
    results_of,
    scores_of,
    table,
)


def run(game: str, replay: str, seed: int, score: float) -> dict[str, Any]:
    return {"game": game, "replay": replay, "seed": seed, "steps": 100, "score": score, "curve": [None, *[score] * 19]}


RUNS = [
    run(game, replay, seed, factor * (seed + bonus))
    for game, factor in (("Asterix", 1.0), ("Freeway", 10.0))
    for replay, bonus in (("uniform", 1), ("prioritized", 2))
    for seed in range(8)
]


def test_interquartile_mean_ignores_a_quarter_of_the_scores_on_each_side() -> None:
    assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, -100, 0])) == pytest.approx(2.5)
    assert interquartile_mean(np.array([[3.0, 1], [5, 9]])).tolist() == [2, 7]


def test_interval_contains_the_interquartile_mean_and_shrinks_with_more_seeds() -> None:
    rng = np.random.default_rng(1)
    few, many = rng.normal(5, 1, 8), rng.normal(5, 1, 200)
    widths = []
    for scores in (few, many):
        center, low, high = interval([scores])
        assert low < center < high
        widths.append(high - low)
    assert widths[0] > 2 * widths[1]


def test_interval_of_several_games_resamples_each_game() -> None:
    center, low, high = interval([np.full(4, 1.0), np.full(4, 3.0)])
    assert center == low == high == 2, "each resample contains both games equally often"


def test_normalized_scores_of_each_game_have_a_mean_of_one() -> None:
    by_replay = normalized(scores_of(RUNS))
    for index in range(2):
        assert np.mean([by_replay[replay][index] for replay in by_replay]) == pytest.approx(1)
    np.testing.assert_allclose(by_replay["uniform"][0], by_replay["uniform"][1])


def test_scores_are_those_of_seeds_trained_with_all_kinds_of_replay() -> None:
    runs = [each for each in RUNS if not (each["game"] == "Freeway" and each["replay"] == "uniform" and each["seed"])]
    scores = scores_of(runs)
    assert scores["Freeway"] == {"uniform": [10], "prioritized": [20]}
    assert len(scores["Asterix"]["uniform"]) == 8


def test_the_table_has_a_row_per_game_and_one_for_all() -> None:
    printed = table(results_of(RUNS)).splitlines()
    assert printed[0] == "| game | runs | uniform | prioritized |"
    assert printed[2].startswith("| Asterix | 8 | 4.5 (")
    assert printed[4].startswith("| all, normalized | 16 | 0.9 (")


def test_an_incomplete_line_is_ignored_and_followed_by_complete_ones(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "runs.jsonl"
    assert finished_runs(path) == []
    append_run(path, RUNS[0])
    with path.open("a") as file:
        file.write(json.dumps(RUNS[1])[:40])
    append_run(path, RUNS[2])
    assert finished_runs(path) == [RUNS[0], RUNS[2]]


def test_the_report_contains_the_table_and_the_learning_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {
        "benchmark": "prioritized_learning",
        "date": "2026-01-01",
        "version": "0.3.0 at 1a2b3c4",
        "machine": {"cpu": "some", "cores": 2, "python": "3.11", "versions": [{"torch": "2"}]},
        "arguments": {"steps": 100},
    }
    (tmp_path / "results").mkdir()
    results = json.dumps({**metadata, "results": results_of(RUNS)})
    (tmp_path / "results" / "prioritized_learning.json").write_text(results)
    monkeypatch.setattr(
        "sys.argv", ["report.py", "--results", str(tmp_path / "results"), "--pages", str(tmp_path / "pages")]
    )
    report.main()
    page = (tmp_path / "pages" / "prioritized_learning.md").read_text()
    assert "interquartile means" in page
    assert "| all, normalized | 16 |" in page
    assert "Freeway" in (tmp_path / "pages" / "prioritized_learning.svg").read_text()

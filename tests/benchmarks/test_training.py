"""Trainings are measured with every algorithm, and summarized in pairs."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ratios
import sources
import training
import training_loops
from frame_recording import Playback
from recorded_env import make_recorded
from settings import SETTINGS

SCENE = "recorded:Noise84-v0"


@pytest.fixture(scope="module", autouse=True)
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Record into a temporary folder."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sources, "CACHE", tmp_path_factory.mktemp("recordings"))
        yield


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=[] if name == "DQN" else pytest.mark.slow) for name in SETTINGS]
)
def test_trainings_are_measured_and_have_the_weights_of_the_baseline(algorithm: str) -> None:
    names = [
        "none" if algorithm == "PrioritizedDQN" else "SB3",
        "auto",
        *(["SB3:optimized"] if algorithm == "DQN" else []),
    ]
    runs = [training_loops.measure(name, algorithm, SCENE, 2, None, 32, 32, None, seed=1) for name in names]
    assert len({run["weights"] for run in runs}) == 1
    for run in runs:
        assert run["transitions"] == 32
        assert 0 < run["in_buffer"] < run["seconds"]
        assert min(run[key] for key in ("cpu", "rss", "add", "get" if algorithm == "PPO" else "sample")) > 0
        assert isinstance(run["growth"], float)


def test_recorded_environments_repeat_the_recording(tmp_path: Path) -> None:
    recording = sources.record("Noise84-v0:stack2", 2, 250)
    env, played = make_recorded(recording, 240, is_continuous=False), Playback(recording)
    obs: Any = env.reset()
    frames: Any = played.reset()
    first = obs.copy()
    for step in range(240):
        np.testing.assert_array_equal(obs[:, -1:], frames.transpose(0, 3, 1, 2))
        obs, _, dones, infos = env.step(np.zeros(2, np.int64))
        frames, _, expected, _ = played.step(np.zeros(2, np.int64))
        assert dones.tolist() == (expected | (step == 239)).tolist()
        assert ["terminal_observation" in info for info in infos] == dones.tolist()
    played.close()
    np.testing.assert_array_equal(obs, first)


@pytest.mark.parametrize(
    ("algorithm", "scene", "reason"),
    [
        ("DQN", SCENE, ""),
        ("SAC", SCENE, ""),
        ("SAC", "Noise84-v0", "SAC needs continuous actions"),
        ("DQN", "Pendulum-v1", "DQN needs discrete actions"),
        ("DQN", "Unknown-v9", "unknown environment"),
    ],
)
def test_scenes_that_an_algorithm_cannot_be_trained_on_are_known(algorithm: str, scene: str, reason: str) -> None:
    found = training_loops.missing(algorithm, scene)
    assert reason in found
    assert bool(found) == bool(reason)


def test_jobs_of_a_round_share_a_seed_and_begin_with_the_baseline() -> None:
    cases = [training.Case("DQN", SCENE, 8, None), training.Case("PrioritizedDQN", SCENE, 1, 1)]
    cases.append(training.Case("PPO", SCENE, 8, 1))
    buffers = ["auto", "SB3:optimized", "extra:zstd-3"]
    even, odd = training.jobs_of_rounds(cases, buffers, 2, None, None, None, n_segments=4)
    names = {
        label: [job.name for job in even if job.label == label] for label in dict.fromkeys(job.label for job in even)
    }
    assert names == {
        f"DQN, {SCENE}, 8 environments, torch on all threads": ["SB3", *buffers],
        f"PrioritizedDQN, {SCENE}, 1 environment, torch on 1 thread": ["none", "auto"],
        f"PPO, {SCENE}, 8 environments, torch on 1 thread": ["SB3", "auto", "extra:zstd-3"],
    }
    assert [job.name for job in odd] == [job.name for job in even]
    assert {(job.arguments["seed"], job.arguments["n_segments"]) for job in odd} == {(1, 4)}


def run_of(seconds: float, **more: Any) -> dict[str, Any]:
    return {"seconds": seconds, "cpu": seconds, "growth": 10.0, "rss": 10, "weights": "a", **more}


def test_ratios_are_of_all_segments_that_both_have_run() -> None:
    label = f"DQN, {SCENE}, 1 environment, torch on 1 thread"
    base = run_of(100.0, segments=[40.0, 60.0])
    rounds: list[Any] = [
        {label: {"SB3": base, "auto": run_of(90.0, segments=[40.0, 50.0], growth=1.0), "SB3:optimized": base}},
        {label: {"SB3": base, "auto": run_of(80.0, segments=[20.0, 60.0]), "SB3:optimized": run_of(1.0, weights="b")}},
        {label: {"SB3": base, "auto": {"error": "ended with -9"}, "SB3:optimized": {"error": "ended with -9"}}},
    ]
    results = training.by_buffer(rounds)
    printed = training.table(results)
    assert f"| {label} | sb3-compressed `auto` | 0.850x |" in printed
    assert "| 4 | 0.85x | 55.0% | 100.0% | yes |" in printed
    assert printed.endswith("| no |")
    rounds[1][label]["auto"]["weights"] = "b"
    assert training.table(results).count("| **no** |") == 1


def test_intervals_of_a_ratio_contain_it() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(1, 2, 200)
    low, high = ratios.ratio_interval((1.1 * base + rng.normal(0, 0.02, 200)).tolist(), base.tolist())
    assert 1.09 < low < 1.1 < high < 1.11


def test_calls_are_reported_with_their_share_of_the_training() -> None:
    base = run_of(100.0, **{"add": 10.0, "sample": 100.0, "in_buffer": 5.0})
    ours = run_of(50.0, **{"add": 20.0, "sample": 50.0, "in_buffer": 10.0})
    printed = training.calls_table(training.by_buffer([{"PPO": {"SB3": base, "auto": ours}}]))
    assert printed.endswith("| PPO | sb3-compressed `auto` | 2.00x | 0.50x | 20.0% | 5.0% |")


def test_docstring_examples_of_ratios_are_correct() -> None:
    assert doctest.testmod(ratios).failed == 0

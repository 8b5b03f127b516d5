"""Trainings are measured with every algorithm, and summarized in pairs."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType
from typing import Any

import alternating_buffers
import numpy as np
import pytest
import ratios
import sources
import training
import training_loops
from frame_recording import Playback
from recorded_env import make_recorded

from adapters import buffer_names

SCENE, TINY_SCENE = "recorded:Noise84-v0", "tiny:Noise84-v0"


@pytest.fixture(scope="module", autouse=True)
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Record into a temporary folder."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sources, "CACHE", tmp_path_factory.mktemp("recordings"))
        yield


@pytest.mark.parametrize(
    "algorithm", ["DQN", *(pytest.param(name, marks=pytest.mark.slow) for name in ("PrioritizedDQN", "SAC", "PPO"))]
)
def test_trainings_are_measured_and_have_the_weights_of_the_baseline(algorithm: str) -> None:
    names = [
        "none" if algorithm == "PrioritizedDQN" else "SB3",
        "auto",
        *(["SB3:optimized"] if algorithm == "DQN" else []),
    ]
    runs = [training_loops.measure(name, algorithm, TINY_SCENE, 2, None, 32, 32, None, seed=1) for name in names]
    assert len({run["weights"] for run in runs}) == 1
    for run in runs:
        assert run["rss"] > 0
        assert isinstance(run["growth"], float)


@pytest.mark.parametrize("module", [alternating_buffers, buffer_names, ratios], ids=lambda module: module.__name__)
def test_docstring_examples_are_correct(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


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


def test_memory_is_the_median_of_rounds_that_both_have_run() -> None:
    label = f"DQN, {SCENE}, 1 environment, torch on 1 thread"
    base = {"growth": 10.0, "rss": 10, "weights": "a"}
    rounds: list[Any] = [
        {label: {"SB3": base, "auto": base | {"growth": 1.0}, "SB3:optimized": base}},
        {label: {"SB3": base, "auto": base, "SB3:optimized": base | {"weights": "b"}}},
        {label: {"SB3": base, "auto": {"error": "ended with -9"}, "SB3:optimized": {"error": "ended with -9"}}},
    ]
    results = training.by_buffer(rounds)
    printed = training.table(results)
    assert f"| {label} | sb3-compressed `auto` | 55.0% | 100.0% | yes |" in printed
    assert printed.endswith("| no |")
    rounds[1][label]["auto"]["weights"] = "b"
    assert training.table(results).count("| **no** |") == 1

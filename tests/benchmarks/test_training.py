"""Trainings are measured with every algorithm, and summarized in pairs."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import ratios
import report
import sources
import training
import training_loops
import training_turns
from frame_recording import Playback
from recorded_env import make_recorded

from adapters import buffer_names

TINY_SCENE = "tiny:Noise84-v0"


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
    runs = [training_loops.measure(name, algorithm, TINY_SCENE, 2, 32, 32) for name in names]
    assert len({run["weights"] for run in runs}) == 1
    assert all(isinstance(run["growth"], float) for run in runs)


@pytest.mark.parametrize("module", [training_turns, buffer_names, ratios, report], ids=lambda module: module.__name__)
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


def test_tables_compare_memory_and_weights_with_the_baseline() -> None:
    base = {"growth": 10.0, "weights": "a"}
    results: Any = {
        "DQN, MsPacman": {"SB3": base, "auto": base | {"growth": 1.0}, "SB3:optimized": base | {"weights": "b"}},
        "PrioritizedDQN, MsPacman": {"none": base, "auto": base | {"weights": "b"}},
        "DQN, Pong": {"SB3": base, "auto": {"error": "ended with -9"}},
    }
    rows = "\n".join(training.sections(results)).splitlines()
    found = {row.split(" | ")[0].removeprefix("| ") + row.split(" | ")[1]: row for row in rows if " | " in row}
    assert "| 10.0%, 1 B instead of 10 | yes |" in found["DQN, MsPacmansb3-compressed `auto`"]
    assert found["DQN, MsPacmanSB3 `optimize_memory_usage`"].endswith("| no |")
    assert found["PrioritizedDQN, MsPacmansb3-compressed `auto`"].endswith("| **no** |")
    assert "failed" in found["DQN, Pongsb3-compressed `auto`"]

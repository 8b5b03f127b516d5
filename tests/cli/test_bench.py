"""``sb3-compressed bench`` measures as the scripts in ``benchmarks/`` do, on what a user has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import report
from commands import run
from conftest import ENVIRONMENTS
from support import record

REPLAY = {"rss", "add", "sample(32)", "sample(256)", "sample(1024)", "wrong"}


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of observations of a game, of two environments: ``(120, 2, 84, 84, 4)``."""
    env = ENVIRONMENTS["atari-channel-last"]()
    path = tmp_path_factory.mktemp("frames") / "frames.npz"
    np.savez_compressed(path, observations=np.stack([step.obs for step in record(env, 120)]), other=np.zeros(3))
    return path


def results(*arguments: Any) -> Any:
    done = run("bench", *arguments, "--rounds", 1, "--codec", "none", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_environment(tmp_path: Path) -> None:
    plot, out = tmp_path / "plot.png", tmp_path / "results" / "mine.json"
    done = run("bench", "CartPole-v1", "--size", 400, "--codec", "none", "--rounds", 1, "--plot", plot, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "CartPole-v1: replay buffers, n_envs 4, rounds 1, size 400" in done.stdout
    assert "\n  none " in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert matplotlib.image.imread(plot).ndim == 3
    written = json.loads(out.read_text())
    assert written["benchmark"] == "replay"
    assert written["machine"]["versions"][0]["torch"]
    of_each = written["results"]["CartPole-v1"]
    assert {name: (set(numbers), numbers["wrong"]) for name, numbers in of_each.items()} == {
        "SB3": (REPLAY, ""),
        "none": (REPLAY, ""),
    }
    assert "| CartPole-v1 | sb3-compressed `none` |" in report.page("mine", written), "the benchmarks' report reads it"


def test_recorded_frames(frames: Path) -> None:
    found = results("--frames", frames, "--n-envs", 2)
    assert found["arguments"] == {"n_envs": 2, "rounds": 1, "size": 192}  # all but a fifth, which add is timed with
    of_each = found["results"]["frames.npz"]
    assert 2 * 4 * 84 * 84 < of_each["SB3"]["rss"] < 3 * 4 * 84 * 84  # what a process grows by besides is seen here
    assert of_each["none"]["rss"] < of_each["SB3"]["rss"] / 2
    assert of_each["none"]["wrong"] == ""


@pytest.mark.slow
def test_rollouts_of_recorded_frames(frames: Path) -> None:
    found = results("--frames", frames, "--n-envs", 2, "--rollout", "--n-steps", 16)
    assert found["arguments"] == {"n_envs": 2, "rounds": 1, "n_steps": 16, "rollouts": 7}
    for measured in found["results"]["frames.npz"].values():
        assert measured.keys() == {"rss", "add", "get", "wrong"}
        assert measured["wrong"] == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["CartPol-v1"], "did you mean CartPole-v1 or "),
        (["--frames", "nowhere.npy"], "No such file or directory: 'nowhere.npy'"),
        (
            ["--frames", "{frames}", "--n-envs", 3],
            "an array (steps, 3, *obs_shape), it holds one of shape (120, 2,",
        ),
        (["--frames", "{frames}", "--n-envs", 2, "--rollout"], "120 steps, too few for two rollouts of 128"),
    ],
)
def test_errors_say_what_to_do(arguments: list[Any], said: str, frames: Path) -> None:
    done = run("bench", *[str(argument).format(frames=frames) for argument in arguments])
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_arrays_with_no_name_to_choose_by(tmp_path: Path) -> None:
    path = tmp_path / "frames.npz"
    np.savez(path, a=np.zeros(3), b=np.zeros(3))
    done = run("bench", "--frames", path)
    assert done.returncode == 1
    assert "holds the arrays a, b; name one of them 'observations'" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["CartPole-v1", "--frames", "frames.npy"]])
def test_one_source_it_must_be(arguments: list[str]) -> None:
    done = run("bench", *arguments)
    assert done.returncode == 2
    assert "name an environment, or a file by --frames" in done.stderr


def test_where_results_cannot_be_saved_is_said_before_the_work(tmp_path: Path) -> None:
    np.save(tmp_path / "frames.npy", np.zeros((2000, 3), np.float32))
    done = run("bench", "--frames", tmp_path / "frames.npy", "--codec", "none", "--rounds", 1, "--out", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {tmp_path} is a folder, and the results are one file\n"

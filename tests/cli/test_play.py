"""``sb3-compressed play`` writes stored episodes as videos and contact sheets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import error_of, run
from conftest import Stream
from PIL import Image
from programs import outcome
from stable_baselines3.common.save_util import save_to_pkl
from support import filled

from sb3_compressed import save_checkpoint
from sb3_compressed.datasets import trajectories


def saved(stream: Stream, folder: Path, n_steps: int = 200) -> Any:
    buffer = filled(stream, n_steps)
    save_checkpoint(buffer, folder)
    return buffer


def test_nan_return_is_null_in_json_and_never_the_best(stream: Stream, tmp_path: Path) -> None:
    buffer = saved(stream, tmp_path / "buffer")
    first, second = [number for number, each in enumerate(trajectories(buffer)) if each.has_begin and each.has_end][:2]
    for number, each in enumerate(trajectories(buffer)):
        buffer.rewards[each.rows, each.env] = 1.0 if number == second else np.nan
    save_checkpoint(buffer, tmp_path / "buffer")
    result = json.loads(run("inspect", tmp_path / "buffer", "--json").stdout, parse_constant=pytest.fail)
    assert result["episodes"]["best"] == second
    assert result["episodes"]["returns"]["median"] is None
    sheet = tmp_path / "sheet.png"
    done = run("play", tmp_path / "buffer", "--episode", first, "--sheet", sheet, "--pictures", 10**12, "--json")
    assert json.loads(done.stdout, parse_constant=pytest.fail)["return"] is None


def test_play_writes_the_best_episode_as_gif_and_contact_sheet(stream: Stream, tmp_path: Path) -> None:
    buffer = saved(stream, tmp_path / "buffer")
    gif, sheet = tmp_path / "episode.gif", tmp_path / "sheet.png"
    done = run("play", tmp_path / "buffer", "--out", gif, "--sheet", sheet, "--pictures", 6, "--scale", 1, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    episodes = [*trajectories(buffer)]
    episode = episodes[result["episode"]]
    whole = [each for each in episodes if each.has_begin and each.has_end]
    assert result["return"] == episode.rewards.sum() == max(each.rewards.sum() for each in whole)
    assert result["steps"] == len(episode)
    assert result["frames"] == len(episode) + 1
    assert (result["video"], result["sheet"]) == (str(gif), str(sheet))
    assert (result["steps_shown"][0], result["steps_shown"][-1], len(result["steps_shown"])) == (0, len(episode), 6)
    with Image.open(gif) as image:
        assert (image.n_frames, image.size) == (len(episode) + 1, (84, 84))  # type: ignore[attr-defined]
        image.seek(5)
        np.testing.assert_array_equal(np.asarray(image.convert("L")), episode.observations[5, -1])
    with Image.open(sheet) as image:
        assert image.format == "PNG"


def test_episode_can_be_chosen(stream: Stream, tmp_path: Path) -> None:
    buffer = saved(stream, tmp_path / "buffer")
    last = len([*trajectories(buffer)]) - 1
    done = run("play", tmp_path / "buffer", "--episode", last, "--sheet", tmp_path / "sheet.png", "--json")
    assert json.loads(done.stdout)["episode"] == last
    assert "video" not in json.loads(done.stdout)
    error = error_of("play", tmp_path / "buffer", "--episode", last + 1)
    assert error.endswith(f"contains episodes 0 to {last}, got {last + 1}")
    error_of("play", tmp_path / "buffer", "--out", tmp_path / "late.mp4", "--sheet", tmp_path / "sheet.jpg")
    assert not (tmp_path / "late.mp4").exists(), "the sheet is written before the video, which takes longer"


def test_pickle_requires_unpickle_and_becomes_an_mp4(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = saved(stream, tmp_path / "buffer", 30)
    save_to_pkl(tmp_path / "buffer.pkl", buffer)
    monkeypatch.chdir(tmp_path)
    assert "pass --unpickle if you trust it" in error_of("play", "buffer.pkl")
    done = run("play", "buffer.pkl", "--unpickle", "--episode", 0)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    episode = next(trajectories(buffer))
    assert f"episode 0 of {len([*trajectories(buffer)])}: {len(episode)} steps, return " in done.stdout
    assert f"episode-0.mp4: {len(episode) + 1} frames\n" in done.stdout
    assert b"ftyp" in (tmp_path / "episode-0.mp4").read_bytes()[:16]


@pytest.mark.parametrize(
    ("stream", "n_steps", "message"),
    [("pendulum", 20, "are not images; to watch"), ("atari", 0, "contains no transitions yet")],
    indirect=["stream"],
)
def test_vectors_and_empty_buffers_are_errors(stream: Stream, n_steps: int, message: str, tmp_path: Path) -> None:
    saved(stream, tmp_path / "buffer", n_steps)
    assert message in error_of("play", tmp_path / "buffer")


LIMITED = """
import resource, sys
import psutil
from sb3_compressed import load_checkpoint
from sb3_compressed.cli import main
load_checkpoint(sys.argv[1])  # imports most of what the command needs
size = psutil.Process().memory_info().vms + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
main(["play", sys.argv[1], "--sheet", sys.argv[2], "--scale", "1000"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the memory of a process")
def test_pictures_larger_than_memory_are_an_error(stream: Stream, tmp_path: Path) -> None:
    saved(stream, tmp_path / "buffer", n_steps=60)
    done = outcome(LIMITED, tmp_path / "buffer", tmp_path / "sheet.png")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: not enough memory")
    assert not (tmp_path / "sheet.png").exists()

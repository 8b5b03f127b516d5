"""``sb3-compressed play``: what its files hold is what was stored, and a missing library is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run, without
from conftest import Stream
from PIL import Image
from stable_baselines3.common.save_util import save_to_pkl

from sb3_compressed import CompressedReplayBuffer, save_checkpoint
from sb3_compressed.datasets import trajectories


def saved(stream: Stream, folder: Path, n_steps: int = 200) -> Any:
    space, action_space, n_envs, transitions = stream
    buffer = CompressedReplayBuffer(100 * n_envs, space, action_space, n_envs=n_envs, device="cpu")
    for transition in transitions[:n_steps]:
        transition.add_to(buffer)
    save_checkpoint(buffer, folder)
    return buffer


def test_returns_that_are_no_number_are_null_in_json_and_never_the_best(stream: Stream, tmp_path: Path) -> None:
    buffer = saved(stream, tmp_path / "buffer")
    first, second = [number for number, each in enumerate(trajectories(buffer)) if each.has_begin and each.has_end][:2]
    for number, each in enumerate(trajectories(buffer)):
        buffer.rewards[each.rows, each.env] = 1.0 if number == second else np.nan
    save_checkpoint(buffer, tmp_path / "buffer")
    told = json.loads(run("inspect", tmp_path / "buffer", "--json").stdout, parse_constant=pytest.fail)
    assert told["episodes"]["best"] == second
    assert told["episodes"]["returns"]["median"] is None
    sheet = tmp_path / "sheet.png"
    done = run("play", tmp_path / "buffer", "--episode", first, "--sheet", sheet, "--pictures", 10**12, "--json")
    assert json.loads(done.stdout, parse_constant=pytest.fail)["return"] is None


def test_an_episode_as_gif_and_contact_sheet(stream: Stream, tmp_path: Path) -> None:
    buffer = saved(stream, tmp_path / "buffer")
    gif, sheet = tmp_path / "episode.gif", tmp_path / "sheet.png"
    done = run("play", tmp_path / "buffer", "--out", gif, "--sheet", sheet, "--pictures", 6, "--scale", 1, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    episodes = [*trajectories(buffer)]
    episode = episodes[told["episode"]]
    whole = [each for each in episodes if each.has_begin and each.has_end]
    assert told["return"] == episode.rewards.sum() == max(each.rewards.sum() for each in whole)
    assert told["steps"] == len(episode)
    assert told["frames"] == len(episode) + 1
    assert (told["video"], told["sheet"]) == (str(gif), str(sheet))
    assert (told["steps_shown"][0], told["steps_shown"][-1], len(told["steps_shown"])) == (0, len(episode), 6)
    with Image.open(gif) as image:
        assert (image.n_frames, image.size) == (len(episode) + 1, (84, 84))  # type: ignore[attr-defined]
        image.seek(5)
        np.testing.assert_array_equal(np.asarray(image.convert("L")), episode.observations[5, -1])
    with Image.open(sheet) as image:
        assert image.format == "PNG"


def test_an_episode_that_is_chosen(stream: Stream, tmp_path: Path) -> None:
    buffer = saved(stream, tmp_path / "buffer")
    last = len([*trajectories(buffer)]) - 1
    done = run("play", tmp_path / "buffer", "--episode", last, "--sheet", tmp_path / "sheet.png", "--json")
    assert json.loads(done.stdout)["episode"] == last
    assert "video" not in json.loads(done.stdout), "only what was asked for"
    done = run("play", tmp_path / "buffer", "--episode", last + 1)
    assert done.returncode == 1
    assert f"holds the episodes 0 to {last}, got {last + 1}" in done.stderr
    done = run("play", tmp_path / "buffer", "--out", tmp_path / "late.mp4", "--sheet", tmp_path / "sheet.jpg")
    assert (done.returncode, done.stderr) == (1, "Error: a contact sheet ends with .png, got 'sheet.jpg'\n")
    assert not (tmp_path / "late.mp4").exists(), "long work comes after what may be wrong"


def test_a_pickle_as_mp4(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = saved(stream, tmp_path / "buffer", 30)
    save_to_pkl(tmp_path / "buffer.pkl", buffer)
    monkeypatch.chdir(tmp_path)
    done = run("play", "buffer.pkl")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pass --unpickle if you trust it" in done.stderr
    done = run("play", "buffer.pkl", "--unpickle", "--episode", 0)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    episode = next(trajectories(buffer))
    assert f"episode 0 of {len([*trajectories(buffer)])}: {len(episode)} steps, return " in done.stdout
    assert f"episode-0.mp4: {len(episode) + 1} frames\n" in done.stdout
    assert b"ftyp" in (tmp_path / "episode-0.mp4").read_bytes()[:16]


@pytest.mark.parametrize("stream", ["pendulum"], indirect=True)
def test_vectors_say_what_to_do_instead(stream: Stream, tmp_path: Path) -> None:
    saved(stream, tmp_path / "buffer", 20)
    done = run("play", tmp_path / "buffer")
    assert (done.returncode, done.stdout) == (1, "")
    assert "are no pictures; to see such an episode, take its actions" in done.stderr


def test_an_empty_buffer(stream: Stream, tmp_path: Path) -> None:
    saved(stream, tmp_path / "buffer", 0)
    done = run("play", tmp_path / "buffer")
    assert (done.returncode, done.stderr) == (1, f"Error: {tmp_path / 'buffer'} holds no transitions yet\n")


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("imageio_ffmpeg", ["play", "--out", "episode.gif"], "video"),
        ("PIL", ["play", "--sheet", "sheet.png"], "video"),
        ("minari", ["export", "--minari", "test/missing-v0"], "minari"),
    ],
)
def test_a_missing_library_names_the_command_that_installs_it(
    missing: str, arguments: list[str], extra: str, stream: Stream, tmp_path: Path
) -> None:
    saved(stream, tmp_path / "buffer", 30)
    done = run(*arguments, tmp_path / "buffer", **without(missing, tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"pip install 'sb3-compressed[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1

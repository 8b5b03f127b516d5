"""``sb3-compressed advise`` plays a real environment and says which buffer to take."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from commands import ENVIRONMENT, run, without
from programs import TESTS, python_path
from programs import run as program

from sb3_compressed import CompressedReplayBuffer

PONG = "PongNoFrameskip-v4"


@pytest.fixture(scope="module")
def pong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what it says to machines of a game, with a plot in the file ``plot``."""
    plot = tmp_path_factory.mktemp("advise") / "out.png"
    codecs = ["--codec", "auto", "--codec", "zstd-5"]
    done = run("advise", PONG, "--steps", 400, "--n-envs", 2, "--buffer-size", 1000, *codecs, "--plot", plot, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        f"{PONG} is an Atari game: made with make_atari_env, and stacked (--wrapper none for neither)\n"
    )
    return {**json.loads(done.stdout), "plot": plot}


def test_it_measures_a_game_as_it_is_trained_on(pong: dict[str, Any]) -> None:
    assert (pong["atari"], pong["frame_stack"], pong["transitions"]) == (True, 4, 400)
    assert pong["observation_space"] == "Box(0, 255, (4, 84, 84), uint8)"
    sb3, *ours = pong["buffers"]
    assert [buffer["contender"] for buffer in pong["buffers"]] == ["SB3", "auto", "zstd-5"]
    raw = 2 * 4 * 84 * 84
    assert 0.8 < sb3["transition"] / raw < 1.2, "rough, of so few"
    assert (sb3["ratio"], sb3["add_ratio"], sb3["sample_ratio"]) == (1, 1, 1)
    for buffer in ours:
        assert 0 < buffer["ratio"] < 0.25, "most of a stack is shared with the one before it"
        assert buffer["memory"] == pytest.approx(1000 * buffer["transition"])
        assert buffer["add"] > 0 < buffer["sample"]
        assert buffer["wrong"] == ""
    assert pong["failed"] == {}


def test_its_lines_run(pong: dict[str, Any]) -> None:
    assert pong["recommended"] in ("auto", "zstd-5")
    namespace: dict[str, Any] = {}
    exec(pong["lines"], namespace)
    model = namespace["model"]
    model.learn(8)
    assert type(model.replay_buffer) is CompressedReplayBuffer
    assert model.replay_buffer.buffer_size * model.n_envs == 1000
    assert model.replay_buffer.observations[0].shape == (2, 4, 84, 84)
    namespace["env"].close()


def test_its_plot_is_a_picture(pong: dict[str, Any]) -> None:
    height, width, _ = matplotlib.image.imread(pong["plot"]).shape
    assert height > 100 < width


def test_an_environment_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Mine-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=20)\n"
    )
    options = "--steps", 200, "--codec", "none", "--json"
    done = run("advise", "my_envs:Mine-v0", *options, PYTHONPATH=python_path(tmp_path))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["algorithm"], result["batch_size"], result["atari"]) == ("SAC", 256, False)
    base, ours = result["buffers"]
    # Two observations of three float32, an action, reward, done and timeout: a process grows by less, or by nothing.
    assert base["transition"] >= 2 * 12 + 4 * 4
    assert ours["ratio"] > 0.3


@pytest.mark.slow
def test_dict_observations(tmp_path: Path) -> None:
    """Its lines make a model of a game with them, too."""
    module = "import gymnasium as gym\nfrom support import console_game\ngym.register('Console-v0', console_game)\n"
    (tmp_path / "consoles.py").write_text(module)
    path = python_path(tmp_path, TESTS)
    done = run("advise", "consoles:Console-v0", "--steps", 400, "--codec", "auto", "--json", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["observation_space"].startswith("Dict(")
    base, ours = result["buffers"]
    assert base["transition"] > 2 * (84 * 84 + 128 + 8)
    assert ours["wrong"] == ""
    assert result["recommended"] == "auto"
    assert '"MultiInputPolicy"' in result["lines"]
    lines = result["lines"] + "\nmodel.learn(8)\nprint(type(model.replay_buffer).__name__)\n"
    assert program(lines, PYTHONPATH=path).splitlines()[-1] == "CompressedDictReplayBuffer"


@pytest.fixture(scope="module")
def cart() -> subprocess.CompletedProcess[str]:
    """Return what it says to people of observations that are few numbers."""
    return run("advise", "CartPole-v1", "--steps", 2000, "--codec", "none", "--codec", "zstd3")


def test_where_compression_does_not_pay_it_says_so(cart: subprocess.CompletedProcess[str]) -> None:
    assert cart.returncode == 0
    assert "Keep SB3's own buffer. Compression does not pay here" in cart.stdout
    assert "CompressedReplayBuffer" not in cart.stdout
    assert "CartPole-v1: observations (4,) of float32" in cart.stdout
    for name in ("SB3", "none", "zstd3"):
        assert f"\n  {name} " in cart.stdout
    assert "is an estimate for 1,000,000" in cart.stdout
    assert "memory is rough" in cart.stderr


def test_no_terminal_no_escape_codes(cart: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in cart.stdout + cart.stderr
    assert "measuring" not in cart.stdout + cart.stderr, "no bar that does not move"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["CartPol-v1"], "there is no environment 'CartPol-v1'; did you mean CartPole-v1 or "),
        (["pongnoframeskip-v4"], f"did you mean {PONG} or "),
        (["nowhere:Env-v0"], "nowhere:Env-v0 cannot be found: No module named 'nowhere'"),
        (["Blackjack-v1"], "Blackjack-v1 shows Tuple("),
        (["CartPole-v1", "--codec", "zst"], "did you mean 'zstd' or 'zstd-dict'?"),
        (["CartPole-v1", "--plot", "out.txt"], "png, ps, "),
        (["CartPole-v1", "--plot", "no/such/folder/out.png"], "there is no folder "),
        (["CartPole-v1", "--steps", "99999999999"], "measure no more than "),
    ],
)
def test_errors_say_what_to_do(arguments: list[str], said: str) -> None:
    done = run("advise", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("missing", "arguments", "said"),
    [
        ("matplotlib", ["CartPole-v1", "--plot", "out.png"], "pip install 'sb3-compressed[plot]'"),
        ("ale_py", [PONG], "For ALE games: pip install 'sb3-compressed[atari]'"),
        ("cv2", [PONG], "needs OpenCV: pip install 'sb3-compressed[atari]'"),
    ],
)
def test_missing_extras_name_the_command(missing: str, arguments: list[str], said: str, tmp_path: Path) -> None:
    done = run("advise", *arguments, **without(missing, tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal to a group of processes")
def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_compressed", "advise", "CartPole-v1", "--steps", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    while not list(tmp_path.glob("sb3-compressed-*/*")):  # until it plays
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    printed, said = process.communicate()
    assert process.returncode == 130
    assert (printed, "Traceback" in said) == ("", False)
    assert not list(tmp_path.glob("sb3-compressed-*")), "nothing is left behind"

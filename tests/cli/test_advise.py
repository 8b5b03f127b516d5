"""``sb3-compressed advise`` compares buffers in a real environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import COMMAND, ENVIRONMENT, error_of, run
from programs import python_path
from stable_baselines3.common.vec_env import VecEnv
from support import atari_env, console_env
from terminal_output import PICTURES, texts_of, words

from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer

PONG = "PongNoFrameskip-v4"
DEFAULTS = ["SB3", "optimize_memory_usage", "auto", "none", "lz4-block", "zstd3"]


def model_of(lines: str, env: VecEnv) -> Any:
    """Execute the printed lines, train briefly, and return the model."""
    namespace: dict[str, Any] = {"env": env}
    exec(lines, namespace)
    model = namespace["model"].learn(8)
    env.close()
    return model


@pytest.fixture(scope="module")
def pong() -> dict[str, Any]:
    """Return the JSON output for a game."""
    done = run("advise", PONG, "--n-envs", 2, "--buffer-size", 2000, "--steps", 300, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        f"{PONG} is an Atari game: using make_atari_env and frame stacking (--wrapper none disables both)\n"
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_all_buffers_are_compared_in_a_game(pong: dict[str, Any]) -> None:
    assert (pong["atari"], pong["frame_stack"], pong["algorithm"]) == (True, 4, "DQN")
    assert pong["observation_space"] == "Box(0, 255, (4, 84, 84), uint8)"
    assert [buffer["buffer"] for buffer in pong["buffers"]] == DEFAULTS
    sb3, optimized, *compressed = pong["buffers"]
    assert sb3["transition"] == pytest.approx(2 * 4 * 84 * 84, rel=0.01)
    assert (sb3["ratio"], optimized["ratio"]) == (1, pytest.approx(0.5, abs=0.01))
    for buffer in compressed:
        assert 0 < buffer["ratio"] < 0.2
        assert buffer["memory"] == pytest.approx(2000 * buffer["transition"])
        assert buffer["add"] > 0 < buffer["read"]


def test_printed_lines_create_a_model_with_the_buffer(pong: dict[str, Any]) -> None:
    assert pong["recommended"] == "auto"
    model = model_of(pong["lines"], atari_env("Pong", 2))
    assert type(model.replay_buffer) is CompressedReplayBuffer
    assert model.replay_buffer.buffer_size * model.n_envs == 2000


def test_a_named_codec_is_in_the_lines() -> None:
    done = run("advise", PONG, "--steps", 100, "--buffer-size", 1000, "--codec", "zstd-5", "--json")
    result = json.loads(done.stdout)
    assert [buffer["buffer"] for buffer in result["buffers"]] == ["SB3", "optimize_memory_usage", "zstd-5"]
    codec = model_of(result["lines"], atari_env("Pong", 1)).replay_buffer.observations.codec
    assert repr(codec) == "Zstd(compresslevel=-5)"


@pytest.mark.slow
def test_the_recorded_picture_shows_what_is_printed() -> None:
    recorded = " ".join(texts_of(PICTURES / "advise.svg"))
    command = re.search(r"sb3-compressed (advise \w+-v4) ", words(recorded))
    assert command is not None
    done = run(*command[1].split(), COLUMNS="80")
    assert done.returncode == 0, done.stderr
    texts = [without_measurements(text) for text in (recorded.partition(command[0])[2], done.stderr + done.stdout)]
    assert texts[0] == texts[1], "make pictures"


def without_measurements(printed: str) -> str:
    """Return what ``advise`` prints whatever it measures; without spaces, since colors divide texts of the picture."""
    return re.sub(r"[\d.]+(%|x| [kMG]?B| [um]s)(?=[ .,])", "#", words(printed)).replace(" ", "")


def test_advise_accepts_a_users_environment_with_dict_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "import gymnasium as gym\nfrom support import console_game\ngym.register('Console-v0', console_game)\n"
    module += "print('a library may print')\n"
    (tmp_path / "consoles.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    done = run("advise", "consoles:Console-v0", "--steps", 100, "--buffer-size", 1000, "--codec", "auto", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["observation_space"].startswith("Dict(")
    base, _ = result["buffers"]
    assert base["transition"] > 2 * (84 * 84 + 128 + 8)
    assert result["recommended"] == "auto"
    assert '"MultiInputPolicy"' in result["lines"]
    assert type(model_of(result["lines"], console_env(1)).replay_buffer) is CompressedDictReplayBuffer


def test_n_steps_compares_rollout_buffers() -> None:
    done = run("advise", PONG, "--n-steps", 64, "--n-envs", 2, "--steps", 100, "--codec", "auto", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["kind"], result["algorithm"], result["buffer_size"]) == ("rollout", "PPO", 128)
    base, ours = result["buffers"]
    assert base["transition"] > 4 * 84 * 84
    assert ours["ratio"] < 0.5
    assert "    n_steps=64,\n    rollout_buffer_class=CompressedRolloutBuffer,\n)" in result["lines"]


@pytest.fixture(scope="module")
def cart() -> subprocess.CompletedProcess[str]:
    """Return the text output for small vector observations on a terminal of 80 columns."""
    return run("advise", "CartPole-v1", "--steps", 200, COLUMNS="80")


def test_sb3_is_recommended_for_small_vectors(cart: subprocess.CompletedProcess[str]) -> None:
    assert cart.returncode == 0, cart.stderr
    printed = words(cart.stdout)
    assert "Keep SB3's buffer: auto takes " in printed
    assert "auto stores vectors as SB3 does." in printed
    assert "CompressedReplayBuffer" not in printed
    assert "DQN on CartPole-v1: observations (4,) float32" in printed
    assert "Memory is that of 1,000,000 transitions" in printed


def test_all_cells_fit_into_80_columns(cart: subprocess.CompletedProcess[str]) -> None:
    for name in DEFAULTS:
        assert f"\n {name} " in cart.stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in cart.stdout


def test_no_progress_bar_or_escape_codes_without_a_terminal(cart: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in cart.stdout + cart.stderr
    assert cart.stderr == "", "not even a warning that 1,000,000 transitions may not fit into memory"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["CartPol-v1"], "unknown environment 'CartPol-v1'; did you mean CartPole-v1 or "),
        (["pongnoframeskip-v4"], f"did you mean {PONG} or "),
        (["Psutil-v0"], "did you mean psutil:Psutil-v0?"),  # a module that is installed
        (["Tabnanny-v0"], "`Tabnanny` doesn't exist"),  # one of Python's own registers no environments
        (["nowhere:Env-v0"], "nowhere:Env-v0 not found: No module named 'nowhere'"),
        (["Blackjack-v1"], "SB3's buffers do not support the observation space of Blackjack-v1, Tuple("),
        (["CartPole-v1", "--codec", "zst"], "did you mean 'zstd' or 'zstd-dict'?"),
        (["CartPole-v1", "--steps", "99999999999"], "fewer --steps"),
    ],
)
def test_errors_name_the_alternatives(arguments: list[str], message: str) -> None:
    assert message in error_of("advise", *arguments)


def test_a_game_that_skips_frames_itself_is_noted() -> None:
    done = run("advise", "Pong-v4", "--steps", 100, "--buffer-size", 200, "--codec", "none")
    assert "Pong-v4 skips frames itself, and make_atari_env skips more" in done.stderr


def test_an_environment_that_fails_is_closed_and_its_error_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = """
    import gymnasium as gym
    from gymnasium.envs.classic_control import CartPoleEnv

    closed = []

    class Simulator(CartPoleEnv):
        def step(self, action):
            raise RuntimeError("no connection to the simulator")

        def close(self):
            closed.append(self)

    gym.register("Simulator-v0", Simulator)
    """
    (tmp_path / "simulators.py").write_text(textwrap.dedent(module))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="no connection to the simulator"):
        run("advise", "simulators:Simulator-v0", "--steps", 100, "--codec", "none")
    assert len({*sys.modules["simulators"].closed}) == 2, "the one whose space was read, and the one that failed"


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal to a group of processes")
def test_ctrl_c_exits_with_130_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Slow(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        print('stepping', flush=True)\n"
        "        return super().step(action)\n"
        "gym.register('Slow-v0', Slow)\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [*COMMAND, "advise", "slow:Slow-v0", "--steps", "10000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, "TMPDIR": str(temporary), "PYTHONPATH": python_path(tmp_path)},
        start_new_session=True,
    )
    assert process.stderr is not None
    while process.stderr.readline() != "stepping\n":
        assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert (stdout, "Traceback" in stderr) == ("", False)
    assert not psutil.wait_procs(children, timeout=30)[1]
    assert not [*temporary.iterdir()]

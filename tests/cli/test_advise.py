"""``sb3-compressed advise`` compares buffers in a real environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import COMMAND, ENVIRONMENT, error_of, run, set_terminal
from programs import python_path
from stable_baselines3.common.vec_env import VecEnv
from support import atari_env, console_env, filled
from terminal_output import PICTURES, texts_of, words

from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_compressed.cli.advise import recommend, report
from sb3_compressed.cli.buffer_costs import read_batches
from sb3_compressed.cli.output import print_result

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
def dict_env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the id of a user's environment with Dict observations, in a module of its own."""
    folder = tmp_path_factory.mktemp("modules")
    module = "import gymnasium as gym\nfrom support import console_game\ngym.register('Console-v0', console_game)\n"
    (folder / "consoles.py").write_text(f"{module}print('a library may print')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "consoles:Console-v0"


@pytest.fixture(scope="module")
def pong() -> dict[str, Any]:
    """Return the JSON output for a game."""
    done = run("advise", PONG, "--n-envs", 2, "--buffer-size", 2000, "--steps", 300, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"{PONG} is an Atari game")
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
    dict_env: str,
) -> None:
    done = run("advise", dict_env, "--steps", 100, "--buffer-size", 1000, "--codec", "auto", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["observation_space"].startswith("Dict(")
    base, _ = result["buffers"]
    assert base["transition"] > 2 * (84 * 84 + 128 + 8)
    assert result["recommended"] == "auto"
    assert '"MultiInputPolicy"' in result["lines"]
    assert type(model_of(result["lines"], console_env(1)).replay_buffer) is CompressedDictReplayBuffer


@pytest.fixture(scope="module", params=[PONG, "CartPole-v1", "Dict"])
def result(request: pytest.FixtureRequest, dict_env: str) -> dict[str, Any]:
    """Return the JSON output for a game, for vectors and for Dict observations."""
    env_id = dict_env if request.param == "Dict" else request.param
    done = run("advise", env_id, "--steps", 100, "--codec", "zstd-5", "--codec", "auto", "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_nothing_is_cut_or_wrapped_within_a_word(
    width: int, result: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_terminal(monkeypatch, width)
    print_result(result, *report(result), as_json=False)
    printed = capsys.readouterr().out
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines()]
    assert max(map(len, lines)) <= width
    for text in (f"observations {result['observations']}", "with random actions. ", "bit for bit.", result["advice"]):
        assert words(text) in words(" ".join(lines))
    for cost in result["buffers"]:
        name = cost["buffer"].replace("optimize_memory_usage", "SB3 optimized")
        assert any(re.fullmatch(rf"{name}( +[\d.]+( [kMG]?B|%| [um]s)){{5}}", line) for line in lines), lines
    assert set(result["lines"].splitlines()) <= {*lines}, "lines to copy are not wrapped"


def test_n_steps_compares_rollout_buffers() -> None:
    done = run("advise", PONG, "--n-steps", 24, "--n-envs", 2, "--steps", 100, "--codec", "auto", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["kind"], result["algorithm"], result["buffer_size"]) == ("rollout", "PPO", 48)
    base, ours = result["buffers"]
    assert base["transition"] > 4 * 84 * 84
    assert ours["ratio"] < 0.5
    assert "    n_steps=24,\n    rollout_buffer_class=CompressedRolloutBuffer,\n)" in result["lines"]


def test_sb3_is_recommended_if_compression_saves_nothing() -> None:
    memory = {"SB3": 100.0, "optimize_memory_usage": 50.0, "auto": 52.0}
    assert recommend(memory, "auto", "CnnPolicy") == (
        "SB3",
        "Keep SB3's buffer: auto takes 52 B instead of 50 B.",
    )


def test_a_batch_that_differs_from_sb3s_is_an_error() -> None:
    buffers = {"SB3": filled("atari", 100), "auto": filled("atari", 100)}
    buffers["auto"].rewards += 1
    with pytest.raises(RuntimeError, match="auto returned another batch than SB3's buffer"):
        read_batches(buffers, 32, {name: [] for name in buffers})


def test_sb3_is_recommended_for_small_vectors() -> None:
    done = run("advise", "CartPole-v1", "--steps", 200)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "not even a warning that 1,000,000 transitions may not fit into memory"
    printed = words(done.stdout)
    assert "Keep SB3's buffer" in printed
    assert "CompressedReplayBuffer" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["CartPol-v1"], "unknown environment 'CartPol-v1': Environment `CartPol` doesn't exist"),
        (["pongnoframeskip-v4"], "Did you mean: `PongNoFrameskip`?"),
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

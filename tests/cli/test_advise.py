"""``sb3-compressed advise`` measures a real environment and recommends a buffer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import matplotlib.image
import psutil
import pytest
from commands import COMMAND, ENVIRONMENT, error_of, run
from terminal_output import PICTURES, texts_of, words

from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer

PONG = "PongNoFrameskip-v4"


def model_of(lines: str) -> Any:
    """Execute the printed code, train briefly, and return the model."""
    namespace: dict[str, Any] = {}
    exec(lines, namespace)
    model = namespace["model"]
    model.learn(8)
    namespace["env"].close()
    return model


@pytest.fixture(scope="module")
def pong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the JSON output for a game, with the file of a plot as ``plot``."""
    plot = tmp_path_factory.mktemp("advise") / "out.png"
    options = ["--n-envs", 2, "--buffer-size", 2000, "--steps", 300, "--seconds", 2]
    done = run("advise", PONG, *options, "--codec", "auto", "--codec", "zstd-5", "--plot", plot, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        f"{PONG} is an Atari game: using make_atari_env and frame stacking (--wrapper none disables both)\n"
    )
    return {**json.loads(done.stdout), "plot": plot}


@pytest.mark.slow
def test_a_game_is_trained_on_with_each_buffer(pong: dict[str, Any]) -> None:
    assert (pong["atari"], pong["frame_stack"], pong["algorithm"], pong["failed"]) == (True, 4, "DQN", {})
    assert pong["observation_space"] == "Box(0, 255, (4, 84, 84), uint8)"
    sb3, *others = pong["buffers"]
    assert [buffer["buffer"] for buffer in pong["buffers"]] == ["SB3", "auto", "zstd-5"]
    assert sb3["transition"] == pytest.approx(2 * 4 * 84 * 84, rel=0.01)
    assert sb3["ratio"] == sb3["time_ratio"] == 1
    for buffer in others:
        assert 0 < buffer["ratio"] < 0.1
        assert buffer["memory"] == pytest.approx(2000 * buffer["transition"])
        assert buffer["step"] > buffer["add"] > 0 < buffer["read"]
        assert buffer["equal_weights"], "it trains for as many steps as SB3's"


@pytest.mark.slow
def test_printed_code_runs(pong: dict[str, Any]) -> None:
    assert pong["recommended"] in ("auto", "zstd-5")
    model = model_of(pong["lines"])
    assert type(model.replay_buffer) is CompressedReplayBuffer
    assert model.replay_buffer.buffer_size * model.n_envs == 2000
    assert model.replay_buffer.observations[0].shape == (2, 4, 84, 84)


@pytest.mark.slow
def test_plot_is_an_image(pong: dict[str, Any]) -> None:
    height, width, _ = matplotlib.image.imread(pong["plot"]).shape
    assert height > 100 < width


@pytest.mark.slow
def test_the_recorded_picture_shows_what_is_printed() -> None:
    recorded = " ".join(texts_of(PICTURES / "advise.svg"))
    command = re.search(r"sb3-compressed (advise \w+-v4) ", words(recorded))
    assert command is not None
    done = run(*command[1].split(), "--steps", 300, "--seconds", 1, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    texts = [without_measurements(text) for text in (recorded.partition(command[0])[2], done.stderr + done.stdout)]
    assert texts[0] == texts[1], "make pictures"


def without_measurements(printed: str) -> str:
    """Return what ``advise`` prints whatever it measures: not what was chosen, recommended or measured."""
    described, _, _ = words(printed).partition(" Use ")
    described = re.sub(r" \S+ chose .*?(?= Memory is)", "", described)
    return re.sub(r"[\d.]+(%|x| [kMG]?B| [um]s)(?= )", "#", described)


@pytest.mark.slow
def test_advise_accepts_a_users_environment_with_dict_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "import gymnasium as gym\nfrom support import console_game\ngym.register('Console-v0', console_game)\n"
    module += "print('a library may print')\n"
    (tmp_path / "consoles.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    done = run("advise", "consoles:Console-v0", "--steps", 200, "--seconds", 1, "--codec", "auto", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["observation_space"].startswith("Dict(")
    base, ours = result["buffers"]
    assert base["transition"] > 2 * (84 * 84 + 128 + 8)
    assert ours["equal_weights"]
    assert result["recommended"] == "auto"
    assert '"MultiInputPolicy"' in result["lines"]
    assert type(model_of(result["lines"]).replay_buffer) is CompressedDictReplayBuffer


@pytest.mark.slow
def test_n_steps_compares_rollout_buffers_with_ppo() -> None:
    done = run("advise", PONG, "--n-steps", 64, "--n-envs", 2, "--seconds", 1, "--codec", "auto", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["kind"], result["algorithm"], result["buffer_size"]) == ("rollout", "PPO", 128)
    base, ours = result["buffers"]
    assert base["transition"] > 4 * 84 * 84
    assert ours["ratio"] < 0.5
    assert ours["equal_weights"]
    assert "    n_steps=64,\n    rollout_buffer_class=CompressedRolloutBuffer,\n" in result["lines"]


@pytest.fixture(scope="module")
def cart() -> subprocess.CompletedProcess[str]:
    """Return the text output for small vector observations."""
    return run("advise", "CartPole-v1", "--steps", 200, "--seconds", 1, "--codec", "none", "--sequential")


def test_sb3_is_recommended_for_small_vectors(cart: subprocess.CompletedProcess[str]) -> None:
    assert cart.returncode == 0
    assert "Keep SB3's buffer. Compression does not pay off here" in cart.stdout
    assert "CompressedReplayBuffer" not in cart.stdout
    assert "DQN on CartPole-v1: observations (4,) float32" in cart.stdout
    for name in ("SB3", "none"):
        assert f"\n {name} " in cart.stdout
    assert "Memory is that of 1,000,000 transitions" in cart.stdout


def test_no_progress_bar_or_escape_codes_without_a_terminal(cart: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in cart.stdout + cart.stderr
    assert "measuring" not in cart.stdout + cart.stderr


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
        (["CartPole-v1", "--plot", "out.txt"], "png, ps, "),
        (["CartPole-v1", "--plot", "no/such/folder/out.png"], "the folder of the plot does not exist: "),
        (["CartPole-v1", "--buffer-size", "99999999999", "--steps", "99999999999"], "fewer --steps"),
    ],
)
def test_errors_name_the_alternatives(arguments: list[str], message: str) -> None:
    assert message in error_of("advise", *arguments)


def test_rounds_are_measured_and_all_cells_fit_into_80_columns() -> None:
    options = ["--steps", 200, "--seconds", 1, "--rounds", 2, "--codec", "lz4-block/0"]
    done = run("advise", "CartPole-v1", *options, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith(" lz4-block/0 "))
    assert row[-1] == "equal"
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout


def test_an_environment_that_fails_is_reported_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = """
    import gymnasium as gym
    from gymnasium.envs.classic_control import CartPoleEnv

    class Simulator(CartPoleEnv):
        def step(self, action):
            raise RuntimeError("no connection to the simulator")

    gym.register("Simulator-v0", Simulator)
    """
    (tmp_path / "simulators.py").write_text(textwrap.dedent(module))
    monkeypatch.syspath_prepend(tmp_path)
    message = error_of("advise", "simulators:Simulator-v0", "--steps", 200, "--seconds", 1, "--codec", "none")
    assert "SB3's buffer failed" in message
    assert "no connection to the simulator" in message


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal to a group of processes")
def test_ctrl_c_exits_with_130_and_ends_all_processes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "advise", "CartPole-v1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    while not (workers := psutil.Process(process.pid).children(recursive=True)):  # until it trains
        assert process.poll() is None
        time.sleep(0.1)
    while process.poll() is None:  # Python ignores an interrupt that arrives in a destructor
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert (stdout, "Traceback" in stderr) == ("", False)
    assert not psutil.wait_procs(workers, timeout=30)[1]
    assert not [*tmp_path.iterdir()]

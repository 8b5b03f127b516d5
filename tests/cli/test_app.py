"""Help, version, usage errors and missing dependencies of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from commands import COMMAND, error_of, run, run_process, without
from programs import fresh_outcome, outcome

from sb3_compressed import __version__
from sb3_compressed.cli.app import app
from sb3_compressed.errors import install_command

PONG = "PongNoFrameskip-v4"
COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)


def test_without_arguments_commands_are_listed() -> None:
    done = run()
    assert done.returncode == 2
    for command in COMMANDS:
        assert command in done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_options_without_escape_codes(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout
    assert "\x1b" not in done.stdout


def test_help_imports_neither_torch_nor_sb3_nor_numba() -> None:
    done = fresh_outcome("""
import sys
from sb3_compressed.cli import main
try:
    main(["advise", "--help"])
except SystemExit:
    print([name for name in ("torch", "stable_baselines3", "numba") if name in sys.modules])
""")
    assert done.stdout.endswith("\n[]\n")


def test_usage_errors_exit_with_2() -> None:
    assert run("no-such-command").returncode == 2
    assert run("verify").returncode == 2


def test_long_paths_in_error_messages_are_not_broken_into_lines() -> None:
    path = "/missing" * 20
    done = run("inspect", path, COLUMNS="60", FORCE_COLOR="1", TERM="xterm")
    assert done.stderr == f"Error: there is no folder\n{path}\n"


def test_installed_script_prints_version() -> None:
    script = Path(sys.executable).parent / "sb3-compressed"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"sb3-compressed {__version__}\n"


def test_closed_pipe_ends_the_command_quietly() -> None:
    with subprocess.Popen(
        [*COMMAND, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_dependencies_name_the_pip_command(missing: str, tmp_path: Path) -> None:
    done = run_process("--help", **without(tmp_path, missing))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: the command line requires {missing}: {install_command('cli')}\n"


def test_other_missing_modules_are_bugs_with_a_traceback(tmp_path: Path) -> None:
    done = run_process("--help", **without(tmp_path, "sb3_compressed.cli.advise"))
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "sb3_compressed.cli.advise" in done.stderr
    assert "pip install" not in done.stderr


#: Optional modules, commands that require them and parts of the error messages.
OPTIONAL = {
    "ale_py": (f"advise {PONG}", "For ALE games: pip install '.[atari]'"),
    "cv2": ("advise CartPole-v1 --wrapper atari", "need cv2, which is not installed: pip install"),
}


@pytest.mark.parametrize("missing", OPTIONAL)
def test_missing_extras_name_the_pip_command(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command, message = OPTIONAL[missing]
    for module in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    if missing == "ale_py":
        monkeypatch.delitem(gym.registry, PONG, raising=False)  # another test may have registered it
    assert message in error_of(*command.split())


WITHOUT_CLI = """
import importlib, pkgutil, sys
for name in [*sys.modules]:
    if name.startswith(("sb3_compressed", "typer", "rich")) and not name.endswith(("kernels", "jit")):
        del sys.modules[name]
sys.modules["typer"] = sys.modules["rich"] = None  # as if they were not installed
import sb3_compressed
from stable_baselines3 import DQN
from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.recording import record_episodes
from sb3_compressed.warmup import warm_up
for module in pkgutil.walk_packages(sb3_compressed.__path__, "sb3_compressed."):
    requires_extras = module.name.endswith((".__main__", ".contrib"))
    if not requires_extras and not module.name.startswith("sb3_compressed.cli."):
        importlib.import_module(module.name)
for name in sb3_compressed.__all__:
    getattr(sb3_compressed, name)
model = DQN(
    "MlpPolicy", "CartPole-v1", buffer_size=100, learning_starts=10, replay_buffer_class=CompressedReplayBuffer
)
warm_up(model.replay_buffer, model.get_env(), 20)
record_episodes(model, model.get_env(), 1, progress_bar=True)
model.learn(20)
"""


def test_library_works_without_typer_and_rich() -> None:
    done = outcome(WITHOUT_CLI)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""

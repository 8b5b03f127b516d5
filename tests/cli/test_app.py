"""What holds for all commands: help, versions, what is not understood."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import run

from sb3_compressed import __version__
from sb3_compressed.cli.app import app

COMMANDS = sorted(command.callback.__name__ for command in app.registered_commands if command.callback)


def test_without_a_command_it_says_which_there_are() -> None:
    done = run()
    assert done.returncode == 2
    for command in COMMANDS:
        assert command in done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout
    assert "\x1b" not in done.stdout, "no colours where there is no terminal"


def test_what_is_not_understood_is_a_usage_error() -> None:
    assert run("no-such-command").returncode == 2
    assert run("verify").returncode == 2


def test_errors_repeat_what_they_are_of_to_the_letter() -> None:
    assert "a:b:c cannot be found" in run("advise", "a:b:c").stderr


def test_its_version() -> None:
    assert run("--version").stdout == f"sb3-compressed {__version__}\n"


def test_the_script_is_installed() -> None:
    script = Path(sys.executable).parent / "sb3-compressed"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"sb3-compressed {__version__}\n"

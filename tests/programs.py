"""Run programs in separate processes, and return what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
TIMEOUT_S = 300  # far more than any program needs, to end one that hangs


def python_path(*folders: Path) -> str:
    """Return the current ``PYTHONPATH`` with these folders prepended."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))


def environment_with(**changes: str) -> dict[str, str]:
    """Return the environment of a program that can import the helpers of the tests."""
    return {**os.environ, "PYTHONPATH": python_path(TESTS), **changes}


def outcome(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program and return the completed process with its output, whatever its exit status."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", env=environment_with(**environment), timeout=TIMEOUT_S
    )


def run(code: str, *arguments: object, **environment: str) -> str:
    """Run a program, assert that it succeeds, and return what it printed."""
    done = outcome(code, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program, to read its output while it runs, or to kill it."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment_with()
    )

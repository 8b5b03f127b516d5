"""Programs in processes of their own: what they print is what is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
TIMEOUT_S = 300  # far from what any takes: only to end one that hangs


def python_path(*folders: Path) -> str:
    """Return a ``PYTHONPATH`` that begins with these folders and goes on with what it was set to."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))


def environment_with(**changes: str) -> dict[str, str]:
    """Return the environment of a program that can import what the tests share."""
    return {**os.environ, "PYTHONPATH": python_path(TESTS), **changes}


def outcome(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program until it ends, well or not, and return how it ended and all that it said."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", env=environment_with(**environment), timeout=TIMEOUT_S
    )


def run(code: str, *arguments: object, **environment: str) -> str:
    """Run a program until it ends well and return what it printed."""
    done = outcome(code, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program of which the lines are read while it runs, or which is killed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment_with()
    )

"""Programs in processes of their own: what they print is what is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PATH = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATH}
"""The environment of a program that imports what the tests share."""


def run(code: str, *arguments: object, **environment: str) -> str:
    """Run a program until it ends well and return what it printed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env={**ENVIRONMENT, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program of which the lines are read while it runs, or which is killed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=ENVIRONMENT)

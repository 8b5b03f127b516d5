"""Run commands: most tests in this process, for speed; signals, streams and imports in a process of their own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import python_path, run_python

from sb3_compressed.cli import main

#: No colors and no wrapping: the same output wherever the tests run.
ENVIRONMENT = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}
COMMAND = [sys.executable, "-m", "sb3_compressed"]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``sb3-compressed`` in this process and return its output and exit code."""
    command = [str(argument) for argument in arguments]
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, **environment}.items():
            patch.setenv(name, value)
        redirected = contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr)
        with redirected[0], redirected[1], pytest.raises(SystemExit) as exit:
            main(command)
    code = exit.value.code
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(command, code, stdout.getvalue(), stderr.getvalue())


def run_process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m sb3_compressed`` in a new process and return its output and exit code."""
    return run_python(["-m", "sb3_compressed", *arguments], {**os.environ, **ENVIRONMENT, **environment})


def set_terminal(patch: pytest.MonkeyPatch, width: int) -> None:
    """Print as on a terminal of that many columns."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": str(width), "LINES": "50"}.items():
        patch.setenv(name, value)


def without(folder: Path, *modules: str) -> dict[str, str]:
    """Return environment variables with which modules cannot be imported, as if they were not installed.

    :param folder: receives a file that Python reads first
    """
    lines = ["import sys", *(f"sys.modules[{module!r}] = None" for module in modules)]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return {"PYTHONPATH": python_path(folder)}


def error_of(*arguments: Any) -> str:
    """Return the error message of a command that fails."""
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    return done.stderr.removeprefix("Error: ").removesuffix("\n")


def flip_a_bit(folder: Path) -> Path:
    """Damage the last file of a stored buffer, and return it."""
    file = max(folder.glob("*.log"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    return file

"""What the tests of commands share: a command in a process of its own, as a shell starts it."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from programs import python_path, run_python

#: No colours, no moving bars, no wrapped lines: the same output wherever the tests run.
ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}


def run(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``sb3-compressed`` and return what it printed, and its exit code."""
    return run_python(["-m", "sb3_compressed", *arguments], {**ENVIRONMENT, **environment}, timeout=None)


def without(module: str, folder: Path) -> dict[str, str]:
    """Return environment variables with which a module is missing as if it were not installed.

    :param folder: where a file can be put that Python reads first
    """
    of_sb3 = [needed for needed in requires("stable_baselines3") or [] if "extra ==" not in needed]
    if module in ("matplotlib", "PIL") and "matplotlib" in of_sb3:
        pytest.skip(f"this version of SB3 needs {module} itself")
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    return {"PYTHONPATH": python_path(folder)}

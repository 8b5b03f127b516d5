"""Which rules are active, the functions that they replace, and who calls them."""

from __future__ import annotations

import atexit
import os
import shutil
import sysconfig
import tempfile
import types
from typing import Any

__all__ = ["is_library", "is_package", "pids", "real", "refused", "replace_in_os", "rules", "share"]

#: The active rules.
rules: set[str] = set()
#: What was replaced, by name, such as ``"os.unlink"``.
real: dict[str, Any] = {"open": open}

PACKAGE = "sb3_compressed"
OWN = os.path.dirname(os.path.abspath(__file__))
#: Folders of libraries. Those of an environment may be links.
LIBRARIES = tuple(
    {
        each + os.sep
        for key, path in sysconfig.get_paths().items()
        if key in ("stdlib", "purelib", "platlib")
        for each in (path, os.path.realpath(path))
    }
)
#: The processes that follow the rules have a file here, whose name is their id.
PROCESSES = "WINDOWS_RULES_PROCESSES"
_known: dict[str, bool] = {}


def is_library(filename: str) -> bool:
    """Return whether code is of the standard library, an installed package, or these rules."""
    if filename not in _known:
        path = filename if filename.startswith("<") else os.path.abspath(filename)
        _known[filename] = (
            path.startswith((*LIBRARIES, OWN + os.sep, "<frozen")) or f"{os.sep}site-packages{os.sep}" in path
        )
    return _known[filename]


def is_package(frame: types.FrameType) -> bool:
    """Return whether a call is by this package."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == PACKAGE


def refused(rule: str, kind: type[OSError], number: int, message: str, path: Any = None) -> OSError:
    """Return the error of a rule."""
    text = f"{message} [rule of Windows: {rule}]"
    if path is None:
        return kind(number, text)
    return kind(number, text, str(path) if isinstance(path, int) else os.fspath(path))


def replace_in_os(name: str, function: Any) -> None:
    """Replace a function of ``os``."""
    real[f"os.{name}"] = getattr(os, name)
    function.__name__ = name
    function.__doc__ = real[f"os.{name}"].__doc__
    setattr(os, name, function)


def share() -> None:
    """Let other processes that follow the rules find what this one has open, and those that it starts follow them."""
    if PROCESSES not in os.environ:
        os.environ[PROCESSES] = tempfile.mkdtemp(prefix="windows-rules-")
        atexit.register(shutil.rmtree, os.environ[PROCESSES], ignore_errors=True)
    parent = os.path.dirname(OWN)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if parent not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([parent, *filter(None, paths)])
    os.close(os.open(os.path.join(os.environ[PROCESSES], str(os.getpid())), os.O_CREAT | os.O_WRONLY))


def pids() -> list[int]:
    """Return the ids of the processes that follow the rules, which may have ended meanwhile."""
    return [int(name) for name in os.listdir(os.environ[PROCESSES]) if os.path.isdir(f"/proc/{name}")]

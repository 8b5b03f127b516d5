"""Fixtures for all tests: data of real environments, recorded once a process."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import drawn_examples  # noqa: F401  # sets the defaults of hypothesis for all tests
import numpy as np
import pytest
import torch as th
from fork_server import import_package
from storage.folders import folder_in_memory
from support import Stream, recorded

from sb3_compressed.codecs import registry

__all__ = ["Stream", "recorded"]

#: What only processes that follow the rules of Windows import, see ``tests/windows/test_windows.py``.
collect_ignore = [f"windows/{name}" for name in ("sitecustomize.py", "windows_rules", "windows_summary.py")]
if not os.environ.get("WINDOWS_RULES"):
    collect_ignore.append("windows/under_rules")

import_package()  # pytest-xdist imports this file before it starts processes: kernels are compiled once

th.set_num_threads(1)  # the tests run in as many processes as there are cores

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell, which its children would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let SB3's loggers share one folder; each creates one of its own in the system's otherwise."""
    os.environ["SB3_LOGDIR"] = str(tmp_path_factory.mktemp("logs"))


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Begin each test with the same random numbers, whatever its process has run before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
    th.manual_seed(0)


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return a folder, in memory for tests that sync files hundreds of times."""
    if request.path.parent.name not in ("storage", "persistence"):
        yield tmp_path
        return
    with folder_in_memory(tmp_path) as folder:
        yield folder


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> Stream:
    """Return the transitions of the environment that the test is parametrised with, ``atari`` where it is not."""
    return recorded(getattr(request, "param", "atari"))


@pytest.fixture
def restored_registry() -> Iterator[None]:
    """Restore the registry of codecs after a test."""
    before = dict(registry._registry)
    yield
    registry._registry.clear()
    registry._registry.update(before)

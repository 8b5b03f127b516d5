"""A pytest plugin that runs the tests of SB3 and sb3-contrib against the compressed buffers.

``python -m pytest -p upstream.plugin`` with this repository's ``tests`` folder on the path; ``run.py`` beside this file
does it. Wherever a test or an algorithm refers to a buffer class of SB3 or sb3-contrib, it gets the compressed one,
also as an algorithm's default. The summary lists how many buffers each test file made, compressed and not.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
from stable_baselines3.common.buffers import (
    BaseBuffer,
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

import sb3_compressed
from sb3_compressed.buffers.base import CompressedBuffer

PACKAGES = ["stable_baselines3", "sb3_contrib"]


def replacements() -> dict[type[BaseBuffer], type[Any]]:
    """Return the compressed class for each class of SB3 and, if it is installed, sb3-contrib."""
    classes: dict[type[BaseBuffer], type[Any]] = {
        parent: getattr(sb3_compressed, f"Compressed{parent.__name__}")
        for parent in (
            ReplayBuffer, DictReplayBuffer, NStepReplayBuffer, HerReplayBuffer, RolloutBuffer, DictRolloutBuffer
        )
    }  # fmt: skip
    try:
        from sb3_compressed.buffers.contrib_rollout import COMPRESSED
    except ModuleNotFoundError:
        return classes
    return {**classes, **COMPRESSED}


def install() -> None:
    """Replace SB3's buffer classes in all of its modules, and sb3-contrib's."""
    classes = replacements()
    for parent, compressed in classes.items():
        for other_parent, other in classes.items():
            if parent is not other_parent and issubclass(other_parent, parent):
                # SB3 tests isinstance(a DictReplayBuffer, ReplayBuffer); among ours that holds for the parents only.
                compressed.register(other)  # BaseBuffer is an ABC
    names = {id(parent): compressed for parent, compressed in classes.items()}
    definers = {parent.__module__ for parent in classes}
    for module in _modules():
        replaced = {name: names[id(value)] for name, value in vars(module).items() if id(value) in names}
        if not replaced:
            continue
        if module.__name__ not in definers:
            vars(module).update(replaced)
            continue
        # SB3's classes call each other by these names, as in super(ReplayBuffer, self), so their module stays as it
        # is; importers get a copy of it.
        copied = ModuleType(module.__name__, module.__doc__)
        vars(copied).update({**vars(module), **replaced})
        sys.modules[module.__name__] = copied
        parent_name, _, name = module.__name__.rpartition(".")
        setattr(sys.modules[parent_name], name, copied)


def _modules() -> list[ModuleType]:
    """Import the packages and return all of their modules so far; later ones import the copies."""
    for package in PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):  # sb3-contrib may not be installed
            importlib.import_module(package)
    return [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] in PACKAGES]


class Counts:
    """How many buffers each test file made.

    :ivar made: by file and by whether they are compressed
    """

    def __init__(self) -> None:
        self.made: Counter[tuple[str, bool]] = Counter()
        self.results: dict[str, Counter[str]] = {}
        self._file = ""
        make = BaseBuffer.__init__

        @functools.wraps(make)
        def counted(buffer: BaseBuffer, *args: Any, **kwargs: Any) -> None:
            self.made[self._file, isinstance(buffer, CompressedBuffer)] += 1
            make(buffer, *args, **kwargs)

        BaseBuffer.__init__ = counted  # type: ignore[method-assign, assignment]

    def pytest_runtest_logstart(self, location: tuple[str, int | None, str]) -> None:
        """Count for this test's file from now on."""
        self._file = location[0]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count results: a test counts as failed if any of its phases failed."""
        if report.when == "call" or report.outcome != "passed":
            self.results.setdefault(report.location[0], Counter())[report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the counts."""
        terminalreporter.section("buffers made")
        for file, results in sorted(self.results.items()):
            outcome = ", ".join(f"{number} {name}" for name, number in sorted(results.items()))
            compressed, plain = self.made[file, True], self.made[file, False]
            terminalreporter.line(f"{file}: {outcome}; {compressed} compressed buffers, {plain} others")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail if no test used a compressed buffer: the replacement has missed its aim then."""
        n_compressed = sum(number for (_, is_compressed), number in self.made.items() if is_compressed)
        if exitstatus == pytest.ExitCode.OK and not n_compressed and not session.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    """Replace the classes before any test module is imported."""
    install()
    config.pluginmanager.register(Counts(), "compressed buffer counts")

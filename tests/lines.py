"""Run code before any line of the library: an interrupt, a kill, another reader."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def before_lines(lines: Container[int], do: Callable[[], object], *modules: ModuleType) -> Iterator[None]:
    """Call ``do`` before the given lines of the modules, numbered from 0 in the order in which the block runs them."""
    names = {module.__name__ for module in modules}
    number = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal number
        if frame.f_globals.get("__name__") not in names:
            return None
        if event == "line":
            if number in lines:
                sys.settrace(None)
                do()
                sys.settrace(trace)
            number += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Interrupt:
    """A context manager that raises and catches ``KeyboardInterrupt`` before one line of the modules in its block.

    :ivar n_lines: number of lines that run before
    :ivar happened: whether the block ran more lines than that
    """

    def __init__(self, n_lines: int, *modules: ModuleType) -> None:
        self.n_lines = n_lines
        self.happened = False
        self._lines = before_lines([n_lines], self._interrupt, *modules)

    def _interrupt(self) -> None:
        self.happened = True
        raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._lines.__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self._lines.__exit__(None, None, None)
        return isinstance(error, KeyboardInterrupt)


def interrupts(*modules: ModuleType, step: int = 1) -> Iterator[Interrupt]:
    """Yield an interrupt for each line of the modules that the block runs, and a last one that never happens.

    :param step: 2 for every other line, and so on
    """
    for n_lines in itertools.count(step=step):
        interrupt = Interrupt(n_lines, *modules)
        yield interrupt
        if not interrupt.happened:
            return

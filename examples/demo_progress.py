"""Progress of the demo: bars on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["Display", "new_display"]

#: Part of a training that is worth another line.
SHARE_OF_LINE = 0.1
#: Width of the names, so that bars do not move when a longer one is added.
NAME_WIDTH = 22


class Display:
    """Prints a line now and then, for logs, pipes and terminals without cursor control.

    :param console: where to print
    :param total: transitions of each training
    """

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total = console, total
        self._begin = time.monotonic()
        self._name = ""
        self._next = 0.0  # transitions at the next line

    def begin(self, name: str, stage: str) -> None:
        """Show that another process begins, and what it does first."""
        self._name, self._next = name, 0.0
        self._print(stage)

    def show_stage(self, stage: str) -> None:
        """Show what the process does while no transitions are added."""
        self._print(stage)

    def end(self, result: str) -> None:
        """Show that the process has ended."""
        self._print(result)

    def show_transitions(self, n_transitions: int, nbytes: int, n_updates: int) -> None:
        """Show how far a training is, and the memory of its process in bytes."""
        if n_transitions >= self._next:
            self._next += SHARE_OF_LINE * self.total
            count = f"{n_transitions:,} of {self.total:,} transitions, {n_updates} updates"
            self._print(f"{count}, {nbytes / 1e6:,.0f} MB")

    def _print(self, text: str) -> None:
        seconds = time.monotonic() - self._begin
        self.console.print(f"{seconds:4.0f} s  {self._name}: {text}", soft_wrap=True)


class Bars(Display):
    """Shows a bar for each process.

    :param progress: the display of all bars
    """

    def __init__(self, console: Console, total: int, progress: Progress) -> None:
        super().__init__(console, total)
        self._progress = progress
        self._task = TaskID(0)

    def begin(self, name: str, stage: str) -> None:
        """Begin another bar."""
        self._task = self._progress.add_task(f"{name:<{NAME_WIDTH}}", total=None, status=stage)

    def show_stage(self, stage: str) -> None:
        """Show what the process does beside its bar."""
        self._progress.update(self._task, status=stage)

    def end(self, result: str) -> None:
        """Fill the bar."""
        self._progress.update(self._task, total=1, completed=1, status=result)

    def show_transitions(self, n_transitions: int, nbytes: int, n_updates: int) -> None:
        """Advance the bar."""
        status = f"{n_transitions:,} transitions {nbytes / 1e6:5,.0f} MB"
        self._progress.update(self._task, total=self.total, completed=n_transitions, status=status)


@contextmanager
def new_display(console: Console, total: int) -> Iterator[Display]:
    """Yield the display that suits a console.

    :param total: transitions of each training
    """
    if not console.is_terminal or console.is_dumb_terminal:
        yield Display(console, total)
        return
    # Colors of the terminal's own theme: Rich's are for dark backgrounds.
    bar = BarColumn(style="bright_black", complete_style="cyan", finished_style="green", pulse_style="cyan")
    columns = TextColumn("{task.description}"), bar, TextColumn("{task.fields[status]}"), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        yield Bars(console, total, progress)

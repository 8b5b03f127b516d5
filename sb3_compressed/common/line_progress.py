"""``LineProgress``: progress as a line from time to time, where bars cannot be redrawn."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import Progress, Task, TaskID

__all__ = ["LineProgress"]

#: Seconds between two lines.
INTERVAL = 10.0


class LineProgress(Progress):
    """Prints the progress of a task at most every ten seconds, and of each task at the end.

    For logs, pipes, terminals without cursor control, and notebooks without ipywidgets.

    :param is_transient: whether nothing is printed at the end
    :param options: those of ``rich.progress.Progress``
    """

    def __init__(self, *, is_transient: bool = False, **options: Any) -> None:
        super().__init__(auto_refresh=False, **options)
        self._is_transient = is_transient
        self._next_line = time.monotonic() + INTERVAL
        self._printed: dict[TaskID, str] = {}

    def start(self) -> None:
        """Begin without a display."""

    def stop(self) -> None:
        """Print the last lines."""
        for task in () if self._is_transient else self.tasks:
            self._print(task)

    def refresh(self) -> None:
        """Do nothing: there is no display."""

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Update a task as ``rich.progress.Progress`` does."""
        super().update(task_id, **changes)
        self._print_if_due(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Advance a task as ``rich.progress.Progress`` does."""
        super().advance(task_id, advance)
        self._print_if_due(task_id)

    def _print_if_due(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + INTERVAL
            self._print(next(task for task in self.tasks if task.id == task_id))

    def _print(self, task: Task) -> None:
        """Print the line of a task, unless it is invisible or was printed as it is."""
        total = "" if task.total is None else f"/{task.total:.0f}"
        line = f"{task.description} {task.completed:.0f}{total}"
        if task.visible and self._printed.get(task.id) != line:
            self._printed[task.id] = line
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

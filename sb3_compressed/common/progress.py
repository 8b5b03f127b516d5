"""Progress bars on the standard error, with Rich.

Where bars cannot be redrawn, Rich prints one line when the work is done: where the standard error is not a terminal, or
one without cursor control. In a notebook without ipywidgets, it warns that it needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["new_progress", "progress_bar"]


def new_progress(*, is_shown: bool = True, transient: bool = False) -> Progress:
    """Return a Rich display without any bars yet.

    :param transient: whether it disappears when the work is done
    """
    from rich.console import Console  # importing Rich is slow
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # Colors of the terminal's own theme: Rich's are for dark backgrounds.
    bar = BarColumn(style="bright_black", complete_style="cyan", finished_style="green")
    columns = TextColumn("{task.description}", markup=False), bar, MofNCompleteColumn(), TimeRemainingColumn()
    # Also quiet, since Rich before 14.3 prints an empty line after a disabled display.
    console = Console(stderr=True, quiet=not is_shown)
    return Progress(*columns, console=console, disable=not is_shown, transient=transient)


@contextmanager
def progress_bar(total: int, description: str, *, is_shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar during the block; yield the function that advances it.

    Without Rich (``pip install '.[cli]'``), nothing is printed.

    >>> with progress_bar(3, "counting sheep", is_shown=False) as advance:
    ...     for _ in range(3):
    ...         advance(1)

    :param total: the number of steps
    :param description: the text beside the bar
    """
    if not is_shown:
        yield lambda n: None
        return
    try:
        progress = new_progress()
    except ImportError:  # Rich is an optional dependency
        yield lambda n: None
        return
    with progress:
        task = progress.add_task(description, total=total)
        yield lambda n: progress.advance(task, n)

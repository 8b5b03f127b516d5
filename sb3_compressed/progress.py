"""Progress bars of what takes long, on the standard error.

Where that is no terminal, nothing moves: there is a line when the work is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["new_progress", "progress_bar"]


def new_progress(*, is_shown: bool = True, transient: bool = False) -> Progress:
    """Return bars of Rich, of which there are none yet.

    :param transient: whether they are gone when the work is done
    """
    from rich.console import Console  # here, since it takes its time
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Quiet, too: before its version 14.3, Rich ends bars that are not shown with an empty line.
    console = Console(stderr=True, quiet=not is_shown)
    return Progress(*columns, console=console, disable=not is_shown, transient=transient)


@contextmanager
def progress_bar(total: int, what: str, *, is_shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar while something is done, and give the function that moves it; without Rich, a line at the end.

    >>> with progress_bar(3, "counting sheep", is_shown=False) as advance:
    ...     for _ in range(3):
    ...         advance(1)

    :param total: how far it goes
    :param what: what is done
    """
    try:
        progress = new_progress(is_shown=is_shown)
    except ImportError:  # Rich is an optional dependency
        n_done = 0

        def advance(n: int) -> None:
            nonlocal n_done
            n_done += n

        yield advance
        if is_shown:
            print(f"{what} {n_done}/{total}", file=sys.stderr)
        return
    with progress:
        task = progress.add_task(what, total=total)
        yield lambda n: progress.advance(task, n)

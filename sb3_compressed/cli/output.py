"""What all commands have in common: where they print to, for people or for machines, and progress bars.

Results go to the standard output, everything else to the standard error, so that results can be piped. Rich leaves out
colours and moving bars where the output is no terminal, or the environment has ``NO_COLOR``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["Json", "is_watched", "note", "progress_bar", "show"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead, for machines.")]


def show(result: Mapping[str, Any], *for_people: RenderableType, as_json: bool) -> None:
    """Print a result once: as JSON, or what is made of it for people."""
    console = Console()
    if as_json:
        console.print_json(json.dumps(result, default=_plain), indent=1, highlight=console.is_terminal)
        return
    for part in for_people:
        is_text = isinstance(
            part, str | Text
        )  # as it is: paths have brackets, and whoever reads lines wants them whole
        console.print(Text(part) if isinstance(part, str) else part, soft_wrap=is_text)


def note(text: str) -> None:
    """Say something that is no result."""
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def progress_bar() -> Progress:
    """Return a progress bar that is gone when the work is done, and never there where nobody would see it move."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not is_watched())


def is_watched() -> bool:
    """Tell whether somebody sees what moves, for progress bars that are not of Rich."""
    return Console(stderr=True).is_terminal


def _plain(value: Any) -> Any:
    """Return what JSON has for a value that is not of it."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)

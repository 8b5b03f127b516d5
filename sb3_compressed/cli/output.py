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
from rich.progress import Progress
from rich.text import Text

from sb3_compressed.progress import new_progress

__all__ = ["Json", "is_watched", "note", "progress_bar", "show"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead, for machines.")]


def show(result: Mapping[str, Any], *for_people: RenderableType, as_json: bool) -> None:
    """Print a result once: as JSON, or what is made of it for people."""
    console = Console()
    if as_json:
        text = json.dumps(_finite(result), default=_plain, allow_nan=False)
        console.print_json(text, indent=1, highlight=console.is_terminal)
        return
    for part in for_people:
        is_text = isinstance(part, str | Text)  # as it is: paths have brackets
        # Whoever reads lines wants them whole, whoever reads a terminal words.
        console.print(Text(part) if isinstance(part, str) else part, soft_wrap=is_text and not console.is_terminal)


def note(text: str) -> None:
    """Say something that is no result."""
    console = Console(stderr=True)
    console.print(Text(text), soft_wrap=not console.is_terminal)  # as it is: "a:b:c" has no emoji in it


def progress_bar() -> Progress:
    """Return progress bars that are gone when the work is done, and are not there where there is no terminal."""
    return new_progress(is_shown=is_watched(), transient=True)


def is_watched() -> bool:
    """Return whether somebody sees what moves, for progress bars that are not of Rich."""
    return Console(stderr=True).is_terminal


def _finite(value: Any) -> Any:
    """Return a value with ``None`` for the numbers that JSON has not: NaN and the infinities."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float | np.floating) and not np.isfinite(value) else value


def _plain(value: Any) -> Any:
    """Return what JSON has for a value that is not of it."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)

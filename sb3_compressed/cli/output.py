"""Output of all commands: results as text or JSON, notes and progress bars.

Results go to the standard output and everything else to the standard error, so that results can be piped. Rich omits
colors and progress bars if the output is not a terminal, and colors if ``NO_COLOR`` is set. Text is wrapped between
words on a terminal; elsewhere, and in tables and code, no line is wrapped or cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import TextWrapper
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.text import Text

from sb3_compressed.common.progress import new_progress

__all__ = [
    "Json",
    "code",
    "format_nbytes",
    "note",
    "print_result",
    "progress_bar",
]

Json = Annotated[bool, typer.Option("--json", help="Print a single JSON object.")]

#: Columns, more than any table has.
MAX_WIDTH = 1000


def print_result(result: Mapping[str, Any], *parts: RenderableType, as_json: bool) -> None:
    """Print the result of a command.

    :param result: all of it, for JSON
    :param parts: what is printed without ``--json``; strings are printed without markup, and wrapped on a terminal
    """
    if as_json:
        console = Console()
        console.print_json(data=_finite(result), indent=1, highlight=console.is_terminal, default=_json_value)
        return
    for part in parts:
        _print(part)


def code(lines: str) -> Text:
    """Return lines to copy, which are not wrapped."""
    return Text(lines)


def format_nbytes(nbytes: float) -> str:
    """Return a number of bytes with a unit.

    >>> format_nbytes(427.4), format_nbytes(56_571), format_nbytes(5.6e13)
    ('427 B', '56.6 kB', '56 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


def note(text: str) -> None:
    """Print a message to the standard error."""
    _print(text, stderr=True)


def progress_bar() -> Progress:
    """Return progress bars that disappear when done, and are shown on a terminal only."""
    return new_progress(is_shown=Console(stderr=True).is_terminal, transient=True)


def _print(part: RenderableType, *, stderr: bool = False) -> None:
    console = Console(stderr=stderr)
    if isinstance(part, str):
        if console.is_terminal:
            # Not by Rich, which divides words that are longer than a line, such as paths.
            wrapper = TextWrapper(console.width, break_long_words=False, break_on_hyphens=False)
            part = "\n".join(wrapper.fill(line) for line in part.split("\n"))
        part = Text(part)  # a path may contain "[red]", which is markup, or ":a:", an emoji
    console.width = MAX_WIDTH  # Rich cuts the cells of tables that are too wide
    console.print(part, no_wrap=True, overflow="ignore", crop=False)


def _finite(value: Any) -> Any:
    """Return a value with NaN and infinities, which JSON lacks, replaced by ``None``."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float | np.floating) and not np.isfinite(value) else value


def _json_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)

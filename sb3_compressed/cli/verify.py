"""``sb3-compressed verify``: verify every byte of a buffer's folder."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from sb3_compressed.cli.output import Json, print_result, progress_bar
from sb3_compressed.cli.sources import SourcePath, find_source

__all__ = ["verify"]

#: Damaged parts listed without ``--verbose``.
MAX_LISTED = 5


def verify(
    path: SourcePath,
    verbose: Annotated[bool, typer.Option("--verbose", help="List every damaged part.")] = False,
    as_json: Json = False,
) -> None:
    """Verify every byte of a buffer's folder; exit with 1 if anything is damaged."""
    from sb3_compressed.storage import verify as find_damage

    source = find_source(path)
    with progress_bar() as bar:
        task = bar.add_task("verifying", total=100)
        problems = find_damage(source.path, progress=lambda share: bar.update(task, completed=100 * share))
    lines = problems if verbose else summary(problems)
    lines = lines or [f"{source.path}: no damage found"]
    print_result({"path": source.path, "damages": problems}, *lines, as_json=as_json)
    if problems:
        raise typer.Exit(1)


def summary(problems: list[str]) -> list[str]:
    """Return a few lines on the extent of the damage."""
    if len(problems) <= MAX_LISTED:
        return problems
    files = sorted({path for line in problems for path in re.findall(r"\S+\.log", line)})
    return [
        f"{len(problems):,} damaged parts in {len(files):,} file{'s' if len(files) > 1 else ''}, including:",
        *problems[:MAX_LISTED],
        "--verbose lists all of them. load_checkpoint(..., repair=True) recovers the undamaged parts.",
    ]

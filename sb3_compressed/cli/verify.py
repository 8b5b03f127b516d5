"""``sb3-compressed verify``: look at every byte of a buffer's folder."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from sb3_compressed.cli.output import Json, progress_bar, show
from sb3_compressed.cli.sources import Source, find
from sb3_compressed.errors import StorageError

__all__ = ["verify"]


def verify(
    source: Source,
    verbose: Annotated[bool, typer.Option("--verbose", help="List every damaged part.")] = False,
    as_json: Json = False,
) -> None:
    """Verify every byte of a buffer's folder; the exit code is 1 if anything is damaged."""
    from sb3_compressed.storage import verify as damages_in

    place = find(source)
    if place.is_pickle:
        raise StorageError(f"{place.path} is a pickle, in which there are no checksums to look at; folders have them")
    with progress_bar() as bar:
        task = bar.add_task("looking at every byte", total=100)
        damages = damages_in(place.path, progress=lambda share: bar.update(task, completed=100 * share))
    lines = damages if verbose else summary(damages)
    lines = lines or [f"{place.path}: everything is as it was written"]
    show({"path": place.path, "damages": damages}, *lines, as_json=as_json)
    if damages:
        raise typer.Exit(1)


#: Damaged parts that are listed without ``--verbose``.
MAX_LISTED = 5


def summary(damages: list[str]) -> list[str]:
    """Return the lines that tell how much is damaged, with the first few damaged parts."""
    if len(damages) <= MAX_LISTED:
        return damages
    files = sorted({path for line in damages for path in re.findall(r"\S+\.log", line)})
    return [
        f"{len(damages):,} damaged parts in {len(files):,} file{'s' if len(files) > 1 else ''}, among them:",
        *damages[:MAX_LISTED],
        "All of them: --verbose. To keep what is not damaged: load_checkpoint(..., repair=True)",
    ]

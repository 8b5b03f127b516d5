"""``sb3-compressed verify``: look at every byte of a buffer's folder."""

from __future__ import annotations

import typer

from sb3_compressed.cli.output import Json, progress_bar, show
from sb3_compressed.cli.places import Source, find
from sb3_compressed.errors import StorageError

__all__ = ["verify"]


def verify(source: Source, as_json: Json = False) -> None:
    """Look at every byte of a buffer's folder; the exit code is 1 if anything is damaged."""
    from sb3_compressed.storage import verify as damages_in

    place = find(source)
    if place.is_pickle:
        raise StorageError(f"{place.path} is a pickle, in which there are no checksums to look at; folders have them")
    with progress_bar() as bar:
        task = bar.add_task("looking at every byte", total=100)
        damages = damages_in(place.path, progress=lambda share: bar.update(task, completed=100 * share))
    lines = damages or [f"{place.path}: everything is as it was written"]
    show({"path": place.path, "damages": damages}, *lines, as_json=as_json)
    if damages:
        raise typer.Exit(1)

"""``sb3-compressed verify``: look at every byte of a buffer's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sb3_compressed.cli.output import Json, show

__all__ = ["verify"]


def verify(
    path: Annotated[Path, typer.Argument(help="The folder of a checkpoint or of a buffer with storage=<folder>.")],
    as_json: Json = False,
) -> None:
    """Look at every byte of a buffer's folder; the exit code is 1 if anything is damaged."""
    from sb3_compressed.storage import verify as damages_in

    damages = damages_in(path)
    lines = damages or [f"{path}: everything is as it was written"]
    show({"path": path, "damages": damages}, *lines, as_json=as_json)
    if damages:
        raise typer.Exit(1)

"""``sb3-compressed verify``: verify every byte of a buffer's folder."""

from __future__ import annotations

import typer

from sb3_compressed.cli.output import Json, print_result, progress_bar
from sb3_compressed.cli.sources import SourcePath, find_source

__all__ = ["verify"]


def verify(path: SourcePath, as_json: Json = False) -> None:
    """Verify every byte of a buffer's folder; exit with 1 if anything is damaged."""
    from sb3_compressed.storage import verify as find_damage

    path = find_source(path)
    with progress_bar() as bar:
        task = bar.add_task("verifying", total=100)
        problems = find_damage(path, progress=lambda share: bar.update(task, completed=100 * share))
    advice = "load_checkpoint(..., repair=True) recovers the undamaged parts" if problems else "no damage found"
    result = {"path": path, "damages": problems}
    print_result(result, *problems, f"{path}: {advice}", as_json=as_json)
    if problems:
        raise typer.Exit(1)

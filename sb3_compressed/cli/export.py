"""``sb3-compressed export``: export a stored buffer as a Minari dataset."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sb3_compressed.cli.output import Json, is_terminal, print_result
from sb3_compressed.cli.sources import SourcePath, Unpickle, find_source, open_source

__all__ = ["export"]


def export(
    path: SourcePath,
    dataset_id: Annotated[
        str, typer.Option("--minari", metavar="ID", help="Name of the dataset, e.g. pong/mine-v0.", show_default=False)
    ],
    unscale_actions: Annotated[
        bool,
        typer.Option("--unscale-actions", help="Undo SB3's scaling of actions to [-1, 1]."),
    ] = False,
    author: Annotated[str | None, typer.Option(help="Author of the dataset.")] = None,
    algorithm_name: Annotated[
        str | None, typer.Option("--algorithm", help="Algorithm that collected the dataset.")
    ] = None,
    description: Annotated[str | None, typer.Option(help="Description of the dataset.")] = None,
    unpickle: Unpickle = False,
    as_json: Json = False,
) -> None:
    """Export the episodes of a stored buffer to a Minari dataset, bit for bit."""
    from sb3_compressed.datasets import export_minari

    metadata = {"author": author, "algorithm_name": algorithm_name, "description": description}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    source = find_source(path)
    with open_source(source, unpickle=unpickle) as buffer:
        dataset = export_minari(
            buffer, dataset_id, unscale_actions=unscale_actions, progress_bar=is_terminal(), **metadata
        )
    result: dict[str, Any] = {
        "path": source.path,
        "dataset": dataset_id,
        "folder": dataset.storage.data_path.parent,
        "episodes": int(dataset.total_episodes),
        "steps": int(dataset.total_steps),
    }
    line = f"{dataset_id}: {result['episodes']:,} episodes, {result['steps']:,} steps, in {result['folder']}"
    print_result(result, line, as_json=as_json)

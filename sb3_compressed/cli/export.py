"""``sb3-compressed export``: a stored buffer as a dataset that others can read."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from sb3_compressed.cli.output import Json, is_watched, show
from sb3_compressed.cli.sources import Source, Unpickle, find, opened

__all__ = ["export"]


def export(
    source: Source,
    dataset_id: Annotated[str, typer.Option("--minari", metavar="ID", help="Name of the dataset: pong/mine-v0.")],
    unscale_actions: Annotated[
        bool,
        typer.Option("--unscale-actions", help="Bring actions back from -1 to 1, to which SB3 scales them."),
    ] = False,
    author: Annotated[str | None, typer.Option(help="Whose dataset it is.")] = None,
    algorithm_name: Annotated[str | None, typer.Option("--algorithm", help="What acted.")] = None,
    description: Annotated[str | None, typer.Option(help="What others should know of it.")] = None,
    unpickle: Unpickle = False,
    as_json: Json = False,
) -> None:
    """Write the episodes of a stored buffer to a Minari dataset, bit for bit. It needs the extra "minari"."""
    from sb3_compressed.datasets import export_minari

    given = {"author": author, "algorithm_name": algorithm_name, "description": description}
    metadata = {name: value for name, value in given.items() if value is not None}
    place = find(source)
    with opened(place, unpickle=unpickle) as buffer, warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="minari")  # of what was not said of it
        dataset = export_minari(
            buffer, dataset_id, unscale_actions=unscale_actions, progress_bar=is_watched(), **metadata
        )
    result = {
        "path": place.path,
        "dataset": dataset_id,
        "folder": dataset.storage.data_path.parent,
        "episodes": int(dataset.total_episodes),
        "steps": int(dataset.total_steps),
    }
    line = f"{dataset_id}: {result['episodes']:,} episodes of {result['steps']:,} steps in {result['folder']}"
    show(result, line, as_json=as_json)

"""``sb3-compressed export``: export a stored buffer as a Minari dataset or a file of d3rlpy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sb3_compressed.cli.output import Json, is_terminal, print_result, refuse_options
from sb3_compressed.cli.sources import SourcePath, Unpickle, expand_user, find_source, open_source

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["export"]

MINARI, D3RLPY = "Minari", "d3rlpy"


def export(
    path: SourcePath,
    dataset_id: Annotated[
        str | None, typer.Option("--minari", metavar="ID", help="Write a dataset of Minari, e.g. pong/mine-v0.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--d3rlpy", metavar="FILE", help="Write an HDF5 file of d3rlpy, e.g. pong.h5.", callback=expand_user
        ),
    ] = None,
    unscale_actions: Annotated[
        bool,
        typer.Option("--unscale-actions", help="Undo SB3's scaling of actions to [-1, 1]."),
    ] = False,
    author: Annotated[str | None, typer.Option(help="Author of the dataset.", rich_help_panel=MINARI)] = None,
    algorithm_name: Annotated[
        str | None, typer.Option("--algorithm", help="Algorithm that collected it.", rich_help_panel=MINARI)
    ] = None,
    description: Annotated[str | None, typer.Option(help="Description of the dataset.", rich_help_panel=MINARI)] = None,
    frame_stack: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Store each of the N frames of an observation once, for d3rlpy to stack.",
            rich_help_panel=D3RLPY,
        ),
    ] = None,
    gzip_level: Annotated[
        int | None,
        typer.Option("--gzip", metavar="LEVEL", help="Compress the file, 0 to 9.", rich_help_panel=D3RLPY),
    ] = None,
    unpickle: Unpickle = False,
    as_json: Json = False,
) -> None:
    """Export the episodes of a stored buffer to a Minari dataset, bit for bit, or to a file of d3rlpy."""
    of_minari = {"author": author, "algorithm_name": algorithm_name, "description": description}
    of_d3rlpy = {"frame_stack": frame_stack, "gzip_level": gzip_level}
    if (dataset_id is None) is (file is None):
        raise typer.BadParameter("pass either --minari ID or --d3rlpy FILE")
    if dataset_id is None:
        refuse_options(
            {"--author": author, "--algorithm": algorithm_name, "--description": description}, "needs --minari"
        )
    else:
        refuse_options({"--frame-stack": frame_stack, "--gzip": gzip_level}, "needs --d3rlpy")
    source = find_source(path)
    with open_source(source, unpickle=unpickle) as buffer:
        if dataset_id is not None:
            metadata = {name: value for name, value in of_minari.items() if value is not None}
            result = _to_minari(buffer, dataset_id, unscale_actions=unscale_actions, **metadata)
        else:
            assert file is not None
            result = _to_d3rlpy(buffer, file, unscale_actions=unscale_actions, **of_d3rlpy)
    where = f", in {result['folder']}" if dataset_id is not None else f", {result['nbytes'] / 1e6:,.1f} MB"
    line = f"{dataset_id or file}: {result['episodes']:,} episodes, {result['steps']:,} steps{where}"
    print_result({"path": source.path, **result}, line, as_json=as_json)


def _to_minari(buffer: ReplayBuffer, dataset_id: str, **options: Any) -> dict[str, Any]:
    from sb3_compressed.datasets import export_minari

    dataset = export_minari(buffer, dataset_id, progress_bar=is_terminal(), **options)
    return {
        "dataset": dataset_id,
        "folder": dataset.storage.data_path.parent,
        "episodes": int(dataset.total_episodes),
        "steps": int(dataset.total_steps),
    }


def _to_d3rlpy(buffer: ReplayBuffer, file: Path, **options: Any) -> dict[str, Any]:
    from sb3_compressed.datasets import export_d3rlpy

    n_episodes = export_d3rlpy(buffer, file, progress_bar=is_terminal(), **options)
    n_steps = buffer.size() * buffer.n_envs
    return {"file": file, "episodes": n_episodes, "steps": n_steps, "nbytes": file.stat().st_size}

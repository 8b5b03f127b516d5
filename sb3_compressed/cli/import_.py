"""``sb3-compressed import``: import Dopamine's checkpoints, such as the DQN Replay data set, into a stored buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sb3_compressed.cli.output import Json, is_terminal, print_result

__all__ = ["import_"]


def import_(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Folder of Dopamine's files, such as $store$_observation_ckpt.0.gz.",
            show_default=False,
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the buffer.", show_default=False)],
    checkpoints: Annotated[
        list[int] | None, typer.Option("--checkpoint", help="Number of a checkpoint to import; may be repeated. [all]")
    ] = None,
    frame_stack: Annotated[int, typer.Option(help="Number of frames of an observation.")] = 4,
    padding: Annotated[
        int | None, typer.Option(help="Rows of zeros before each episode in the files. [frame stack - 1]")
    ] = None,
    n_actions: Annotated[
        int | None, typer.Option(help="Number of actions of the game. [largest one in the files, plus one]")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of transitions after which to stop.")] = None,
    codec: Annotated[str, typer.Option(help="Codec of the buffer.")] = "auto",
    as_json: Json = False,
) -> None:
    """Import checkpoints of Dopamine's replay buffer, such as the DQN Replay data set, into a new folder."""
    from sb3_compressed.datasets import import_dopamine

    buffer = import_dopamine(
        path,
        checkpoints=checkpoints,
        frame_stack=frame_stack,
        n_padding=padding,
        n_actions=n_actions,
        n_steps=steps,
        progress_bar=is_terminal(),
        compression_method=codec,
        storage=folder,
        device="cpu",
    )
    n_steps, shape = buffer.size(), buffer.observation_space.shape
    n_episodes = int(buffer.dones[:n_steps].sum())
    buffer.close()  # type: ignore[attr-defined]
    nbytes = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    result = {
        "path": path,
        "folder": folder,
        "steps": n_steps,
        "episodes": n_episodes,
        "observation_shape": shape,
        "n_actions": int(buffer.action_space.n),  # type: ignore[attr-defined]
        "nbytes": nbytes,
    }
    line = (
        f"{folder}: {n_steps:,} transitions of {n_episodes:,} episodes, {nbytes / 1e6:,.1f} MB on disk, "
        f"{nbytes / n_steps:,.0f} bytes each"
    )
    print_result(result, line, as_json=as_json)

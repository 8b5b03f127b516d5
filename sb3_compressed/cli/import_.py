"""``sb3-compressed import``: import the replay data of Dopamine into a stored buffer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sb3_compressed.cli.output import Json, is_terminal, print_result
from sb3_compressed.cli.sources import expand_user
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.files import UNFINISHED

__all__ = ["import_"]

InputPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="Folder of Dopamine's files, such as $store$_observation_ckpt.0.gz.",
        show_default=False,
        callback=expand_user,
    ),
]
NewFolder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="New folder for the buffer.", show_default=False, callback=expand_user),
]
NActions = Annotated[
    int | None, typer.Option(help="Number of discrete actions; by default the largest one in the files, plus one.")
]
Checkpoints = Annotated[
    list[int] | None,
    typer.Option("--checkpoint", help="Number of a checkpoint to import; may be repeated. By default all."),
]
Padding = Annotated[
    int | None,
    typer.Option(help="Rows of zeros before each episode in the files; by default frame stack - 1."),
]


def import_(
    path: InputPath,
    folder: NewFolder,
    frame_stack: Annotated[int, typer.Option(help="Number of frames of an observation.")] = 4,
    n_actions: NActions = None,
    steps: Annotated[int | None, typer.Option(help="Number of transitions after which to stop.")] = None,
    codec: Annotated[str, typer.Option(help="Codec of the buffer.")] = "auto",
    checkpoints: Checkpoints = None,
    padding: Padding = None,
    as_json: Json = False,
) -> None:
    """Import checkpoints of Dopamine, such as the DQN Replay data set, into a new folder."""
    from sb3_compressed.datasets import import_dopamine

    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    with _unfinished(folder) as unfinished:
        buffer: Any = import_dopamine(
            path,
            checkpoints=checkpoints,
            frame_stack=frame_stack,
            n_padding=padding,
            n_actions=n_actions,
            n_steps=steps,
            progress_bar=is_terminal(),
            compression_method=codec,
            device="cpu",
            storage=unfinished,
            storage_mode="overwrite",  # of what a killed import has left
        )
        n_steps = buffer.size()
        result = {
            "steps": n_steps,
            "episodes": int(buffer.dones[:n_steps].sum()),
            "observation_shape": buffer.observation_space.shape,
            "n_actions": int(buffer.action_space.n),
        }
        buffer.close()
    nbytes = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    line = (
        f"{folder}: {result['steps']:,} transitions of {result['episodes']:,} episodes, {nbytes / 1e6:,.1f} MB on "
        f"disk, {nbytes / result['steps']:,.0f} bytes each"
    )
    print_result({"path": path, "folder": folder, **result, "nbytes": nbytes}, line, as_json=as_json)


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """Yield a folder that gets its name at the end, so that no part of a data set is taken for all of it.

    :raises StorageError: if there is something in the folder
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise StorageError(f"{folder} exists already; pass a new folder")
    unfinished = folder.with_name(f"{folder.name}.{UNFINISHED}")
    yield unfinished
    if folder.exists():
        folder.rmdir()
    unfinished.rename(folder)

"""``sb3-compressed import``: import data sets of other libraries, Dopamine and d3rlpy, into a stored buffer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sb3_compressed.cli.output import Json, is_terminal, print_result
from sb3_compressed.cli.sources import expand_user
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.files import UNFINISHED

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["import_"]

DOPAMINE, D3RLPY = "Dopamine", "d3rlpy"


def import_(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Folder of Dopamine's files, such as $store$_observation_ckpt.0.gz; or an HDF5 file of d3rlpy.",
            show_default=False,
            callback=expand_user,
        ),
    ],
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="New folder for the buffer.", show_default=False, callback=expand_user),
    ],
    frame_stack: Annotated[
        int | None,
        typer.Option(
            help="Number of frames of an observation; 4 for Dopamine, and as exported or 1 for d3rlpy, by default."
        ),
    ] = None,
    n_actions: Annotated[
        int | None, typer.Option(help="Number of discrete actions; by default the largest one in the files, plus one.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of transitions after which to stop.")] = None,
    codec: Annotated[str, typer.Option(help="Codec of the buffer.")] = "auto",
    checkpoints: Annotated[
        list[int] | None,
        typer.Option(
            "--checkpoint",
            help="Number of a checkpoint to import; may be repeated. By default all.",
            rich_help_panel=DOPAMINE,
        ),
    ] = None,
    padding: Annotated[
        int | None,
        typer.Option(
            help="Rows of zeros before each episode in the files; by default frame stack - 1.", rich_help_panel=DOPAMINE
        ),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", help="Key for each part of tuples, repeated in their order.", rich_help_panel=D3RLPY),
    ] = None,
    action_range: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Lowest and highest continuous action; by default as exported, or -1 and 1.",
            metavar="LOW HIGH",
            rich_help_panel=D3RLPY,
        ),
    ] = None,
    scale_actions: Annotated[
        bool,
        typer.Option(
            "--scale-actions", help="Scale continuous actions to [-1, 1], as SB3 does.", rich_help_panel=D3RLPY
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Import checkpoints of Dopamine, such as the DQN Replay data set, or a file of d3rlpy into a new folder."""
    from sb3_compressed.datasets import import_d3rlpy, import_dopamine

    options: dict[str, Any] = {"n_actions": n_actions, "n_steps": steps, "progress_bar": is_terminal()}
    options |= {"compression_method": codec, "device": "cpu"}
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    with _unfinished(folder) as unfinished:
        options |= {"storage": unfinished, "storage_mode": "overwrite"}  # what a killed import has left
        if path.is_file():
            _refuse(D3RLPY, {"--checkpoint": checkpoints, "--padding": padding})
            of_d3rlpy: dict[str, Any] = {"keys": keys, "action_range": action_range, "scale_actions": scale_actions}
            buffer = import_d3rlpy(path, frame_stack=frame_stack, **of_d3rlpy, **options)
        else:
            _refuse(DOPAMINE, {"--key": keys, "--action-range": action_range, "--scale-actions": scale_actions or None})
            n_frames = 4 if frame_stack is None else frame_stack
            buffer = import_dopamine(path, checkpoints=checkpoints, frame_stack=n_frames, n_padding=padding, **options)
        result = _describe(buffer)
        buffer.close()  # type: ignore[attr-defined]
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
    is_new = not unfinished.exists()  # otherwise, another process may be writing it
    try:
        yield unfinished
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    except BaseException:
        if is_new:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _refuse(kind: str, options: dict[str, Any]) -> None:
    """Raise if options were passed that are for files of the other library.

    :raises typer.BadParameter: with the first of them
    """
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"{name} is not for files of {kind}")


def _describe(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return what the imported buffer contains, as JSON values."""
    n_steps, space = buffer.size(), buffer.observation_space
    parts = getattr(space, "spaces", None)
    shape = space.shape if parts is None else {key: part.shape for key, part in parts.items()}
    return {
        "steps": n_steps,
        "episodes": int(buffer.dones[:n_steps].sum()),
        "observation_shape": shape,
        "n_actions": int(buffer.action_space.n) if hasattr(buffer.action_space, "n") else None,
    }

"""``sb3-compressed import``: import data sets of other libraries, Dopamine and d3rlpy, into a stored buffer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sb3_compressed.cli.output import Json, is_terminal, print_result, refuse_options
from sb3_compressed.cli.sources import expand_user
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.files import UNFINISHED

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["import_"]

DOPAMINE, D3RLPY = "Dopamine", "d3rlpy"


InputPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="Folder of Dopamine's files, such as $store$_observation_ckpt.0.gz; or an HDF5 file of d3rlpy.",
        show_default=False,
        callback=expand_user,
    ),
]
NewFolder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="New folder for the buffer.", show_default=False, callback=expand_user),
]
FrameStack = Annotated[
    int | None,
    typer.Option(
        help="Number of frames of an observation; 4 for Dopamine, and as exported or 1 for d3rlpy, by default."
    ),
]
NActions = Annotated[
    int | None, typer.Option(help="Number of discrete actions; by default the largest one in the files, plus one.")
]
Checkpoints = Annotated[
    list[int] | None,
    typer.Option(
        "--checkpoint",
        help="Number of a checkpoint to import; may be repeated. By default all.",
        rich_help_panel=DOPAMINE,
    ),
]
Padding = Annotated[
    int | None,
    typer.Option(
        help="Rows of zeros before each episode in the files; by default frame stack - 1.", rich_help_panel=DOPAMINE
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", help="Key for each part of tuples, repeated in their order.", rich_help_panel=D3RLPY),
]
ActionRange = Annotated[
    tuple[float, float] | None,
    typer.Option(
        help="Lowest and highest continuous action; by default as exported, or -1 and 1.",
        metavar="LOW HIGH",
        rich_help_panel=D3RLPY,
    ),
]
ScaleActions = Annotated[
    bool,
    typer.Option("--scale-actions", help="Scale continuous actions to [-1, 1], as SB3 does.", rich_help_panel=D3RLPY),
]


def import_(
    path: InputPath,
    folder: NewFolder,
    frame_stack: FrameStack = None,
    n_actions: NActions = None,
    steps: Annotated[int | None, typer.Option(help="Number of transitions after which to stop.")] = None,
    codec: Annotated[str, typer.Option(help="Codec of the buffer.")] = "auto",
    checkpoints: Checkpoints = None,
    padding: Padding = None,
    keys: Keys = None,
    action_range: ActionRange = None,
    scale_actions: ScaleActions = False,
    as_json: Json = False,
) -> None:
    """Import checkpoints of Dopamine, such as the DQN Replay data set, or a file of d3rlpy into a new folder."""
    of_dopamine: dict[str, Any] = {"--checkpoint": checkpoints, "--padding": padding}
    of_d3rlpy = {"--key": keys, "--action-range": action_range, "--scale-actions": scale_actions or None}
    options: dict[str, Any] = {"n_actions": n_actions, "n_steps": steps, "progress_bar": is_terminal()}
    options |= {"compression_method": codec, "device": "cpu"}
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_file():
        refuse_options(of_dopamine, f"is not for files of {D3RLPY}")
        options |= {"frame_stack": frame_stack, "keys": keys, "action_range": action_range}
        options |= {"scale_actions": scale_actions}
    else:
        refuse_options(of_d3rlpy, f"is not for files of {DOPAMINE}")
        options |= {"frame_stack": 4 if frame_stack is None else frame_stack}
        options |= {"checkpoints": checkpoints, "n_padding": padding}
    result = _import(path, folder, options)
    nbytes = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    line = (
        f"{folder}: {result['steps']:,} transitions of {result['episodes']:,} episodes, {nbytes / 1e6:,.1f} MB on "
        f"disk, {nbytes / result['steps']:,.0f} bytes each"
    )
    print_result({"path": path, "folder": folder, **result, "nbytes": nbytes}, line, as_json=as_json)


def _import(path: Path, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Import a file or a folder into a new folder, and describe the buffer there."""
    from sb3_compressed.datasets import import_d3rlpy, import_dopamine

    with _unfinished(folder) as unfinished:
        importer = import_d3rlpy if path.is_file() else import_dopamine
        # An unfinished folder is what a killed import has left.
        buffer = importer(path, storage=unfinished, storage_mode="overwrite", **options)
        result = _describe(buffer)
        buffer.close()  # type: ignore[attr-defined]
    return result


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

"""What the path of a command leads to: one place for all commands.

It may be the folder of a buffer, a checkpoint of ``BufferCheckpointCallback``, the folder of several of these, or a
file that ``save_replay_buffer`` of SB3 wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sb3_compressed.cli.output import note
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.log import NAME, has_log

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["Place", "Source", "Unpickle", "find", "opened"]

Source = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="The folder of a buffer (storage=<folder> or save_checkpoint), a checkpoint step_... of "
        "BufferCheckpointCallback, the folder of these, of which the latest is taken, or a pickle that "
        "save_replay_buffer wrote.",
        show_default=False,
    ),
]
Unpickle = Annotated[
    bool,
    typer.Option(
        "--unpickle", help="Open the file if it is a pickle. A pickle can run any code: only if you trust it."
    ),
]


@dataclass(frozen=True)
class Place:
    """Where a buffer is.

    :param path: its folder, or the file that it is pickled in
    :param is_pickle: whether it is such a file
    :param checkpoint: the checkpoint that it is a part of, with a model
    """

    path: Path
    is_pickle: bool = False
    checkpoint: Path | None = None


def find(path: Path) -> Place:
    """Return where the buffer is to which a path leads, and say so if there was a choice.

    :raises StorageError: if there is none; the message says what there is instead
    """
    if path.is_file():
        return _file(path)
    if not path.exists():
        others = sorted(other.name for other in path.parent.glob(f"{path.name}.*")) if path.parent.is_dir() else []
        raise StorageError(f"there is no {path}" + (f"; is it {path.parent / others[0]}?" if others else ""))
    if has_log(path):
        return Place(path)
    if has_log(path / "buffer"):
        return Place(path / "buffer", checkpoint=path)
    return _latest(path)


def _file(path: Path) -> Place:
    from sb3_compressed.persistence.pickles import is_pickle

    if is_pickle(path):
        return Place(path, is_pickle=True)
    if NAME.fullmatch(path.name):
        raise StorageError(f"{path} is one file of a buffer; name its folder, {path.parent}")
    if path.name == "model.zip" and has_log(path.parent / "buffer"):
        raise StorageError(f"{path} is the model of a checkpoint; name its folder, {path.parent}")
    raise StorageError(f"{path} is neither a folder nor a pickle")


def _latest(path: Path) -> Place:
    from sb3_compressed.callbacks.checkpoint_folder import NEWEST, UNFINISHED, latest_checkpoint

    latest = latest_checkpoint(path, missing_ok=True)
    if latest is not None:
        n_others = len([*path.glob("step_*/model.zip")]) - 1
        note(f"{path}: the latest checkpoint is {latest.name}" + (f", of {n_others + 1}" if n_others else ""))
        return Place(latest / "buffer", checkpoint=latest)
    unfinished = sorted(folder.name for folder in path.glob(f"step_*.{UNFINISHED}"))
    if not unfinished:
        raise StorageError(f"{path} holds no buffer, nor checkpoints of one")
    newest = path / NEWEST
    raise StorageError(
        f"{path} holds no complete checkpoint, only {unfinished[0]} of a process that was ended"
        + (f"; {newest} is what its buffer was then" if has_log(newest) else "")
    )


@contextmanager
def opened(place: Place, *, unpickle: bool) -> Iterator[ReplayBuffer]:
    """Open the buffer of a place to read from it.

    :raises StorageError: if it cannot be opened, or is a pickle and nobody said that it may be
    """
    if place.is_pickle:
        from sb3_compressed.persistence.pickles import unpickled

        if not unpickle:
            raise StorageError(f"{place.path} is a pickle, which can run any code: pass --unpickle if you trust it")
        yield unpickled(place.path)
        return
    from sb3_compressed.persistence.loading import open_to_read

    buffer = open_to_read(place.path)
    try:
        yield buffer
    finally:
        buffer.close()

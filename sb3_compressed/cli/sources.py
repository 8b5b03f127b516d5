"""Find and open the buffer at a path, in the same way for all commands.

The path may be the folder of a buffer, a checkpoint of ``BufferCheckpointCallback``, a folder of such checkpoints, or a
file written by SB3's ``save_replay_buffer``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sb3_compressed.buffers.mixed_checkpoint import MixedManifest, is_mixed, part_folder
from sb3_compressed.callbacks.checkpoint_folder import NEWEST, latest_checkpoint
from sb3_compressed.cli.output import note
from sb3_compressed.common.paths import user_path
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.files import UNFINISHED
from sb3_compressed.storage.log import has_log, is_segment_name

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["BufferSource", "FolderPath", "SourcePath", "Unpickle", "expand_user", "find_source", "open_source"]

FOLDERS = (
    "Folder of a buffer (storage=<folder> or save_checkpoint), a checkpoint step_... of BufferCheckpointCallback, "
    "or a folder of checkpoints (the latest is used)"
)


def expand_user(path: Path | None) -> Path | None:
    """Return an argument or option with ``~`` expanded."""
    return path and user_path(path)


FolderPath = Annotated[
    Path, typer.Argument(metavar="PATH", help=f"{FOLDERS}.", show_default=False, callback=expand_user)
]
SourcePath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help=f"{FOLDERS}; or a pickle of save_replay_buffer.",
        show_default=False,
        callback=expand_user,
    ),
]
Unpickle = Annotated[
    bool,
    typer.Option("--unpickle", help="Open PATH if it is a pickle. Unpickling can run any code: only if you trust it."),
]


@dataclass(frozen=True)
class BufferSource:
    """Location of a stored buffer.

    :param path: folder, or pickle file
    :param is_pickle: whether it is a pickle file
    :param checkpoint: the checkpoint, of a model and a buffer, that it belongs to
    """

    path: Path
    is_pickle: bool = False
    checkpoint: Path | None = None


def find_source(path: Path) -> BufferSource:
    """Return the buffer at a path; of several checkpoints the latest, which is printed.

    :raises StorageError: if there is none; the message describes what is there instead
    """
    if path.is_file():
        return _find_file(path)
    if not path.exists():
        others = sorted(other.name for other in path.parent.glob(f"{path.name}.*")) if path.parent.is_dir() else []
        raise StorageError(f"{path} does not exist" + (f"; did you mean {path.parent / others[0]}?" if others else ""))
    if has_log(path):
        return BufferSource(path)
    if has_log(path / "buffer"):
        return BufferSource(path / "buffer", checkpoint=path)
    _require_one_buffer(path)
    return _find_latest(path)


def _require_one_buffer(path: Path) -> None:
    """Raise if a folder or checkpoint contains a distributed or a mixed buffer, which consist of several buffers."""
    for folder in (path, path / "buffer"):
        if is_mixed(folder):
            part = part_folder(folder, MixedManifest.read(folder).first_part)
            raise StorageError(f"{path} contains a mixed buffer; pass the folder of a part, such as {part}")
    patterns = ("ring-*", "*/ring-*", "buffer/*/ring-*")
    rings = sorted(ring for pattern in patterns for ring in path.glob(pattern) if has_log(ring))
    if rings:
        raise StorageError(f"{path} contains a distributed buffer; pass the folder of a ring, such as {rings[0]}")


def _find_file(path: Path) -> BufferSource:
    from sb3_compressed.persistence.pickled_buffers import is_pickle

    if is_pickle(path):
        return BufferSource(path, is_pickle=True)
    if is_segment_name(path.name):
        raise StorageError(f"{path} is one file of a buffer; pass its folder, {path.parent}")
    if path.name == "model.zip" and has_log(path.parent / "buffer"):
        raise StorageError(f"{path} is the model of a checkpoint; pass its folder, {path.parent}")
    raise StorageError(f"{path} is neither a folder nor a pickle")


def _find_latest(path: Path) -> BufferSource:
    latest = latest_checkpoint(path, missing_ok=True)
    if latest is not None:
        _require_one_buffer(latest)
        n_checkpoints = len([*path.glob("step_*/model.zip")])
        note(f"{path}: using the latest checkpoint, {latest.name}" + (f", of {n_checkpoints}" * (n_checkpoints > 1)))
        return BufferSource(latest / "buffer", checkpoint=latest)
    unfinished = sorted(folder.name for folder in path.glob(f"step_*.{UNFINISHED}"))
    if not unfinished:
        raise StorageError(f"{path} contains neither a buffer nor checkpoints")
    newest = path / NEWEST
    raise StorageError(
        f"{path} contains no complete checkpoint, only {unfinished[0]} of an interrupted save"
        + (f"; its buffer at that time is {newest}" if has_log(newest) else "")
    )


@contextmanager
def open_source(source: BufferSource, *, unpickle: bool) -> Iterator[ReplayBuffer]:
    """Open a stored buffer for reading.

    :raises StorageError: if it cannot be opened, or is a pickle and ``unpickle`` is false
    """
    if source.is_pickle:
        from sb3_compressed.persistence.pickled_buffers import load_pickled_buffer

        if not unpickle:
            raise StorageError(
                f"{source.path} is a pickle, and unpickling can run any code: pass --unpickle if you trust it"
            )
        yield load_pickled_buffer(source.path)
        return
    from sb3_compressed.buffers.loading import open_to_read

    buffer = open_to_read(source.path)
    try:
        yield buffer
    finally:
        buffer.close()

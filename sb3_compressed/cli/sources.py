"""Find and open the buffer at a path, in the same way for all commands.

The path may be the folder of a buffer, a checkpoint of ``BufferCheckpointCallback``, or a folder of such checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sb3_compressed.buffers.mixed_checkpoint import is_mixed, part_folder
from sb3_compressed.callbacks.checkpoint_folder import NEWEST, latest_checkpoint
from sb3_compressed.cli.output import note
from sb3_compressed.common.paths import user_path
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.files import UNFINISHED
from sb3_compressed.storage.log import has_log, is_segment_name

__all__ = ["BufferSource", "SourcePath", "find_source"]

SourcePath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="Folder of a buffer (storage=<folder> or save_checkpoint), a checkpoint step_... of "
        "BufferCheckpointCallback, or a folder of checkpoints (the latest is used).",
        show_default=False,
        callback=user_path,
    ),
]


@dataclass(frozen=True)
class BufferSource:
    """Location of a stored buffer.

    :param path: folder
    :param checkpoint: the checkpoint, of a model and a buffer, that it belongs to
    """

    path: Path
    checkpoint: Path | None = None


def find_source(path: Path) -> BufferSource:
    """Return the buffer at a path; of several checkpoints the latest, which is printed.

    :raises StorageError: if there is none; the message describes what is there instead
    """
    if path.is_file():
        raise StorageError(_advice_on_file(path))
    if not path.exists():
        raise StorageError(f"{path} does not exist")
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
            raise StorageError(
                f"{path} contains a mixed buffer; pass the folder of a part, such as {part_folder(folder, 0)}"
            )
    patterns = ("ring-*", "*/ring-*", "buffer/*/ring-*")
    rings = sorted(ring for pattern in patterns for ring in path.glob(pattern) if has_log(ring))
    if rings:
        raise StorageError(f"{path} contains a distributed buffer; pass the folder of a ring, such as {rings[0]}")


def _advice_on_file(path: Path) -> str:
    """Return the error for a file, with the folder to pass instead."""
    if is_segment_name(path.name):
        return f"{path} is one file of a buffer; pass its folder, {path.parent}"
    if path.name == "model.zip" and has_log(path.parent / "buffer"):
        return f"{path} is the model of a checkpoint; pass its folder, {path.parent}"
    return (
        f"{path} is a file, and buffers are stored in folders. If it is a pickle of save_replay_buffer that you trust, "
        "load it in Python, and pass the buffer to sb3_compressed.buffer_statistics"
    )


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

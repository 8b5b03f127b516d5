"""Find and open the buffer at a path, in the same way for all commands.

The path may be the folder of a buffer, a checkpoint of ``BufferCheckpointCallback``, or a folder of such checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sb3_compressed.callbacks.checkpoint_folder import latest_checkpoint
from sb3_compressed.cli.output import note
from sb3_compressed.common.paths import user_path
from sb3_compressed.storage.log_files import has_log

__all__ = ["SourcePath", "find_source"]

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


def find_source(path: Path) -> Path:
    """Return the folder of the buffer at a path; of several checkpoints that of the latest, which is printed.

    :raises StorageError: if there is none; the message describes what is there instead
    """
    from sb3_compressed.buffers.buffer_from_store import require_buffer_folder  # imports PyTorch and SB3

    if path.is_dir() and not has_log(path):
        latest = latest_checkpoint(path, missing_ok=True)
        if latest is not None:
            note(f"{path}: using the latest checkpoint, {latest.name}")
            path = latest
        if (path / "buffer").is_dir():
            path /= "buffer"
    require_buffer_folder(path)
    return path

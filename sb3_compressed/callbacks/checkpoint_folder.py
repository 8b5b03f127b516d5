"""The folder of a :class:`BufferCheckpointCallback`, and its complete checkpoints.

It contains

- ``lock``, which is locked while a run trains;
- checkpoints ``step_<number of steps>``, each with a ``checkpoint.json``: its sequence number and its number of steps;
- ``newest-buffer``, or ``newest-buffer-<number>`` for each part of a mixed buffer, and folders ``*.unfinished`` of
  killed processes.

``checkpoint.json`` has a checksum.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, overload

from sb3_compressed.common.paths import user_path
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import CheckpointNotFound, CorruptStorage, old_file
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object

__all__ = [
    "MANIFEST_NAME",
    "NEWEST",
    "REPLACED",
    "SavedCheckpoint",
    "latest_checkpoint",
    "list_checkpoints",
    "write_manifest",
]

#: Suffix of a checkpoint that is being replaced, which is valid until its replacement is complete.
REPLACED = ".replaced"
CHECKPOINT_NAME = re.compile(r"step_([0-9]{10,})(\.replaced)?")
#: The latest state of a buffer in memory, which every save updates incrementally.
NEWEST = "newest-buffer"
#: Metadata of a checkpoint.
MANIFEST_NAME = "checkpoint.json"
VERSION = 1
MANIFEST_SCHEMA = {
    "version": range(VERSION, VERSION + 1),
    "number": range(1, 1 << 63),
    "num_timesteps": range(1 << 63),
}


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint.

    :param folder: its folder
    :param number: its sequence number in the folder; the checkpoint saved last has the highest
    :param num_timesteps: number of steps of the model
    """

    folder: Path
    number: int
    num_timesteps: int


@overload
def latest_checkpoint(path: str | PathLike[str], *, missing_ok: Literal[False] = ...) -> Path: ...


@overload
def latest_checkpoint(path: str | PathLike[str], *, missing_ok: bool) -> Path | None: ...


def latest_checkpoint(path: str | PathLike[str], *, missing_ok: bool = False) -> Path | None:
    """Return the latest complete checkpoint of a :class:`BufferCheckpointCallback`.

    It is safe to call this while a training saves to the folder. Damaged checkpoints are skipped with a warning.

    :param path: the folder of the checkpoints
    :param missing_ok: whether to return ``None`` if the folder does not exist or has no checkpoint yet, for scripts
        that both start and resume a run
    :raises CheckpointNotFound: if there is none; a ``FileNotFoundError`` and a ``StorageError``
    :raises CorruptStorage: if all checkpoints are damaged, even with ``missing_ok=True``
    :raises StorageError: if a version before 0.5.0 has written one
    """
    folder = user_path(path)
    if not folder.is_dir():
        if missing_ok and not folder.exists():
            return None
        raise CheckpointNotFound(f"there is no folder {folder}")
    checkpoints, damaged = list_checkpoints(folder)
    if checkpoints:
        return checkpoints[-1].folder
    if damaged:
        names = ", ".join(each.name for each in damaged)
        raise CorruptStorage(f"all checkpoints in {folder} are damaged: {names}")
    if missing_ok:
        return None
    raise CheckpointNotFound(f"{folder} contains no complete checkpoint; pass missing_ok=True to get None instead")


def list_checkpoints(path: Path) -> tuple[list[SavedCheckpoint], list[Path]]:
    """Return the complete checkpoints in the order they were saved, and the damaged ones.

    Each damaged one, which may also be an unrelated folder of the same name, is a warning.
    """
    checkpoints: list[SavedCheckpoint] = []
    damaged: dict[Path, Exception] = {}
    for folder in sorted(each for each in path.iterdir() if CHECKPOINT_NAME.fullmatch(each.name)):
        try:
            checkpoints.append(_read_checkpoint(folder))
        except (OSError, CorruptStorage) as error:  # noqa: PERF203  # rare
            if not os.path.lexists(folder):
                return list_checkpoints(path)  # a run has deleted it, and may have saved another one before
            damaged[folder] = error
    for folder, reason in damaged.items():
        warn_user(f"skipping {folder}, which is damaged or not a checkpoint: {reason}")
    return sorted(checkpoints, key=lambda each: (each.number, each.num_timesteps)), list(damaged)


def _read_checkpoint(folder: Path) -> SavedCheckpoint:
    name = CHECKPOINT_NAME.fullmatch(folder.name)
    assert name is not None
    path = folder / MANIFEST_NAME
    values = without_checksum(read_object(path), path)
    if "version" not in values:
        raise old_file(str(path))
    js.check(MANIFEST_SCHEMA, values, str(path))
    if values["num_timesteps"] != int(name[1]):
        raise CorruptStorage(f"{path} belongs to step {values['num_timesteps']}")
    if not (folder / "model.zip").is_file() or not (folder / "buffer").is_dir():
        raise CorruptStorage(f"{folder} lacks model.zip or buffer")
    return SavedCheckpoint(folder, values["number"], values["num_timesteps"])


def write_manifest(folder: Path, number: int, num_timesteps: int) -> None:
    """Write the metadata of a checkpoint to its folder."""
    values = {"version": VERSION, "number": number, "num_timesteps": num_timesteps}
    write_object(folder / MANIFEST_NAME, with_checksum(values))

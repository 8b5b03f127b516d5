"""The folder of a :class:`BufferCheckpointCallback`: the run that owns it, and its complete checkpoints.

It contains

- ``run.json`` with the random id of the run that saves to it, and ``lock``, locked while that run trains;
- checkpoints ``step_<number of steps>``, each with a ``checkpoint.json``: its sequence number, its number of steps and
  the id of its run;
- ``newest-buffer``, or ``newest-buffer-<number>`` for each part of a mixed buffer, and folders ``*.unfinished`` of
  killed processes.

Both JSON files have a checksum.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

from sb3_compressed.common.paths import user_path
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import CheckpointNotFound, CorruptStorage
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object

__all__ = [
    "MANIFEST_NAME",
    "NEWEST",
    "REPLACED",
    "SavedCheckpoint",
    "latest_checkpoint",
    "list_checkpoints",
    "read_run",
    "write_manifest",
    "write_run",
]

#: Suffix of a checkpoint that is being replaced, which is valid until its replacement is complete.
REPLACED = ".replaced"
CHECKPOINT_NAME = re.compile(r"step_([0-9]{10,})(\.replaced)?")
#: The latest state of a buffer in memory, which every save updates incrementally.
NEWEST = "newest-buffer"
#: Metadata of a checkpoint.
MANIFEST_NAME = "checkpoint.json"
MANIFEST_SCHEMA = {"number": range(1, 1 << 63), "num_timesteps": range(1 << 63), "run": str}
#: Metadata of the folder.
RUN = "run.json"
RUN_SCHEMA = {"run": str}


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint.

    :param folder: its folder
    :param number: its sequence number in the folder; the checkpoint saved last has the highest
    :param num_timesteps: number of steps of the model
    :param run: id of its run
    """

    folder: Path
    number: int
    num_timesteps: int
    run: str


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
    """
    folder = user_path(path)
    if not folder.is_dir():
        if missing_ok and not folder.exists():
            return None
        raise CheckpointNotFound(f"there is no folder {folder}")
    checkpoints, damaged = list_checkpoints(folder)
    run = read_run(folder)
    own = [each for each in checkpoints if run in (None, each.run)]
    if own:
        return own[-1].folder
    if damaged:
        names = ", ".join(each.name for each in damaged)
        raise CorruptStorage(f"all checkpoints in {folder} are damaged: {names}")
    if missing_ok:
        return None
    others = f", only {', '.join(each.folder.name for each in checkpoints)} of earlier runs" if checkpoints else ""
    raise CheckpointNotFound(
        f"{folder} contains no complete checkpoint of its run{others}; pass missing_ok=True to get None instead"
    )


def list_checkpoints(path: Path) -> tuple[list[SavedCheckpoint], list[Path]]:
    """Return the complete checkpoints of all runs in the order they were saved, and the damaged ones.

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
    values = _read(folder / MANIFEST_NAME, MANIFEST_SCHEMA)
    if values["num_timesteps"] != int(name[1]):
        raise CorruptStorage(f"{folder / MANIFEST_NAME} belongs to step {values['num_timesteps']}")
    if not (folder / "model.zip").is_file() or not (folder / "buffer").is_dir():
        raise CorruptStorage(f"{folder} lacks model.zip or buffer")
    return SavedCheckpoint(folder, values["number"], values["num_timesteps"], values["run"])


def write_manifest(folder: Path, number: int, num_timesteps: int, run: str) -> None:
    """Write the metadata of a checkpoint to its folder."""
    values = {"number": number, "num_timesteps": num_timesteps, "run": run}
    write_object(folder / MANIFEST_NAME, with_checksum(values))


def read_run(path: Path) -> str | None:
    """Return the id of the run that owns a folder, ``None`` if there is none or, with a warning, if it is damaged."""
    try:
        run: str = _read(path / RUN, RUN_SCHEMA)["run"]
    except FileNotFoundError:
        return None
    except (OSError, CorruptStorage) as error:
        warn_user(f"ignoring {path / RUN}, which is damaged: {error}")
        return None
    return run


def write_run(path: Path, run: str) -> None:
    """Write the id of the run that owns a folder, atomically."""
    write_object(path / RUN, with_checksum({"run": run}))


def _read(path: Path, schema: Any) -> dict[str, Any]:
    """Return the object in a JSON file.

    :raises OSError: if it cannot be opened
    :raises CorruptStorage: if it is not a regular file, too large, damaged, or not as in the schema
    """
    values = without_checksum(read_object(path), path)
    js.check(schema, values, str(path))
    return values

"""The folder of a :class:`BufferCheckpointCallback`: the run that owns it, and its complete checkpoints.

It contains

- ``run.json`` with the random id of the run that saves to it, and ``lock``, locked while that run trains;
- checkpoints ``step_<number of steps>``, each with a ``checkpoint.json``: its sequence number, its number of steps and
  the id of its run;
- ``newest-buffer``, and folders ``*.unfinished`` of killed processes.

Both JSON files have a checksum. Version 0.1 wrote ``checkpoint.json`` without run and checksum, and no ``run.json``.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

from sb3_compressed.common.paths import user_path
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import CheckpointNotFound, CorruptStorage
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.files import UNFINISHED, flush_path, open_regular_file

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
MANIFEST_SCHEMA = {"number": range(1, 1 << 63), "num_timesteps": range(1 << 63), "run": js.optional(str)}
#: Metadata of the folder.
RUN = "run.json"
RUN_SCHEMA = {"run": str}
#: Version 0.1 wrote neither run nor checksum.
VERSION_0_1_KEYS = {"number", "num_timesteps"}

#: Size limit of both files.
MAX_NBYTES = 4096
#: How often a folder is listed again because a checkpoint was deleted while it was read.
MAX_TRIES = 100


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint.

    :param folder: its folder
    :param number: its sequence number in the folder; the checkpoint saved last has the highest
    :param num_timesteps: number of steps of the model
    :param run: id of its run, ``None`` for checkpoints of version 0.1
    """

    folder: Path
    number: int
    num_timesteps: int
    run: str | None


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
        raise CheckpointNotFound(f"there is no folder {folder}{_similar_names(folder)}")
    checkpoints, damaged = list_checkpoints(folder)
    run = read_run(folder)
    own = [each for each in checkpoints if run is None or each.run in (run, None)]
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
    for _ in range(MAX_TRIES):  # pragma: no branch  # only if a run deletes a checkpoint during each try
        found = {
            folder: _try_read(folder) for folder in sorted(path.iterdir()) if CHECKPOINT_NAME.fullmatch(folder.name)
        }
        if None not in found.values():
            break
    checkpoints = [each for each in found.values() if isinstance(each, SavedCheckpoint)]
    damaged = {folder: each for folder, each in found.items() if isinstance(each, Exception)}
    for folder, reason in damaged.items():
        warn_user(f"skipping {folder}, which is damaged or not a checkpoint: {reason}")
    return sorted(checkpoints, key=lambda each: (each.number, each.num_timesteps)), list(damaged)


def _try_read(folder: Path) -> SavedCheckpoint | Exception | None:
    """Return a checkpoint, the error of reading it, or ``None`` if its run has just deleted it."""
    try:
        return _read_checkpoint(folder)
    except (OSError, CorruptStorage) as error:
        return error if os.path.lexists(folder) else None


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
    _write(folder / MANIFEST_NAME, {"number": number, "num_timesteps": num_timesteps, "run": run})


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
    unfinished = path / f"{RUN}.{UNFINISHED}"
    unfinished.unlink(missing_ok=True)
    _write(unfinished, {"run": run})
    flush_path(unfinished)
    unfinished.replace(path / RUN)
    flush_path(path)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps({**values, "checksum": _checksum(values)}) + "\n", encoding="ascii")


def _read(path: Path, schema: Any) -> dict[str, Any]:
    """Return the object in a JSON file, ``run`` as ``None`` in those of version 0.1.

    :raises OSError: if it cannot be opened
    :raises CorruptStorage: if it is not a regular file, too large, damaged, or not as in the schema
    """
    with open_regular_file(path) as file:
        content = file.read(MAX_NBYTES + 1)
    if len(content) > MAX_NBYTES:
        raise CorruptStorage(f"{path} has more than {MAX_NBYTES} bytes")
    try:
        values = js.load_json(content)
    except ValueError as error:
        raise CorruptStorage(f"{path} is not JSON: {error}") from None
    js.check(dict, values, str(path))
    if values.keys() == VERSION_0_1_KEYS:
        values["run"] = None
    elif values.pop("checksum", None) != _checksum(values):
        raise CorruptStorage(f"the checksum of {path} is wrong")
    js.check(schema, values, str(path))
    return dict(values)


def _checksum(values: dict[str, Any]) -> str:
    return f"{checksum(json.dumps(values, sort_keys=True).encode()):016x}"


def _similar_names(folder: Path) -> str:
    """Return the end of an error message that suggests folders with similar names."""
    parent = folder.absolute().parent
    if not parent.is_dir():
        return f", and no folder {parent}"
    names = [each.name for each in parent.iterdir() if each.is_dir()]
    similar = difflib.get_close_matches(folder.name, names)
    return f"; did you mean {' or '.join(str(folder.with_name(name)) for name in similar)}?" if similar else ""

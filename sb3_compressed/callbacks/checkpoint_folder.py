"""A folder of checkpoints: the run that it belongs to, and the complete checkpoints in it.

It holds

- ``run.json`` with the random id of the run that saves to it, and ``lock``, locked while that run trains;
- checkpoints ``step_<number of steps>``, each with a ``checkpoint.json``: its sequence number, its number of steps and
  the id of its run;
- ``newest-buffer``, and folders ``*.unfinished`` that a killed process may leave.

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

from sb3_compressed.errors import CheckpointNotFound, CorruptStorage
from sb3_compressed.storage.checksum import checksum
from sb3_compressed.storage.files import flush_path, open_regular_file
from sb3_compressed.storage.json_schema import load_json
from sb3_compressed.warning import warn_user

__all__ = [
    "MANIFEST",
    "NEWEST",
    "REPLACED",
    "UNFINISHED",
    "UNFINISHED_NAME",
    "SavedCheckpoint",
    "latest_checkpoint",
    "list_checkpoints",
    "read_run",
    "write_manifest",
    "write_run",
]

#: A checkpoint that is replaced counts until the one in its place is there.
REPLACED = ".replaced"
NAME = re.compile(r"step_([0-9]{10,})(\.replaced)?")
UNFINISHED = "unfinished"
UNFINISHED_NAME = re.compile(rf"step_[0-9]{{10,}}(\.deleted)?\.{UNFINISHED}")
#: The newest state of a buffer in memory, to which every save adds what changed.
NEWEST = "newest-buffer"
#: Metadata of a checkpoint, including its sequence number among all that were saved to its folder.
MANIFEST = "checkpoint.json"
#: Metadata of the folder.
RUN = "run.json"

#: Larger files are none of ours.
MAX_NBYTES = 4096
#: How often a folder is listed again because a checkpoint was deleted while it was read.
MAX_TRIES = 100


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint.

    :param folder: where it is
    :param number: its sequence number; the checkpoint saved last has the highest
    :param num_timesteps: the model's number of steps
    :param run: the id of its run, ``None`` for one of version 0.1
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
    """Return the checkpoint that a :class:`BufferCheckpointCallback` completed last.

    It can be called while a training saves to the folder. Damaged checkpoints are skipped with a warning.

    :param path: the folder of the checkpoints
    :param missing_ok: whether to return ``None`` if there is no checkpoint yet, or no such folder: for scripts that
        start a run and continue it
    :raises CheckpointNotFound: if there is none; a ``FileNotFoundError`` and a ``StorageError``
    :raises CorruptStorage: if there are only damaged ones, whatever ``missing_ok`` is
    """
    folder = Path(path)
    if not folder.is_dir():
        if missing_ok and not folder.exists():
            return None
        raise CheckpointNotFound(f"there is no folder {folder}{_similar_names(folder)}")
    checkpoints, damaged = list_checkpoints(folder)
    run = read_run(folder)
    of_run = [each for each in checkpoints if run is None or each.run in (run, None)]
    if of_run:
        return of_run[-1].folder
    if damaged:
        names = ", ".join(each.name for each in damaged)
        raise CorruptStorage(f"{folder} holds no checkpoint that can be read, only {names}")
    if missing_ok:
        return None
    others = f", only of runs before it: {', '.join(each.folder.name for each in checkpoints)}" if checkpoints else ""
    raise CheckpointNotFound(
        f"{folder} holds no complete checkpoint of its run{others}; pass missing_ok=True to get None instead"
    )


def list_checkpoints(path: Path) -> tuple[list[SavedCheckpoint], list[Path]]:
    """Return the complete checkpoints of all runs, in the order in which they were saved, and the damaged ones.

    It warns of the latter, which may also be folders of something else.
    """
    for _ in range(MAX_TRIES):
        found = {folder: _try_read(folder) for folder in sorted(path.iterdir()) if NAME.fullmatch(folder.name)}
        if None not in found.values():
            break
    checkpoints = [each for each in found.values() if isinstance(each, SavedCheckpoint)]
    damaged = {folder: each for folder, each in found.items() if isinstance(each, Exception)}
    for folder, reason in damaged.items():
        warn_user(f"skipping the checkpoint {folder}, which is damaged or something else: {reason}")
    return sorted(checkpoints, key=lambda each: (each.number, each.num_timesteps)), list(damaged)


def _try_read(folder: Path) -> SavedCheckpoint | Exception | None:
    """Return a checkpoint, or what is wrong with it, or ``None`` if its run has deleted it meanwhile."""
    try:
        return _read_checkpoint(folder)
    except (OSError, CorruptStorage) as error:
        return error if os.path.lexists(folder) else None


def _read_checkpoint(folder: Path) -> SavedCheckpoint:
    name = NAME.fullmatch(folder.name)
    assert name is not None
    values = _read(folder / MANIFEST)
    if set(values) == {"number", "num_timesteps"}:  # of version 0.1, which wrote no checksum
        values["run"] = None
    else:
        _verify(values, {"number", "num_timesteps", "run"}, folder / MANIFEST)
    number, num_timesteps, run = (values[key] for key in ("number", "num_timesteps", "run"))
    if type(number) is not int or not 0 < number < 2**63 or type(num_timesteps) is not int:
        raise CorruptStorage(f"{folder / MANIFEST} has the number {number!r} and {num_timesteps!r} steps")
    if num_timesteps != int(name[1]) or not (run is None or isinstance(run, str)):
        raise CorruptStorage(f"{folder / MANIFEST} is of {num_timesteps} steps of the run {run!r}")
    if not (folder / "model.zip").is_file() or not (folder / "buffer").is_dir():
        raise CorruptStorage(f"{folder} lacks model.zip or buffer")
    return SavedCheckpoint(folder, number, num_timesteps, run)


def write_manifest(folder: Path, number: int, num_timesteps: int, run: str) -> None:
    """Write the metadata of a checkpoint to its folder."""
    _write(folder / MANIFEST, {"number": number, "num_timesteps": num_timesteps, "run": run})


def read_run(path: Path) -> str | None:
    """Return the id of the run that a folder belongs to, ``None`` if it has none, or a damaged one, with a warning."""
    try:
        values = _read(path / RUN)
        _verify(values, {"run"}, path / RUN)
        if not isinstance(values["run"], str):
            raise CorruptStorage(f"{path / RUN} has the run {values['run']!r}")
    except FileNotFoundError:
        return None
    except (OSError, CorruptStorage) as error:
        warn_user(f"ignoring {path / RUN}, which is damaged: {error}")
        return None
    run: str = values["run"]
    return run


def write_run(path: Path, run: str) -> None:
    """Make a folder that of a run, or leave it as it is."""
    unfinished = path / f"{RUN}.{UNFINISHED}"
    unfinished.unlink(missing_ok=True)
    _write(unfinished, {"run": run})
    flush_path(unfinished)
    unfinished.replace(path / RUN)
    flush_path(path)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps({**values, "checksum": _checksum(values)}) + "\n", encoding="ascii")


def _read(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds, however it is damaged.

    :raises OSError: if it cannot be opened
    :raises CorruptStorage: if it is not a regular file, or no JSON object
    """
    with open_regular_file(path) as file:
        content = file.read(MAX_NBYTES + 1)
    if len(content) > MAX_NBYTES:
        raise CorruptStorage(f"{path} has more than {MAX_NBYTES} bytes")
    try:
        values = load_json(content)
    except ValueError as error:
        raise CorruptStorage(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise CorruptStorage(f"{path} is not a JSON object")
    return values


def _verify(values: dict[str, Any], names: set[str], path: Path) -> None:
    """Remove the checksum from what a file holds, and raise if it is wrong or there are other names.

    :raises CorruptStorage: then
    """
    expected = values.pop("checksum", None)
    if set(values) != names or expected != _checksum(values):
        raise CorruptStorage(f"the checksum of {path} is wrong")


def _checksum(values: dict[str, Any]) -> str:
    return f"{checksum(json.dumps(values, sort_keys=True).encode()):016x}"


def _similar_names(folder: Path) -> str:
    """Return a hint at folders of a similar name, as the end of an error message."""
    parent = folder.absolute().parent
    if not parent.is_dir():
        return f", nor {parent}"
    names = [each.name for each in parent.iterdir() if each.is_dir()]
    similar = difflib.get_close_matches(folder.name, names)
    return f"; is it {' or '.join(str(folder.with_name(name)) for name in similar)}?" if similar else ""

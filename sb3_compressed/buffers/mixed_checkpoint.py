"""The checkpoint of a :class:`.MixedReplayBuffer`: a folder with a checkpoint of each buffer, and ``mixed.json``.

That file contains the weights and the classes of the buffers, which are in folders ``part-<number>``. Demonstrations
that are read in place are not copied, and have no class.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object
from sb3_compressed.storage.files import UNFINISHED, flush_path, make_folder_durably

__all__ = ["is_mixed", "new_checkpoint", "part_folder", "read_manifest", "write_manifest"]

MANIFEST_NAME = "mixed.json"
N_BUFFERS = range(1, 257)
SCHEMA = {"version": range(1, 2), "weights": [float, N_BUFFERS], "classes": [js.optional(str), N_BUFFERS]}


def write_manifest(folder: Path, weights: Sequence[float], classes: Sequence[str | None]) -> None:
    """Write what a checkpoint contains besides the buffers, durably and atomically.

    :param weights: the part of each batch that is from each buffer
    :param classes: names of the classes of the buffers, ``None`` for demonstrations that are read in place
    """
    write_object(folder / MANIFEST_NAME, with_checksum({"version": 1, "weights": [*weights], "classes": [*classes]}))


def read_manifest(folder: Path) -> tuple[list[float], list[str | None]]:
    """Return the weights and classes of the buffers of a checkpoint.

    :raises StorageError: if the folder contains no complete checkpoint of a mixed buffer
    :raises CorruptStorage: if the file is damaged
    """
    path = folder / MANIFEST_NAME
    try:
        content = without_checksum(read_object(path), path)
    except FileNotFoundError:
        replaced = replaced_folder(folder)
        hint = f"; a save was killed while it replaced the one in {replaced}" if is_mixed(replaced) else ""
        raise StorageError(f"{folder} contains no complete checkpoint of a mixed buffer{hint}") from None
    try:
        values = js.parse(SCHEMA, content)
    except (ValueError, RecursionError) as error:
        raise CorruptStorage(f"{path}: {error}") from error
    weights, classes = values["weights"], values["classes"]
    if len(weights) != len(classes) or classes[0] is None or min(weights) < 0 or not 0 < sum(weights) < math.inf:
        raise CorruptStorage(f"{path}: no mixed buffer has the weights {weights} and the classes {classes}")
    return weights, classes


def is_mixed(folder: Path) -> bool:
    """Return whether a folder contains the checkpoint of a mixed buffer."""
    return (folder / MANIFEST_NAME).is_file()


def part_folder(folder: Path, number: int) -> Path:
    """Return the folder of a buffer in a checkpoint."""
    return folder / f"part-{number}"


def replaced_folder(folder: Path) -> Path:
    """Return the folder of a checkpoint while another one replaces it."""
    return folder.with_name(f"{folder.name}.replaced")


@contextmanager
def new_checkpoint(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a new folder that gets its name at the end, so that no checkpoint lacks a part.

    :param overwrite: whether it may replace a checkpoint of a mixed buffer
    :raises StorageError: if there is something else in the folder
    """
    is_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_empty and not is_mixed(folder):
        raise StorageError(f"{folder} is not empty, and contains no mixed buffer that could be replaced")
    if not is_empty and not overwrite:
        raise StorageError(f"{folder} contains a mixed buffer: pass overwrite=True to replace it")
    unfinished = folder.with_name(f"{folder.name}.{UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a save that was killed, or has failed
    make_folder_durably(unfinished)
    yield unfinished
    replaced = replaced_folder(folder)
    if not is_empty:
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    elif folder.exists():
        folder.rmdir()
    unfinished.rename(folder)
    flush_path(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)

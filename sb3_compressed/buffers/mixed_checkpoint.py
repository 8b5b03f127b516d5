"""The checkpoint of a :class:`.MixedReplayBuffer`: a folder with a checkpoint of each buffer, and ``mixed.json``.

That file contains the weights and the classes of the buffers, which are in folders ``part-<number>``. Demonstrations
that are read in place are not copied, and have no class.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object

__all__ = ["is_mixed", "part_folder", "read_manifest", "require_no_other_files", "write_manifest"]

MANIFEST_NAME = "mixed.json"
N_BUFFERS = range(1, 257)
SCHEMA = {"version": range(1, 2), "weights": [float, N_BUFFERS], "classes": [js.optional(str), N_BUFFERS]}


def write_manifest(folder: Path, weights: Sequence[float], classes: Sequence[str | None]) -> None:
    """Write what a checkpoint contains besides the buffers, durably and atomically; remove parts that it has not.

    :param weights: the part of each batch that is from each buffer
    :param classes: names of the classes of the buffers, ``None`` for demonstrations that are read in place
    """
    write_object(folder / MANIFEST_NAME, with_checksum({"version": 1, "weights": [*weights], "classes": [*classes]}))
    for part in folder.glob("part-*"):  # of another mixed buffer that was overwritten
        if part not in [part_folder(folder, number) for number, name in enumerate(classes) if name is not None]:
            shutil.rmtree(part)


def read_manifest(folder: Path) -> tuple[list[float], list[str | None]]:
    """Return the weights and classes of the buffers of a checkpoint.

    :raises StorageError: if the folder contains no complete checkpoint of a mixed buffer
    :raises CorruptStorage: if the file is damaged
    """
    path = folder / MANIFEST_NAME
    try:
        content = without_checksum(read_object(path), path)
    except FileNotFoundError:
        raise StorageError(f"{folder} contains no complete checkpoint of a mixed buffer") from None
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


def require_no_other_files(folder: Path) -> None:
    """Raise if a folder contains anything but a mixed buffer, or parts of one whose first save was killed.

    :raises StorageError: then
    """
    names = [each.name for each in folder.iterdir()] if folder.exists() else []
    if not is_mixed(folder) and not all(re.fullmatch(r"part-\d+", name) for name in names):
        raise StorageError(f"{folder} is not empty, and contains no mixed buffer that could be replaced")

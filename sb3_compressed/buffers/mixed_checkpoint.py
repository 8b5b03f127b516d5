"""The checkpoint of a :class:`.MixedReplayBuffer`: a folder with a checkpoint of each buffer, and ``mixed.json``.

That file contains the weights and the classes of the buffers. Demonstrations that are read in place are not
copied, and have no class.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object
from sb3_compressed.storage.files import UNFINISHED, flush_path, make_folder_durably

__all__ = ["MAX_PREFETCH", "MixedManifest", "is_mixed", "part_folder", "write_checkpoint"]

MANIFEST_NAME = "mixed.json"
VERSION = 1
MAX_PREFETCH = 256  # a folder must not fill the memory
N_BUFFERS = range(1, 257)
SCHEMA = {
    "version": range(VERSION, VERSION + 1),
    "weights": [float, N_BUFFERS],
    "classes": [js.optional(str), N_BUFFERS],
    "passes_sampler": bool,
    "prefetch": range(MAX_PREFETCH + 1),
}


@dataclass(frozen=True)
class MixedManifest:
    """What a checkpoint contains besides the buffers.

    :param weights: the part of each batch that is from each buffer
    :param classes: names of the classes of the buffers, ``None`` for demonstrations that are read in place
    :param passes_sampler: whether demonstrations that are read in place have the sampler of the online buffer
    :param prefetch: how many batches are prepared in another thread
    """

    weights: Sequence[float]
    classes: Sequence[str | None]
    passes_sampler: bool
    prefetch: int
    version: int = VERSION

    @classmethod
    def read(cls, folder: Path) -> MixedManifest:
        """Return that of a folder.

        :raises StorageError: if it contains no complete checkpoint of a mixed buffer
        :raises CorruptStorage: if the file is damaged
        """
        path = folder / MANIFEST_NAME
        try:
            values = without_checksum(read_object(path), path)
        except FileNotFoundError:
            raise StorageError(f"{folder} contains no complete checkpoint of a mixed buffer") from None
        try:
            manifest = cls(**js.parse(SCHEMA, values))
        except (ValueError, RecursionError) as error:
            raise CorruptStorage(f"{path}: {error}") from error
        weights, classes = manifest.weights, manifest.classes
        if len(weights) != len(classes) or classes[0] is None or min(weights) < 0 or not 0 < sum(weights) < math.inf:
            raise CorruptStorage(f"{path}: no mixed buffer has the weights {weights} and the classes {classes}")
        return manifest

    def write(self, folder: Path) -> None:
        """Write it to a folder, durably and atomically."""
        write_object(folder / MANIFEST_NAME, with_checksum(asdict(self)))


def is_mixed(folder: Path) -> bool:
    """Return whether a folder contains the checkpoint of a mixed buffer."""
    return (folder / MANIFEST_NAME).is_file()


def part_folder(folder: Path, number: int) -> Path:
    """Return the folder of a buffer in a checkpoint."""
    return folder / f"part-{number}"


def write_checkpoint(folder: Path, write: Callable[[Path], None], *, overwrite: bool) -> None:
    """Write a checkpoint to a new folder, which gets its name when it is complete.

    :param write: writes it to the folder that is passed
    :param overwrite: whether to replace the checkpoint of another mixed buffer, which stays until then
    :raises StorageError: if the folder contains a checkpoint that may not be replaced, or something else
    """
    exists = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if exists and not is_mixed(folder):
        raise StorageError(f"{folder} contains something else; save a mixed buffer to a new or empty folder")
    if exists and not overwrite:
        raise StorageError(f"{folder} contains a mixed buffer; pass overwrite=True to replace it, or another folder")
    unfinished, replaced = (folder.with_name(f"{folder.name}.{suffix}") for suffix in (UNFINISHED, "replaced"))
    for other in (unfinished, replaced):
        if other.exists():
            raise StorageError(f"{other} exists, perhaps from a save that was killed; move or delete it")
    make_folder_durably(unfinished)
    try:
        write(unfinished)
        flush_path(unfinished)
        if exists:
            folder.rename(replaced)
        elif folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
        flush_path(folder.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    if exists:
        shutil.rmtree(replaced)

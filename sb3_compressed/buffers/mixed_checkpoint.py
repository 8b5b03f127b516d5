"""The checkpoint of a :class:`.MixedReplayBuffer`: a folder with a checkpoint of each buffer, and ``mixed.json``.

That file contains the weights and the classes of the buffers, and is written last. Demonstrations that are read in
place are not copied, and have no class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object
from sb3_compressed.storage.files import flush_path, make_folder_durably

__all__ = ["MixedManifest", "begin_checkpoint", "is_mixed", "part_folder"]

MANIFEST_NAME = "mixed.json"
VERSION = 1
N_BUFFERS = range(1, 257)
SCHEMA = {
    "version": range(VERSION, VERSION + 1),
    "id": str,
    "weights": [float, N_BUFFERS],
    "classes": [js.optional(str), N_BUFFERS],
    "prefetch": range(1 << 31),
}
PART_NAME = re.compile(r"part-[0-9]+")


@dataclass(frozen=True)
class MixedManifest:
    """What a checkpoint contains besides the buffers.

    :param id: random id of the buffer that was saved
    :param weights: the part of each batch that is from each buffer
    :param classes: names of the classes of the buffers, ``None`` for demonstrations that are read in place
    :param prefetch: how many batches are prepared in another thread
    """

    id: str
    weights: Sequence[float]
    classes: Sequence[str | None]
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
        if len(weights) != len(classes) or classes[0] is None or min(weights) < 0 or not any(weights):
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


def begin_checkpoint(folder: Path, buffer_id: str, *, overwrite: bool) -> None:
    """Create the folder of a checkpoint, or validate that a buffer may be saved to it.

    A checkpoint of another buffer is not complete any more afterwards, so that nobody loads a part of each.

    :param buffer_id: id of the buffer
    :param overwrite: whether it may replace another mixed buffer
    :raises StorageError: if the folder contains another buffer or other files
    """
    make_folder_durably(folder)
    if is_mixed(folder):
        if _saved_id(folder) == buffer_id:
            return
        if not overwrite:
            raise StorageError(f"{folder} contains another mixed buffer; pass overwrite=True to replace it")
        (folder / MANIFEST_NAME).unlink()
        flush_path(folder)
        return
    others = sorted(path.name for path in folder.iterdir() if not _is_of_unfinished(path.name))
    if others:
        raise StorageError(f"{folder} contains {others[0]}; save a mixed buffer to a new or empty folder")


def _saved_id(folder: Path) -> str | None:
    try:
        return MixedManifest.read(folder).id
    except CorruptStorage:
        return None


def _is_of_unfinished(name: str) -> bool:
    """Return whether a file or folder can be that of a first save which did not end."""
    return PART_NAME.fullmatch(name) is not None or name.startswith(MANIFEST_NAME)

"""The checkpoint of a :class:`.MixedReplayBuffer`: a folder with a checkpoint of each buffer, and ``mixed.json``.

That file contains the weights, and the paths of buffers that are read in place, which are not copied. It is written
last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object
from sb3_compressed.storage.files import make_folder_durably
from sb3_compressed.storage.log import has_log

__all__ = ["MixedManifest", "begin_checkpoint", "is_mixed", "part_folder"]

MANIFEST_NAME = "mixed.json"
NUMBERS = range(1, 1 << 16)
SCHEMA = {"weights": [float, NUMBERS], "folders": [js.optional(str), NUMBERS], "prefetch": range(1 << 16)}


@dataclass(frozen=True)
class MixedManifest:
    """What a checkpoint contains besides the buffers.

    :param weights: the part of each batch that is from each buffer
    :param folders: paths of buffers that are read in place, ``None`` for the others
    :param prefetch: how many batches are prepared in another thread
    """

    weights: Sequence[float]
    folders: Sequence[str | None]
    prefetch: int

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
        js.check(SCHEMA, values, str(path))
        manifest = cls(**js.parse(SCHEMA, values))
        weights, folders = manifest.weights, manifest.folders
        if len(weights) != len(folders) or folders[0] is not None or min(weights) < 0 or not any(weights):
            raise CorruptStorage(f"{path}: no mixed buffer has the weights {weights} and the folders {folders}")
        return manifest

    def write(self, folder: Path) -> None:
        """Write it to a folder, durably and atomically."""
        write_object(folder / MANIFEST_NAME, with_checksum({name: getattr(self, name) for name in SCHEMA}))


def is_mixed(folder: Path) -> bool:
    """Return whether a folder contains the checkpoint of a mixed buffer."""
    return (folder / MANIFEST_NAME).is_file()


def part_folder(folder: Path, number: int) -> Path:
    """Return the folder of a buffer in a checkpoint."""
    return folder / f"part-{number}"


def begin_checkpoint(folder: Path) -> None:
    """Create the folder of a checkpoint, unless there is one.

    :raises StorageError: if it contains something else
    """
    make_folder_durably(folder)
    if has_log(folder):
        raise StorageError(f"{folder} contains a buffer that is not mixed; save to another folder")
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith(("part-", MANIFEST_NAME)))
    if others and not is_mixed(folder):
        raise StorageError(f"{folder} contains other files, such as {others[0]}; save to a new or empty folder")

"""The checkpoint of a :class:`.MixedReplayBuffer`: a folder with a checkpoint of each buffer, and ``mixed.json``.

That file contains the weights, the classes of the buffers, and the number of the folder ``part-<number>`` of the first
one. A save writes all buffers to new folders and then replaces the file, so that it always names a complete checkpoint.
Demonstrations that are read in place are not copied, and have no class.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object
from sb3_compressed.storage.files import UNFINISHED, make_folder_durably
from sb3_compressed.storage.lock import LOCK_NAME, FolderLock

__all__ = ["MixedManifest", "is_mixed", "new_parts", "part_folder"]

MANIFEST_NAME = "mixed.json"
PART = re.compile("part-([0-9]+)")
N_BUFFERS = range(1, 257)
SCHEMA = {
    "version": range(1, 2),
    "weights": [float, N_BUFFERS],
    "classes": [js.optional(str), N_BUFFERS],
    "first_part?": range(1 << 31),
}


@dataclass(frozen=True)
class MixedManifest:
    """What a checkpoint contains besides the buffers.

    :param weights: the part of each batch that is from each buffer
    :param classes: names of the classes of the buffers, ``None`` for demonstrations that are read in place
    :param first_part: number of the folder of the first buffer; 0.3.0 knew only 0
    """

    weights: Sequence[float]
    classes: Sequence[str | None]
    first_part: int = 0
    version: int = 1

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


@contextmanager
def new_parts(folder: Path, n_buffers: int, *, overwrite: bool) -> Iterator[int]:
    """Yield the number of the first part of a new checkpoint; then delete all parts that ``mixed.json`` does not name.

    :param overwrite: whether to replace the checkpoint of another mixed buffer, or one that is incomplete
    :raises StorageError: if the folder contains a checkpoint that may not be replaced, or something else, or if
        another process saves to it
    """
    _require_replaceable(folder, overwrite=overwrite)
    make_folder_durably(folder)
    with ExitStack() as stack:
        stack.callback(FolderLock(folder).acquire().release)
        stack.callback(_delete_unused_parts, folder)
        used = _parts(folder)
        begins = sorted({0, *(number + 1 for number in used)})
        yield next(begin for begin in begins if not any(begin + number in used for number in range(n_buffers)))


def _require_replaceable(folder: Path, *, overwrite: bool) -> None:
    names = {path.name for path in folder.iterdir()} - {LOCK_NAME} if folder.exists() else set()
    if not names:
        return
    other = names - {MANIFEST_NAME, f"{MANIFEST_NAME}.{UNFINISHED}"} - {path.name for path in _parts(folder).values()}
    if other or not (is_mixed(folder) or (folder / LOCK_NAME).exists()):  # a save of a mixed buffer begins with a lock
        raise StorageError(f"{folder} contains something else; save a mixed buffer to a new or empty folder")
    if not overwrite:
        raise StorageError(f"{folder} contains a mixed buffer; pass overwrite=True to replace it, or another folder")


def _parts(folder: Path) -> dict[int, Path]:
    """Return the folders of buffers in a checkpoint by their numbers."""
    found = ((PART.fullmatch(path.name), path) for path in folder.iterdir())
    return {int(match[1]): path for match, path in found if match}


def _delete_unused_parts(folder: Path) -> None:
    named = range(0)
    if is_mixed(folder):
        manifest = MixedManifest.read(folder)
        named = range(manifest.first_part, manifest.first_part + len(manifest.classes))
    for number, path in _parts(folder).items():
        if number not in named:
            shutil.rmtree(path, ignore_errors=True)

"""The checkpoint of a :class:`.MixedReplayBuffer`: a folder with a checkpoint of each buffer, and ``mixed.json``.

That file contains the weights and the classes of the buffers. Demonstrations that are read in place are not
copied, and have no class.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object
from sb3_compressed.storage.files import UNFINISHED, flush_path, make_folder_durably
from sb3_compressed.storage.lock import LOCK_NAME, FolderLock

__all__ = ["MixedManifest", "complete_folder", "is_mixed", "part_folder", "write_checkpoint"]

MANIFEST_NAME = "mixed.json"
VERSION = 1
N_BUFFERS = range(1, 257)
#: What a save writes to a folder.
OWN_NAME = re.compile(rf"part-[0-9]+|{LOCK_NAME}|{re.escape(MANIFEST_NAME)}(\.{UNFINISHED})?")
SCHEMA = {
    "version": range(VERSION, VERSION + 1),
    "weights": [float, N_BUFFERS],
    "classes": [js.optional(str), N_BUFFERS],
    "passes_sampler": bool,
    "prefetch": range(257),
}


@dataclass(frozen=True)
class MixedManifest:
    """What a checkpoint contains besides the buffers.

    :param weights: the part of each batch that is from each buffer
    :param classes: names of the classes of the buffers, ``None`` for demonstrations that are read in place
    :param passes_sampler: whether demonstrations that are read in place have the sampler of the online buffer
    :param prefetch: as 0.3.0 wrote it, without effect
    """

    weights: Sequence[float]
    classes: Sequence[str | None]
    passes_sampler: bool
    prefetch: int = 0
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


def complete_folder(folder: Path) -> Path:
    """Return where the checkpoint of a name is: elsewhere if a save was killed just before the new one got its name."""
    if folder.exists() or not folder.name:
        return folder
    replaced = _replaced(folder)
    return replaced if is_mixed(replaced) else folder


def part_folder(folder: Path, number: int) -> Path:
    """Return the folder of a buffer in a checkpoint."""
    return folder / f"part-{number}"


def write_checkpoint(folder: Path, write: Callable[[Path], None], *, overwrite: bool) -> None:
    """Write a checkpoint to a new folder, which gets its name when it is complete.

    What a save has left that was killed is replaced.

    :param write: writes it to the folder that is passed
    :param overwrite: whether to replace the checkpoint of another mixed buffer, which stays until then
    :raises StorageError: if the folder contains a checkpoint that may not be replaced, or something else, or if
        another process saves to it
    """
    complete = complete_folder(folder)
    exists = complete.exists() and (not complete.is_dir() or any(complete.iterdir()))
    if exists and not is_mixed(complete):
        raise StorageError(f"{folder} contains something else; save a mixed buffer to a new or empty folder")
    if exists and not overwrite:
        raise StorageError(f"{folder} contains a mixed buffer; pass overwrite=True to replace it, or another folder")
    unfinished, replaced = folder.with_name(f"{folder.name}.{UNFINISHED}"), _replaced(folder)
    for other in (unfinished, replaced):
        _require_left_by_save(other)
    make_folder_durably(unfinished)
    lock = FolderLock(unfinished).acquire()
    try:
        if (complete := complete_folder(folder)) != folder:
            complete.rename(folder)
        for path in unfinished.iterdir():  # of a save that was killed
            if path.name != LOCK_NAME:
                _delete(path)
        write(unfinished)
        flush_path(unfinished)
        if exists:
            _delete(replaced)  # of a save that was killed when it was complete
            folder.rename(replaced)
        elif folder.exists():
            folder.rmdir()
        lock.release()  # Windows renames no folder with open files
        unfinished.rename(folder)
        flush_path(folder.parent)
    except BaseException:
        if exists and not folder.exists():
            replaced.rename(folder)
        _delete(unfinished)
        lock.release()
        raise
    (folder / LOCK_NAME).unlink(missing_ok=True)
    _delete(replaced)


def _replaced(folder: Path) -> Path:
    """Return where a checkpoint is between the moment that it loses its name and the one that the new one gets it."""
    return folder.with_name(f"{folder.name}.replaced")


def _require_left_by_save(folder: Path) -> None:
    """Raise if there is a folder, or something else, that no save has left."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        names = [folder.name]
    else:
        names = [path.name for path in folder.iterdir() if not OWN_NAME.fullmatch(path.name)] if folder.exists() else []
    if names:
        raise StorageError(f"{folder} is needed for a moment, but contains {names[0]}; move it or use another folder")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

"""The checkpoint of a distributed buffer: a folder with one state of all rings, and a manifest that lists them.

A *cut* is one state of all rings. In a save, each shard writes what changed in its rings to ``newest``, and creates
hard links to these files in a new folder ``cut-*``. The learner creates this folder, and replaces the manifest when all
shards have answered with the digests of their rings. So whatever interrupts a save, the manifest names a complete
state. Only the learner removes cuts.
"""

from __future__ import annotations

import re
import secrets
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import quote

from sb3_compressed.errors import CheckpointNotFound, CorruptStorage, StorageError, old_file
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, with_checksum, without_checksum, write_object
from sb3_compressed.storage.files import UNFINISHED
from sb3_compressed.storage.lock import LOCK_NAME
from sb3_compressed.storage.log_files import newest_segment_digest

__all__ = [
    "NEWEST",
    "Manifest",
    "SavedRing",
    "is_unfinished",
    "new_cut",
    "read_manifest",
    "remove_other_cuts",
    "ring_folder",
]

#: The folder of the rings as they were saved last.
NEWEST = "newest"
CUT = "cut-"
MANIFEST = "distributed.json"
VERSION = 3


def _cut_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(rf"{CUT}[0-9a-f]+", value):
        raise ValueError(f"it must be the name of a cut, got {value!r}")
    return value


POSITIVE = range(1, 1 << 63)
SCHEMA = {
    "cut": _cut_name,
    "writers": {str: (POSITIVE, range(1 << 63))},
    "rings": {str: {"n_transitions": range(1 << 63), "digest": str}},
}


@dataclass(frozen=True)
class SavedRing:
    """A ring in a checkpoint.

    :param n_transitions: number of transitions in it
    :param digest: the checksum of its newest segment, which lists all others, see :func:`.newest_segment_digest`
    """

    n_transitions: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """One state of a distributed buffer.

    :param cut: the name of the cut, and of its folder
    :param writers: the number of environments and the shard of each writer, by its name
    :param rings: the rings of the writers that have added something
    """

    cut: str
    writers: dict[str, tuple[int, int]]
    rings: dict[str, SavedRing] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the manifest of a folder."""
        values = {"version": VERSION, **asdict(self)}
        write_object(folder / MANIFEST, with_checksum(values))

    def rings_in(self, folder: Path) -> dict[str, Path]:
        """Return the folder of each ring, by the name of its writer.

        :raises CorruptStorage: if one is missing, or is not the one that was saved
        """
        paths = {name: ring_folder(folder / self.cut, name) for name in self.writers}
        for name, ring in self.rings.items():
            path = paths[name]
            digest = newest_segment_digest(path)
            if digest != ring.digest:
                problem = "is missing" if digest is None else "was changed or damaged since it was saved"
                raise CorruptStorage(f"{path}, with {ring.n_transitions} transitions of {name!r}, {problem}")
        return {name: paths[name] for name in self.rings}


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder.

    :raises CheckpointNotFound: if there is none
    :raises CorruptStorage: if it is damaged
    :raises StorageError: if another version of this package has written it
    """
    path = folder / MANIFEST
    try:
        values = read_object(path)
    except FileNotFoundError:
        raise CheckpointNotFound(f"{folder} contains no checkpoint of a distributed buffer") from None
    js.check({"version": POSITIVE}, values, str(path))
    version = values["version"]
    if version < VERSION:
        raise old_file(str(path))
    if version > VERSION:
        raise StorageError(f"{path} is of version {version}, this package reads version {VERSION}")
    values = without_checksum(values, path)
    js.check(SCHEMA, values, str(path))
    writers = {name: (n_envs, shard) for name, (n_envs, shard) in values["writers"].items()}
    if not {*values["rings"]} <= {*writers}:
        raise CorruptStorage(f"{path} names rings without a writer")
    return Manifest(values["cut"], writers, {name: SavedRing(**ring) for name, ring in values["rings"].items()})


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder is empty, or contains only files of a first save that was interrupted."""
    names = {path.name for path in folder.iterdir()}
    return all(name in (NEWEST, LOCK_NAME, f"{MANIFEST}.{UNFINISHED}") or name.startswith(CUT) for name in names)


def new_cut(folder: Path) -> str:
    """Create a cut in the folder of a checkpoint, and return its name.

    No earlier cut had this name, so a shard that still writes a cut of a failed save does not write to this one.
    """
    remove_other_cuts(folder)  # of processes that were killed
    name = f"{CUT}{secrets.token_hex(8)}"
    (folder / name).mkdir()
    return name


def remove_other_cuts(folder: Path) -> None:
    """Remove the cuts that the manifest does not name, which belong to saves that have failed or were replaced."""
    try:
        named = read_manifest(folder).cut
    except (CheckpointNotFound, CorruptStorage):  # a damaged one is being overwritten
        named = None
    except StorageError:  # one of another version stays until it is replaced
        return
    for path in folder.glob(f"{CUT}*"):
        if path.name != named:
            shutil.rmtree(path, ignore_errors=True)


def ring_folder(folder: Path, name: str) -> Path:
    """Return the folder of a ring in the folder of all rings."""
    return folder / f"ring-{quote(name, safe='')}"

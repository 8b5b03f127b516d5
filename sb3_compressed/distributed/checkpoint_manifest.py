"""The checkpoint of a distributed buffer: a folder with one state of all rings, and a manifest that names it.

A save writes what changed in each ring to ``newest``, then hard links of it to ``cut-N``, and then replaces the
manifest, so whatever interrupts it, the manifest names a state that is complete.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from sb3_compressed.errors import CheckpointNotFound, CorruptStorage, StorageError
from sb3_compressed.storage.files import flush_path

__all__ = ["NEWEST", "Manifest", "read_manifest", "ring_folder", "write_file"]

#: The folder of the rings as they were saved last.
NEWEST = "newest"
MANIFEST = "distributed.json"
VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """One state of a distributed buffer.

    :param cut: its number
    :param n_rows: number of rows of each ring
    :param writers: the number of environments and the shard of each writer, by its name
    """

    cut: int
    n_rows: int
    writers: dict[str, tuple[int, int]]

    def write(self, folder: Path) -> None:
        """Replace the manifest of a folder, and delete the states that it does not name."""
        write_file(folder / MANIFEST, json.dumps({"version": VERSION, **asdict(self)}).encode())
        for path in folder.glob("cut-*"):
            if path.name != self.folder_name:
                shutil.rmtree(path, ignore_errors=True)

    @property
    def folder_name(self) -> str:
        """The name of its folder."""
        return f"cut-{self.cut}"


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder.

    :raises CheckpointNotFound: if there is none
    :raises CorruptStorage: if it is damaged
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointNotFound(f"{folder} contains no checkpoint of a distributed buffer") from None
    except ValueError as error:
        raise CorruptStorage(f"{path} is not JSON: {error}") from error
    try:
        if data["version"] != VERSION:
            raise StorageError(f"{path} is of version {data['version']}, this package reads version {VERSION}")
        writers = {str(name): (int(n_envs), int(shard)) for name, (n_envs, shard) in data["writers"].items()}
        manifest = Manifest(int(data["cut"]), int(data["n_rows"]), writers)
        if manifest.n_rows < 1 or any(n_envs < 1 or shard < 0 for n_envs, shard in writers.values()):
            raise ValueError("numbers must be positive")
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptStorage(f"{path} is damaged: {error!r}") from error
    return manifest


def ring_folder(folder: Path, name: str) -> Path:
    """Return the folder of a ring in the folder of all rings."""
    return folder / f"ring-{quote(name, safe='')}"


def write_file(path: Path, content: bytes) -> None:
    """Write a file durably and atomically."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(content)
    flush_path(unfinished)
    unfinished.replace(path)
    flush_path(path.parent)

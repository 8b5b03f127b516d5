"""``ShardCheckpoints``: the folders that a distributed buffer was saved to or loaded from."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from sb3_compressed.distributed.checkpoint_manifest import (
    NEWEST,
    Manifest,
    is_unfinished,
    new_cut,
    read_manifest,
    remove_other_cuts,
)
from sb3_compressed.distributed.shard_group import ShardGroup
from sb3_compressed.errors import CheckpointNotFound, StorageError
from sb3_compressed.storage.files import flush_path, link_or_copy
from sb3_compressed.storage.lock import FolderLock

__all__ = ["ShardCheckpoints"]


class ShardCheckpoints:
    """Saves all shards to folders, and knows which checkpoints are those of its buffer.

    Each save has a folder of its own inside the checkpoint, its *cut*, which the manifest names.

    :param group: the shards
    """

    def __init__(self, group: ShardGroup) -> None:
        self._group = group
        #: The folder of the last save or load.
        self.latest: Path | None = None
        #: The folders and cuts of all checkpoints that the buffer was saved to or loaded from.
        self._cuts: set[tuple[Path, str]] = set()

    def save(self, path: Path, writers: Mapping[str, tuple[int, int]], *, overwrite: bool) -> None:
        """Save the rings of all shards to a folder.

        :param writers: the number of environments and the shard of each writer
        :param overwrite: as for :meth:`require_replaceable`
        :raises ShardUnavailable: if a shard fails or does not answer; nothing was saved
        :raises StorageError: if the folder contains something else, or another process saves to it
        :raises OSError: if it cannot be written
        """
        path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path)
        try:
            lock.acquire()
            self.require_replaceable(path, overwrite=overwrite)  # another learner may have saved to it meanwhile
            cut = new_cut(path)
            try:
                rings = self._group.save_checkpoint(path / NEWEST, path / cut)
                flush_path(path / cut)
                manifest = Manifest(cut, dict(writers), rings)
                self.record(path, manifest)  # before, so that the buffer may overwrite an interrupted save
                manifest.write(path)
            finally:
                remove_other_cuts(path)
        finally:
            lock.release()

    def require_replaceable(self, path: Path, *, overwrite: bool) -> None:
        """Raise if a folder contains something else than a checkpoint that may be replaced.

        :param overwrite: whether checkpoints of other buffers may be replaced
        :raises StorageError: if it does
        """
        if not path.exists():
            return
        try:
            manifest = read_manifest(path)
        except CheckpointNotFound:
            if not is_unfinished(path):
                raise StorageError(f"{path} contains other files, but no checkpoint of a distributed buffer") from None
        except StorageError:  # it is damaged, or of another version
            if not overwrite:
                raise
        else:
            if not overwrite and (path, manifest.cut) not in self._cuts:
                raise StorageError(f"{path} contains another checkpoint; pass overwrite=True to replace it")

    def copy_to(self, path: Path) -> None:
        """Copy the last save to a new folder, as hard links to the same files where possible.

        :raises StorageError: if nothing was saved yet, or another learner has replaced it
        :raises OSError: if it cannot be written
        """
        latest = self.latest
        if latest is None:
            raise StorageError("nothing was saved yet that could be copied; see save_checkpoint")
        manifest = read_manifest(latest)
        if (latest, manifest.cut) not in self._cuts:
            raise StorageError(f"{latest} contains another checkpoint now, since another learner saves to it")
        path.mkdir(parents=True)
        shutil.copytree(latest / manifest.cut, path / manifest.cut, copy_function=link_or_copy)
        manifest.write(path)

    def record(self, path: Path, manifest: Manifest) -> None:
        """Record that a checkpoint is that of the buffer, since it was saved or loaded."""
        self.latest = path
        self._cuts.add((path, manifest.cut))

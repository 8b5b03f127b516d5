"""``BufferCheckpoint``: a folder with the state of a replay buffer in memory; each save writes what changed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.buffer_folder import BufferFolder, changed_chunks, checksums_of
from sb3_compressed.persistence.replay_buffer_like import ReplayBufferLike
from sb3_compressed.persistence.row_copying import row_copier
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import CommitWriter
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_files import LogPosition, ends_at, has_log

__all__ = ["BufferCheckpoint", "CheckpointHistory"]


class CheckpointHistory:
    """The folders that a buffer was saved to. The buffer is an argument, so that there is no reference cycle."""

    def __init__(self) -> None:
        #: The latest checkpoint, ``None`` before the first save and after one that failed.
        self.latest: BufferCheckpoint | None = None
        #: Where the log in each folder ends, so that the buffer may overwrite it as long as it ends there.
        self._ends: Mapping[Path, LogPosition] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has no folders. Users pickle and copy the ``__dict__`` of buffers.
        return CheckpointHistory, ()

    def include(self, other: CheckpointHistory) -> None:
        """Include the folders of another history, whose buffer has the content of this one now."""
        self._ends = {**other._ends, **self._ends}

    def begin_with(self, checkpoint: BufferCheckpoint) -> None:
        """Record that the buffer was loaded from a checkpoint."""
        self.latest = checkpoint
        self._record_end(checkpoint.store.log)

    def _record_end(self, log: Log) -> None:
        self._ends = {**self._ends, log.folder.resolve(): log.position}

    def save(self, buffer: ReplayBufferLike, folder: Path, *, overwrite: bool) -> None:
        """Save a buffer to a folder: all of it the first time, then what changed since.

        :param folder: an absolute path
        :param overwrite: whether to replace another buffer in the folder
        :raises StorageError: if the folder contains another buffer or other files
        :raises OSError: if it cannot be written; the folder is as it was
        """
        lock = FolderLock(folder)
        try:
            if has_log(folder):
                lock.acquire()  # nobody else may write between the checks below and the save
            if self._save_changes(buffer, folder, lock, overwrite=overwrite):
                return
            end = self._ends.get(folder.resolve())  # if nobody else has written to it since, it contains this buffer
            overwrite |= end is not None and ends_at(folder, end)
            self._save(BufferCheckpoint.new(buffer, folder, lock, overwrite=overwrite), buffer, lock)
        finally:
            lock.release()

    def _save_changes(self, buffer: ReplayBufferLike, folder: Path, lock: FolderLock, *, overwrite: bool) -> bool:
        """Save what has changed, if the latest save was to the same folder; return whether that is so.

        :raises StorageError: if another process wrote to it since, unless that may be overwritten
        """
        checkpoint = self.latest
        if checkpoint is None or not checkpoint.belongs_to(buffer, folder):
            return False
        try:
            self._save(checkpoint, buffer, lock)
        except StorageError:
            if not overwrite:
                raise
            return False
        return True

    def _save(self, checkpoint: BufferCheckpoint, buffer: ReplayBufferLike, lock: FolderLock) -> None:
        self.latest = None  # restored if the save succeeds
        try:
            checkpoint.save(buffer, lock)
            self.latest = checkpoint
        finally:
            self._record_end(checkpoint.store.log)


class BufferCheckpoint:
    """A folder that a buffer in memory is saved to; each save copies the slots that it does not contain already.

    :param buffer: the buffer
    :param store: the folder, whose lock is released between saves
    :param is_saved: whether it contains the current state of the buffer
    """

    def __init__(self, buffer: ReplayBufferLike, store: ArrayStore, *, is_saved: bool) -> None:
        self.store = store
        self._streams = buffer_state.streams(buffer)
        self._arrays = buffer_state.named_arrays(buffer)
        # The sampler, whose state changes when it draws.
        self._sampler = buffer.bound_sampler
        #: The addresses of slots.
        self._tables: dict[str, NDArray[np.int64]] = {}
        #: Which slots were written since the last save, or for vectors, which do not record that, their checksums then.
        self._changed: dict[str, NDArray[np.bool_]] = {}
        self._vectors: dict[str, NDArray[Any]] = {}
        for name in (name for names in self._streams.values() for name in names):
            array = self._arrays[name]
            if isinstance(array, CompressedArray):
                self._changed[name] = array.track_changes()
                self._changed[name][...] = not is_saved
            else:
                self._vectors[name] = array
            self._tables[name] = store.arrays[name] if is_saved else np.zeros(array.shape[:2], np.int64)
        self._checksums = checksums_of(self._vectors) if is_saved else {}
        self._buffer_folder = BufferFolder(buffer, store, {**self._arrays, **self._tables}, is_saved=is_saved)

    @classmethod
    def new(cls, buffer: ReplayBufferLike, folder: Path, lock: FolderLock, *, overwrite: bool) -> BufferCheckpoint:
        """Return a checkpoint of a buffer in a folder that it was not saved to yet.

        :param lock: a lock of the folder, which the caller releases
        :raises StorageError: if the folder contains other files, or another buffer that may not be overwritten
        """
        if has_log(folder):
            with contextlib.suppress(StorageError):  # it is damaged, or of another version
                store = ArrayStore.open(folder, lock=lock)
                if overwrite or not store.metadata:  # its content stays until the first save is complete
                    return cls(buffer, store, is_saved=False)
        store = CommitWriter.create(folder, {}, {}, {}, overwrite=overwrite, lock=lock).store
        return cls(buffer, store, is_saved=False)

    def belongs_to(self, buffer: ReplayBufferLike, folder: Path) -> bool:
        """Return whether this is a checkpoint of the current arrays of a buffer, in that folder."""
        arrays = buffer_state.named_arrays(buffer)
        same = self._arrays.keys() == arrays.keys() and all(self._arrays[name] is arrays[name] for name in arrays)
        # Another checkpoint may track changes by now, of a copy with the same arrays.
        same = same and all(arrays[name].changes is flags for name, flags in self._changed.items())
        same = same and self._sampler is buffer.bound_sampler
        return same and self.store.log.folder.resolve() == folder.resolve()

    def save(self, buffer: ReplayBufferLike, lock: FolderLock) -> None:
        """Write what changed since the last save.

        :param lock: a lock of the folder, which is acquired and released
        :raises OSError: if it cannot be written; the folder is then as it was, and this checkpoint cannot be used again
        :raises StorageError: if another process writes or wrote to the folder, or the buffer could not be loaded
        """
        try:
            buffer_state.require_loadable(buffer, self.store.log.folder)
            self.store.log.acquire(lock)
            self._copy_slots(self._changed_rows(buffer))
            self._buffer_folder.save(buffer)  # segments without live slots are deleted with the next snapshot
        finally:
            self.store.close()

    def _changed_rows(self, buffer: ReplayBufferLike) -> NDArray[np.int64]:
        """Return the rows whose slots have changed since this was called last, the oldest first."""
        is_changed = np.zeros(buffer.buffer_size, np.bool_)
        for flags in self._changed.values():
            is_changed |= flags.any(axis=1)
            flags[...] = False
        checksums = checksums_of(self._vectors)
        for _, first, last in changed_chunks(self._vectors, self._checksums, checksums):
            is_changed[first:last] = True
        self._checksums = checksums
        rows = np.roll(np.arange(buffer.buffer_size), -buffer.pos)
        changed: NDArray[np.int64] = rows[is_changed[rows]]
        return changed

    def _copy_slots(self, rows: NDArray[np.int64]) -> None:
        """Copy slots of rows to the log, and write their addresses to the tables."""
        log, streams = self.store.log, self._streams.values()
        with ExitStack() as stack:
            copiers = [
                stack.enter_context(row_copier([self._arrays[name] for name in names], log)) for names in streams
            ]
            n_rows = min((copier.max_rows for copier in copiers), default=1)
            for start in range(0, len(rows), n_rows):
                part = rows[start : start + n_rows]
                log.begin_segment_if_full()
                for names, copier in zip(streams, copiers, strict=True):
                    for name, addresses in zip(names, copier.save(part), strict=True):
                        self._tables[name][part] = addresses

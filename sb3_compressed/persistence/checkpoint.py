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
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.replay_buffer_like import ReplayBufferLike
from sb3_compressed.persistence.row_copying import row_copier
from sb3_compressed.persistence.sampler_state import is_sampler_array, sampler_arrays, sampler_values
from sb3_compressed.storage.array_store import ArrayStore, Change
from sb3_compressed.storage.commit_format import rows_of_chunk
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import Log, LogPosition, ends_at, has_log

__all__ = ["BufferCheckpoint", "CheckpointHistory", "changed_chunks", "checksums_of"]


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
    """A folder that a buffer in memory is saved to, and which parts of the buffer it contains already.

    :param buffer: the buffer
    :param store: the folder, whose lock is released between saves
    :param is_saved: whether it contains the current state of the buffer
    """

    def __init__(self, buffer: ReplayBufferLike, store: ArrayStore, *, is_saved: bool) -> None:
        self.store = store
        self._is_new = not is_saved
        self._arrays = buffer_state.named_arrays(buffer)
        self._streams = buffer_state.streams(buffer)
        #: The addresses of slots, and which slots were written since the last save.
        self._tables: dict[str, NDArray[np.int64]] = {}
        self._changed: dict[str, NDArray[np.bool_]] = {}
        for name in (name for names in self._streams.values() for name in names):
            array = self._arrays[name]
            if isinstance(array, CompressedArray):
                self._changed[name] = array.track_changes()
            self._tables[name] = store.arrays[name] if is_saved else np.zeros(array.shape[:2], np.int64)
        # The sampler, whose state changes when it draws, and its arrays, which may be others at each save.
        self._sampler = buffer.bound_sampler
        self._sampler_arrays = {name: array for name, array in store.arrays.items() if is_sampler_array(name)}
        #: Checksums of plain arrays, which do not record changes.
        self._checksums = self._new_checksums() if is_saved else {}
        if is_saved:
            store.arrays = self._stored_arrays()

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
        store = ArrayStore.create(folder, {}, {}, {}, overwrite=overwrite, lock=lock)
        return cls(buffer, store, is_saved=False)

    def _new_checksums(self) -> dict[str, list[int]]:
        plain = {name: self._arrays[name] for name in self._arrays if name not in self._changed}
        return checksums_of({**plain, **self._sampler_arrays})

    def _stored_arrays(self) -> dict[str, Any]:
        """Return the arrays of the store: addresses instead of slots, others as they are."""
        return {**self._arrays, **self._tables, **self._sampler_arrays}

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
        store = self.store
        try:
            buffer_state.require_loadable(buffer, store.log.folder)
            store.log.acquire(lock)
            self._sampler_arrays = sampler_arrays(buffer)
            checksums = self._new_checksums()
            arrays = {**self._arrays, **self._sampler_arrays}
            chunks = [] if self._is_new else changed_chunks(arrays, self._checksums, checksums)
            changes = self._save_slots(buffer, chunks)
            values, codecs = buffer_state.values_and_codecs(buffer, buffer_state.last_arrays(buffer))
            values |= sampler_values(buffer, store, buffer.pos)
            if self._is_new:
                specs = buffer_state.array_specs(buffer)
                store.replace_content(buffer_state.metadata(buffer), specs, self._stored_arrays(), values, codecs)
            else:
                store.arrays |= self._sampler_arrays
                store.commit(changes, values, codecs)  # segments without live slots are deleted with the next snapshot
                store.log.flush()
            self._checksums, self._is_new = checksums, False
        finally:
            store.close_files()

    def _save_slots(self, buffer: ReplayBufferLike, chunks: list[Change]) -> list[Change]:
        """Write the slots that changed, and their addresses to the tables.

        :param chunks: chunks of rows of plain arrays that contain changes
        :return: what changed in the arrays of the store
        """
        changed = np.full(buffer.buffer_size, self._is_new)
        for flags in self._changed.values():
            changed |= flags.any(axis=1)
            flags[...] = False
        for name, first, last in chunks:
            if name in self._tables:
                changed[first:last] = True
        rows = np.roll(np.arange(buffer.buffer_size), -buffer.pos)  # the oldest first
        rows = rows[changed[rows]] if self._tables else rows[:0]
        with ExitStack() as stack:
            copiers = [
                stack.enter_context(row_copier([self._arrays[name] for name in names], self.store))
                for names in self._streams.values()
            ]
            n_rows = min((copier.max_rows for copier in copiers), default=1)
            for start in range(0, len(rows), n_rows):
                part = rows[start : start + n_rows]
                self.store.begin_segment_if_full()
                for names, copier in zip(self._streams.values(), copiers, strict=True):
                    for name, addresses in zip(names, copier.save(part), strict=True):
                        self._tables[name][part] = addresses
        rows = np.sort(rows)
        spans = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
        written = [(name, int(span[0]), int(span[-1]) + 1) for name in self._tables for span in spans]
        return written + [chunk for chunk in chunks if chunk[0] not in self._tables]


def checksums_of(arrays: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the checksum of each chunk of plain arrays, to detect changes."""
    checksums = {}
    for name, array in arrays.items():
        n_rows = rows_of_chunk(array)
        chunks = (np.ascontiguousarray(array[first : first + n_rows]) for first in range(0, len(array), n_rows))
        checksums[name] = [checksum(chunk.reshape(-1).view(np.uint8)) for chunk in chunks]
    return checksums


def changed_chunks(
    arrays: Mapping[str, Any], before: Mapping[str, list[int]], after: Mapping[str, list[int]]
) -> list[Change]:
    """Return the chunks of plain arrays whose checksums changed, as rows."""
    changes: list[Change] = []
    for name, checksums in after.items():
        n_rows, length = rows_of_chunk(arrays[name]), len(arrays[name])
        changes += [
            (name, index * n_rows, min((index + 1) * n_rows, length))
            for index, (old, new) in enumerate(zip(before[name], checksums, strict=True))
            if old != new
        ]
    return changes

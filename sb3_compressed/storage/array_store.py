"""``ArrayStore``: arrays, slots and values in a folder, in the state of its last complete commit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.chunks import copy_changed, segments_of
from sb3_compressed.storage.commit_format import apply_patches, split_commit
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_files import segment_numbers
from sb3_compressed.storage.manifest import ArraySpec, Manifest
from sb3_compressed.storage.metadata_schema import check_arrays_nbytes
from sb3_compressed.storage.record_kinds import COMMIT, PATCHES
from sb3_compressed.storage.segment import Segment
from sb3_compressed.storage.segment_header import HEADERS_NBYTES

__all__ = ["ArrayStore"]

#: What a user can do about damage.
REPAIR_ADVICE = "load_checkpoint(..., repair=True) keeps what is not damaged"


class ArrayStore:
    """Named numeric arrays, slots and a few values in a folder, for one writer and any number of readers.

    Use :meth:`open`, or :meth:`.CommitWriter.create`. A :class:`.CommitWriter` writes changes to the folder.

    :param log: the log that contains everything
    :param metadata: JSON-serializable data that is needed to create the buffer
    :param specs: the specifications of the arrays, by name, which are zeros
    :param values: a few numbers and texts, JSON-serializable
    """

    def __init__(
        self, log: Log, metadata: Mapping[str, Any], specs: Mapping[str, ArraySpec], values: Mapping[str, Any]
    ) -> None:
        self.log = log
        self.values = dict(values)
        #: The last step that wrote a row of the ring, -1 if there was none.
        self.step = -1
        #: The address of each codec in use, by name.
        self.codecs: dict[str, int] = {}
        #: A description of each damaged part, if the store was opened for a repair.
        self.problems: list[str] | None = None
        #: The rows that could not be read then, as masks, of each array that has some.
        self.lost_rows: dict[str, NDArray[np.bool_]] = {}
        self.replace_arrays(metadata, specs, {name: spec.zeros() for name, spec in specs.items()})

    def replace_arrays(
        self, metadata: Mapping[str, Any], specs: Mapping[str, ArraySpec], arrays: Mapping[str, Any]
    ) -> None:
        """Use other metadata and arrays; the next snapshot stores them."""
        self.metadata, self.specs = dict(metadata), dict(specs)
        self.arrays: dict[str, Any] = {name: arrays[name] for name in specs}
        #: The number of each array in commits.
        self.numbers = {name: number for number, name in enumerate(self.specs)}
        #: The names of the arrays that have a row for each step.
        self.ring_names = [name for name, spec in self.specs.items() if spec.is_ring]
        self._ring_numbers = [self.numbers[name] for name in self.ring_names]
        #: The number of rows of the arrays of the ring.
        self.n_ring_rows = min((self.specs[name].shape[0] for name in self.ring_names), default=0)

    @classmethod
    def open(cls, folder: Path, *, lock: FolderLock | None = None, rows: int = 0, repair: bool = False) -> ArrayStore:
        """Open a store in the state of the last commit.

        :param lock: a lock of the folder, to write to it, which the caller releases after errors; it is acquired
        :param rows: rows of the arrays that the caller requests itself, so they are not limited by the folder's size
        :param repair: whether to read what is undamaged, instead of an error: all of the newest snapshot, and the
            commits after it up to the first damaged record. :attr:`problems` and :attr:`lost_rows` describe the damage
        :raises StorageError: if there is none, or another process writes to it
        :raises CorruptStorage: if a file that is read is damaged, or declares sizes that are too large
        """
        log = Log.open(folder, lock)
        try:
            store = cls._read_log(log, rows=rows, repair=repair)
            if log.is_writable:
                log.clean_up()
        except BaseException:
            log.close()
            raise
        return store

    @classmethod
    def _read_log(cls, log: Log, *, rows: int, repair: bool) -> ArrayStore:
        """Return the store in the newest snapshot and the commits after it."""
        writable = log.is_writable

        def files() -> tuple[bool, list[int]]:
            return not writable and FolderLock.is_locked(log.folder), segment_numbers(log.folder)

        while True:
            is_growing, numbers = files()
            try:
                store = cls._read_chain(log, is_growing=is_growing, rows=rows, problems=[] if repair else None)
                if not writable:
                    store._open_live_segments()
                if not repair or writable or files() == (is_growing, numbers):
                    return store
            except CorruptStorage as error:
                if writable or files() == (is_growing, numbers):
                    raise CorruptStorage(error.reason, *(() if repair else (REPAIR_ADVICE,))) from error
                # A writer began meanwhile, or wrote another snapshot.

    @classmethod
    def _read_chain(cls, log: Log, *, is_growing: bool, rows: int, problems: list[str] | None) -> ArrayStore:
        chain = log.open_chain(problems)
        manifest = Manifest.of_segment(chain[0], is_growing=is_growing, problems=None if problems is None else [])
        check_arrays_nbytes([(spec.shape[0], spec.row_nbytes) for spec in manifest.specs.values()], chain[0].path, rows)
        store = cls(log, manifest.metadata, manifest.specs, manifest.values)
        store.step, store.codecs, store.problems = manifest.step, {**manifest.codecs}, problems
        log.ids.update(manifest.segments)
        is_read = None if problems is None else [np.zeros(len(array), np.bool_) for array in store.arrays.values()]
        for index, (segment, successor) in enumerate(zip_longest(chain, chain[1:])):
            limit = None if successor is None else successor.previous_end
            try:
                store._read(segment, is_growing=is_growing, limit=limit, is_read=is_read)
            except CorruptStorage as error:
                if problems is None:
                    raise
                problems.append(str(error))
                log.set_chain(chain[: index + 1])
                break
        if is_read is not None:
            store.lost_rows = {name: ~rows for name, rows in zip(store.arrays, is_read, strict=True) if not rows.all()}
        return store

    def _read(
        self,
        segment: Segment,
        *,
        is_growing: bool,
        start: int | None = None,
        limit: int | None = None,
        is_read: list[NDArray[np.bool_]] | None = None,
    ) -> None:
        """Apply the commits in a segment, up to the first damaged record; of a snapshot that is repaired, all of it.

        :param start: where to begin; ``None`` for the first record
        :param limit: where the segment ends, if another one follows it
        :param is_read: receives which rows of each array were read, for a repair
        :raises CorruptStorage: if it is damaged
        """
        pending: list[NDArray[np.uint8]] = []
        committed = HEADERS_NBYTES if start is None else start
        has_commit = is_complete = False
        is_snapshot = segment.is_snapshot and start is None  # which must contain a commit
        problems = self.problems if is_snapshot else None
        try:
            for record in segment.records(start, is_growing=is_growing, limit=limit, problems=problems):
                if record.kind == PATCHES:
                    pending.append(record.content)
                elif record.kind == COMMIT:
                    try:
                        values, patches = split_commit(record.content)
                        self._apply_commit(values, [*pending, patches], is_read)
                    except CorruptStorage as error:
                        raise CorruptStorage(f"{segment.path}, the record at byte {record.offset}: {error}") from error
                    pending, committed, has_commit = [], segment.end, True
            if is_snapshot and not has_commit:
                damage = f"{segment.path} is damaged: its snapshot is incomplete"
                if problems is None:
                    raise CorruptStorage(damage)
                problems.append(damage)
                self._apply_commit({}, pending, is_read)
            is_complete = True
        finally:
            if limit is None or not is_complete:
                segment.end = committed

    def _apply_commit(
        self,
        commit: Mapping[str, Any],
        patches: Iterable[NDArray[np.uint8]],
        is_read: list[NDArray[np.bool_]] | None,
    ) -> None:
        """Apply a commit.

        :param commit: its changed values and codecs
        :param patches: those of the records before it, and its own
        :param is_read: as for :meth:`_read`
        :raises CorruptStorage: if a patch is invalid
        """
        arrays = [*self.arrays.values()]
        for part in patches:
            step = apply_patches(part, arrays, self._ring_numbers, is_read)
            if step is not None:
                self.step = step
                self.values["pos"] = (step + 1) % self.n_ring_rows
        self.values.update(commit.get("values", {}))
        self.advance_step()
        self.codecs.update(commit.get("codecs", {}))

    def advance_step(self) -> None:
        """Advance :attr:`step` to the row before ``pos``: not every change of ``pos`` writes rows of the ring."""
        pos = self.values.get("pos")
        if self.n_ring_rows and type(pos) is int:
            self.step = self.step_at(pos, self.n_ring_rows)

    def step_at(self, pos: int, n_rows: int) -> int:
        """Return what :attr:`step` is after a commit that writes no rows of the ring.

        :param pos: the value ``pos`` of the commit
        :param n_rows: the number of rows of the ring
        """
        return self.step + (pos - 1 - self.step) % n_rows

    def refresh(self) -> bool:
        """Apply what another process has committed since; return whether there was anything.

        :raises StorageError: if the folder contains another buffer now
        """
        before = self.log.last, self.log.last.end
        while True:
            last, numbers = self.log.last, segment_numbers(self.log.folder)
            try:
                if numbers[-1:] != [last.number] or last.is_replaced():
                    self._reopen()
                else:
                    self._read(last, is_growing=True, start=last.end)
                self._open_live_segments()
                if segment_numbers(self.log.folder) == numbers:
                    return before != (self.log.last, self.log.last.end)
            except CorruptStorage:
                if segment_numbers(self.log.folder) == numbers:  # pragma: no branch  # only in a race
                    raise
                # There is a newer snapshot, and the segment was deleted.

    def _open_live_segments(self) -> None:
        """Open all segments that tables refer to, since the writer may delete them with its next snapshot."""
        live = self.live_segments()
        for number in live:
            with contextlib.nullcontext() if self.problems is None else contextlib.suppress(CorruptStorage):
                self.log.segment(number)
        self.log.close_segments(keep=live)
        self.log.drop_cached(live)

    def _reopen(self) -> None:
        """Read the newest snapshot and the commits after it."""
        fresh = ArrayStore.open(self.log.folder, rows=self.n_ring_rows)
        is_same = (fresh.metadata, fresh.specs) == (self.metadata, self.specs)
        if not is_same or fresh.log.identity != self.log.identity:
            fresh.close()
            raise StorageError(f"{self.log.folder} contains another buffer now; open it again")
        self.log.switch_to(fresh.log)  # only now, since everything could be read
        self.log.drop_cached(())  # a repair may have removed their segments
        for name, array in self.arrays.items():
            copy_changed(fresh.arrays[name], array)
        self.values, self.codecs = fresh.values, fresh.codecs
        self.step = fresh.step

    def read_codecs(self) -> dict[str, Codec]:
        """Return the codecs in use, by name.

        :raises CorruptStorage: if one is damaged
        """
        return {name: self.log.codec(address) for name, address in self.codecs.items()}

    def live_segments(self) -> set[int]:
        """Return the numbers of the segments that tables refer to, or that contain codecs in use."""
        numbers = {address >> 32 for address in self.codecs.values()}
        for name, spec in self.specs.items():
            if spec.is_table:
                numbers.update(segments_of(self.arrays[name]))
        return numbers

    def close(self) -> None:
        """Release the folder, and close and unmap its files, so that they can be deleted on Windows as well.

        They are opened again when they are read, or written to after :meth:`.Log.acquire`.
        """
        self.log.drop_cached(())
        self.log.close()

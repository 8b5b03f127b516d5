"""``ArrayStore``: arrays, slots and values in a folder, changed by atomic commits."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.chunks import copy_changed, segments_of
from sb3_compressed.storage.commit_format import (
    apply_patches,
    commit_record,
    pack_patch,
    pack_ring_row,
    snapshot_patches,
    split_commit,
)
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_files import segment_numbers, segment_path
from sb3_compressed.storage.manifest import ArraySpec, Manifest
from sb3_compressed.storage.metadata_schema import check_arrays_nbytes
from sb3_compressed.storage.record_kinds import COMMIT, MANIFEST, PATCHES
from sb3_compressed.storage.segment import Segment
from sb3_compressed.storage.segment_header import HEADERS_NBYTES

__all__ = ["RING_ROWS", "ArrayStore", "Change"]

#: What a user can do about damage.
REPAIR_ADVICE = "load_checkpoint(..., repair=True) keeps what is not damaged"
#: Size beyond which a new segment begins even within a change, since offsets have 32 bits.
MAX_SEGMENT_NBYTES = 2 << 30

#: Changed rows: the name of an array, the first row, and the one after the last.
Change = tuple[str, int, int]
#: Stands for all arrays of the ring in a :data:`Change`.
RING_ROWS = ""


class ArrayStore:
    """Named numeric arrays, slots and a few values in a folder, for one writer and any number of readers.

    Changes take effect when they are committed, all at once, and then survive a crash of the process; after
    :meth:`Log.flush`, they survive a power cut. Use :meth:`create` or :meth:`open`.

    :param log: the log that contains everything
    :param metadata: JSON-serializable data that is needed to create the buffer
    :param specs: the specifications of the arrays, by name, which are zeros
    :param values: a few numbers and texts, JSON-serializable
    """

    #: Maximum and minimum size at which a segment is full. In between, it is proportional to the live data, which also
    #: bounds unused bytes and the time to open the folder.
    SEGMENT_NBYTES, MIN_SEGMENT_NBYTES = 64 << 20, 384 << 10
    SEGMENT_SHARE = 8

    def __init__(
        self,
        log: Log,
        metadata: Mapping[str, Any],
        specs: Mapping[str, ArraySpec],
        values: Mapping[str, Any],
    ) -> None:
        self.log = log
        self.values = dict(values)
        #: The last step that wrote a row of the ring, -1 if there was none.
        self.step = -1
        #: The address of each codec in use, by name.
        self.codecs: dict[str, int] = {}
        #: Size at which the segment that is written to is full; 0 if not known yet.
        self._full_at = 0
        #: Whether this object committed anything since the last snapshot.
        self._has_commits = False
        #: A description of each damaged part, if the store was opened for a repair.
        self.problems: list[str] | None = None
        #: The rows that could not be read then, as masks, of each array that has some.
        self.lost_rows: dict[str, NDArray[np.bool_]] = {}
        self._replace_arrays(metadata, specs, {name: spec.zeros() for name, spec in specs.items()})

    def _replace_arrays(
        self, metadata: Mapping[str, Any], specs: Mapping[str, ArraySpec], arrays: Mapping[str, Any]
    ) -> None:
        """Use other metadata and arrays; the next snapshot stores them."""
        self.metadata, self.specs = dict(metadata), dict(specs)
        self.arrays: dict[str, Any] = {name: arrays[name] for name in specs}
        self._numbers = {name: number for number, name in enumerate(self.specs)}
        #: The names of the arrays that have a row for each step.
        self.ring_names = [name for name, spec in self.specs.items() if spec.is_ring]
        self._ring_numbers = [self._numbers[name] for name in self.ring_names]
        #: The number of rows of the arrays of the ring.
        self.n_ring_rows = min((self.specs[name].shape[0] for name in self.ring_names), default=0)

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        folder: Path,
        metadata: Mapping[str, Any],
        specs: Mapping[str, ArraySpec],
        values: Mapping[str, Any],
        *,
        overwrite: bool = False,
        lock: FolderLock | None = None,
    ) -> ArrayStore:
        """Create a store whose arrays are zero.

        :param overwrite: whether it may replace an existing store, which stays until this one is complete
        :param lock: a lock of the folder, which the caller releases after errors; it is acquired
        :raises StorageError: if the folder contains a store that may not be replaced, or other files
        """
        log = Log.create(folder, overwrite=overwrite, lock=lock)
        try:
            store = cls(log, metadata, specs, values)
            store.write_snapshot()
        except BaseException:
            log.close()
            raise
        return store

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        lock: FolderLock | None = None,
        rows: int = 0,
        repair: bool = False,
    ) -> ArrayStore:
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
        self._advance_step()
        self.codecs.update(commit.get("codecs", {}))

    def _advance_step(self) -> None:
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

    # -- following a writer ----------------------------------------------------------------------------------

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

    # -- writing ---------------------------------------------------------------------------------------------

    def commit(self, changes: Iterable[Change], values: Mapping[str, Any], codecs: Mapping[str, Codec]) -> None:
        """Store rows of the arrays, and all slots that they refer to, atomically.

        :param values: all values
        :param codecs: all codecs in use; :attr:`codecs` has their addresses afterwards
        :raises OSError: if the disk is full; nothing is committed
        """
        arrays, patches, step = self.arrays, [], self.step
        for name, first, last in changes:
            if name == RING_ROWS:
                ring = [arrays[each] for each in self.ring_names]
                for row in range(first, last):
                    step += 1 + (row - step - 1) % self.n_ring_rows
                    patches.append(pack_ring_row(ring, row, step))
            else:
                patches.append(pack_patch(self._numbers[name], arrays[name], first, last))
        commit: dict[str, Any] = {}
        before = self.values if step == self.step else {**self.values, "pos": (step + 1) % self.n_ring_rows}
        changed = {name: value for name, value in values.items() if name not in before or before[name] != value}
        if changed:
            commit["values"] = changed
        segment = self.log.segment_to_write()
        # In a new segment, all codecs are written, so that an old one need not be kept for them.
        addresses = {name: self.log.address_of_codec(codec) for name, codec in codecs.items()}
        if addresses.items() - self.codecs.items():
            commit["codecs"] = addresses
        segment.append(COMMIT, commit_record(commit, patches))
        # Copies, since the caller may modify lists and dicts in place.
        self.values = {**before, **copy.deepcopy(changed)} if changed else before
        self.step = step
        self._advance_step()
        self.codecs.update(addresses)
        self._has_commits = True
        if not self._full_at:  # the first commit
            self._plan_next_segment(self.live_segments())
        if segment.end > self._full_at:
            try:
                self.write_snapshot()
            except (OSError, StorageError) as error:  # the commit is complete; a new segment can wait
                self._full_at += segment.end
                warn_user(f"{self.log.folder}: cannot begin a new segment, so the last one keeps growing: {error}")

    def replace_content(
        self,
        metadata: Mapping[str, Any],
        specs: Mapping[str, ArraySpec],
        arrays: Mapping[str, Any],
        values: Mapping[str, Any],
        codecs: Mapping[str, Codec] | None = None,
    ) -> None:
        """Replace the content by other arrays atomically; the slots that they refer to must be written already.

        :param codecs: as for :meth:`commit`; ``None`` to keep the codecs
        :raises OSError: if the disk is full; the folder is unchanged, and must be opened again
        """
        if codecs is not None:
            self.codecs = {name: self.log.address_of_codec(codec) for name, codec in codecs.items()}
        self.values = dict(values)
        self._replace_arrays(metadata, specs, arrays)
        self._advance_step()
        self.write_snapshot()

    def begin_segment_if_full(self) -> None:
        """Begin another segment within a change if the last one is too large; old segments are kept."""
        if self.log.last.end > MAX_SEGMENT_NBYTES:
            self.log.drop_cached(self.log.segments)
            self.log.begin_segment()

    def write_snapshot(self) -> None:
        """Write the complete state to a new segment, and delete segments that it does not refer to.

        There must be no uncommitted changes.
        """
        live = self.live_segments()
        for table in self.log.live_tables():  # others than those of arrays, such as that of the last row
            live |= set() if any(table is own for own in self.arrays.values()) else segments_of(table)
        self.log.drop_cached(live)  # before: Windows neither truncates nor deletes files that are mapped
        self.log.begin_segment(self._snapshot_records(live))
        self._has_commits = False
        self.log.drop_segments(keep=live)
        self._plan_next_segment(live)

    def _plan_next_segment(self, live: Collection[int]) -> None:
        """Choose the size of the next segment, given the numbers of all live ones."""
        state = sum(spec.shape[0] * spec.row_nbytes for spec in self.specs.values())
        paths = [segment_path(self.log.folder, number) for number in live]
        share = max(sum(path.stat().st_size for path in paths if path.exists()), state) // self.SEGMENT_SHARE
        self._full_at = min(max(self.MIN_SEGMENT_NBYTES, share), self.SEGMENT_NBYTES)

    def _snapshot_records(self, live: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        segments = {number: self.log.ids.get(number, 0) for number in live}
        manifest = Manifest(self.metadata, self.specs, segments, self.values, self.codecs, self.step).to_json()
        yield MANIFEST, manifest
        for name, array in self.arrays.items():
            for patch in snapshot_patches(self._numbers[name], array):
                yield PATCHES, patch
        yield MANIFEST, manifest  # a second copy, in case one is damaged
        yield COMMIT, commit_record({"values": self.values, "codecs": self.codecs})

    def live_segments(self) -> set[int]:
        """Return the numbers of the segments that tables refer to, or that contain codecs in use."""
        numbers = {address >> 32 for address in self.codecs.values()}
        for name, spec in self.specs.items():
            if spec.is_table:
                numbers.update(segments_of(self.arrays[name]))
        return numbers

    def copy_to(self, folder: Path) -> None:
        """Copy the committed state to a new folder, with hard links where the file system supports them.

        A segment that is still written to can be shared: the copy ignores what is appended to it later.

        :raises StorageError: if the folder is not empty
        :raises OSError: if the disk is full
        """
        # The arrays of this store may be those of a buffer, which may have changed since the last commit.
        with contextlib.closing(ArrayStore.open(self.log.folder, rows=self.n_ring_rows)) as committed:
            live = committed.live_segments()
            committed.log.copy_to(folder, live, committed._snapshot_records(live))

    def close(self) -> None:
        """Close the folder. Its slots can still be read, as long as the files are there."""
        if self.log.is_writable and self._has_commits:
            try:
                self.write_snapshot()  # makes opening fast
            except OSError as error:  # everything is committed already
                warn_user(f"{self.log.folder}: opening takes longer, since no final snapshot could be written: {error}")
        self.close_files()

    def close_files(self) -> None:
        """Release the folder, and close and unmap its files, so that they can be deleted on Windows as well.

        They are opened again when they are read, or written to after :meth:`Log.acquire`.
        """
        self.log.drop_cached(())
        self.log.close()

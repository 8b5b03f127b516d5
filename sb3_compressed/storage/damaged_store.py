"""``DamagedStore``: open a damaged folder, read what is intact and report what is not."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.chunks import addresses_in, row_chunks
from sb3_compressed.storage.commit_format import PatchApplier, split_commit
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import Log, segment_numbers, segment_path
from sb3_compressed.storage.manifest import Manifest
from sb3_compressed.storage.record_kinds import COMMIT, MANIFEST, PATCHES, SEALED
from sb3_compressed.storage.segment import Record, Segment
from sb3_compressed.storage.verification import damaged_codecs, damaged_records

__all__ = ["DamagedStore", "move_slots_from_damaged_files", "open_damaged"]

#: Slots that are moved at once.
SLOTS_AT_ONCE = 1 << 14


class DamagedStore(ArrayStore):
    """A store that may have lost some of its content.

    :ivar problems: a description of each damaged part
    :ivar lost_rows: the rows of the ring that could not be read completely, a mask ``(n_rows,)``
    :ivar incomplete_arrays: the names of the arrays that could not be read completely
    """

    problems: list[str]
    lost_rows: NDArray[np.bool_]
    incomplete_arrays: set[str]


def open_damaged(folder: Path, *, writable: bool, rows: int = 0, lock: FolderLock | None = None) -> DamagedStore:
    """Open a store whose files may be damaged or missing, with all commits that can be read.

    If the newest snapshot is damaged, the state is rebuilt from the commits in all files.

    :param writable: whether to write to it; nothing is changed before :meth:`ArrayStore.write_snapshot` is called
    :param rows: as for :meth:`ArrayStore.open`
    :param lock: likewise
    :raises StorageError: if there is none, or a process writes to it
    :raises CorruptStorage: if nothing can be read
    """
    log = Log.open(folder, writable=writable, lock=lock)
    try:
        if not writable and FolderLock.is_locked(folder):
            raise StorageError(f"{folder} is being written to; close the buffer that writes to it before repairing")
        problems: list[str] = []
        segments = _readable_segments(log, problems)
        store = DamagedStoreReader(log, segments, problems, rows).read()
        if writable:
            log.next_number = max(segment_numbers(folder)) + 1
    except BaseException:
        log.close()
        raise
    return store


def _readable_segments(log: Log, problems: list[str]) -> list[Segment]:
    """Return the segments that can be opened, sorted; those of the newest buffer if there are several.

    :raises CorruptStorage: if there is none
    """
    found: list[Segment] = []
    for number in segment_numbers(log.folder):
        try:
            found.append(log.open_segment(number))
        except (CorruptStorage, OSError) as error:  # noqa: PERF203  # rare
            problems.append(str(error))
    if not found:
        raise CorruptStorage(f"{log.folder} has no file that can be read: {'; '.join(problems)}")
    newest = next((segment for segment in reversed(found) if segment.is_snapshot), found[-1])
    problems += [f"{each.path} belongs to another buffer" for each in found if each.identity != newest.identity]
    return [segment for segment in found if segment.identity == newest.identity]


def move_slots_from_damaged_files(store: ArrayStore) -> None:
    """Copy the slots in damaged files to a new segment, so that nothing refers to these files any more.

    All slots that tables refer to must be intact.
    """
    paths = {number: segment_path(store.log.folder, number) for number in store.live_segments()}
    damaged = [number for number, path in paths.items() if any(damaged_records(path))]
    tables = [store.arrays[name] for name, spec in store.specs.items() if spec.is_table]
    addresses = addresses_in(*tables)
    addresses = addresses[np.isin(addresses >> 32, damaged)]
    moved = np.zeros_like(addresses)
    for start in range(0, len(addresses), SLOTS_AT_ONCE):
        store.begin_segment_if_full()
        slots = store.slots.load(addresses[start : start + SLOTS_AT_ONCE])
        moved[start : start + SLOTS_AT_ONCE] = store.slots.write([*slots])
    for table in tables if len(addresses) else ():
        for rows in row_chunks(table):
            is_moved = np.isin(table[rows], addresses)
            table[rows][is_moved] = moved[np.searchsorted(addresses, table[rows][is_moved])]


class DamagedStoreReader:
    """Reads the intact records of some segments.

    :param segments: sorted; some may be missing in between
    :param problems: receives a description of each damaged part
    :param rows: as for :meth:`ArrayStore.open`
    :raises CorruptStorage: if no segment has readable metadata
    """

    def __init__(self, log: Log, segments: list[Segment], problems: list[str], rows: int) -> None:
        self.log, self.segments, self.problems, self.rows = log, segments, problems, rows
        snapshots = [index for index, segment in enumerate(self.segments) if segment.is_snapshot]
        start = snapshots[-1] if snapshots else 0
        if not snapshots:
            self.problems.append(f"{self.log.folder} has no readable snapshot")
        #: The newest readable snapshot and the segments that follow it.
        self.chain = self._chain(start)
        # An intact snapshot replaces all segments before it.
        damage = _snapshot_damage(self.chain[0], _limit(self.chain, 0)) if snapshots else None
        is_intact = bool(snapshots) and damage is None
        #: The segments to read.
        self.used = self.chain if is_intact else [*self._segments_before(self.chain[0]), *self.chain]
        self.store = self._empty_store()
        #: Which rows of each array were read.
        self.covered = self._no_rows()
        self.applier = self._new_applier(self.covered)
        #: Whether commits may be missing before the next one.
        self.is_after_damage = False
        #: Where the last segment that was read ends.
        self.end = 0
        self.problems += [] if damage is None else [damage]

    def read(self) -> DamagedStore:
        """Return the store."""
        for index, segment in enumerate(self.used):
            if index and segment.number != self.used[index - 1].number + 1:
                self.is_after_damage = True
            if segment in self.chain or self._has_current_epoch(segment):
                self._read(segment, _limit(self.used, index), is_last=segment is self.used[-1])
        self._finish()
        return self.store

    def _chain(self, start: int) -> list[Segment]:
        """Return a snapshot and the segments that follow it in the same copy of the buffer."""
        chain = [self.segments[start]]
        for segment in self.segments[start + 1 :]:
            if segment.number == chain[-1].number + 1:
                follows = segment.previous_id == chain[-1].id
            else:
                self.problems.append(
                    f"{self.log.folder}: files between {chain[-1].number} and {segment.number} are missing"
                )
                manifest = _manifest_of(segment)
                listed = {} if manifest is None else manifest.segments
                common = [each for each in chain if each.number in listed]
                follows = bool(common) and all(listed[each.number] == each.id for each in common)
            if not follows:
                self.problems.append(
                    f"{segment.path} does not follow {chain[-1].path}; it and later files are not used"
                )
                break
            chain.append(segment)
        return chain

    def _has_current_epoch(self, segment: Segment) -> bool:
        """Return whether the commits in a segment belong to the current content, not to the content before a resize."""
        manifest = _manifest_of(segment)
        return manifest is not None and manifest.epoch == self.store.epoch

    def _segments_before(self, snapshot: Segment) -> list[Segment]:
        """Return the segments before a snapshot that it refers to, not those of another copy of the buffer."""
        older = [segment for segment in self.segments if segment.number < snapshot.number]
        ids = {snapshot.number - 1: snapshot.previous_id}
        manifest = _manifest_of(snapshot)
        if manifest is not None:
            ids |= manifest.segments
        self.problems += [
            f"{segment.path} belongs to a copy of this buffer that was changed independently"
            for segment in older
            if ids.get(segment.number, segment.id) != segment.id
        ]
        return [each for each in older if ids.get(each.number, each.id if manifest is None else 0) == each.id]

    def _empty_store(self) -> DamagedStore:
        for segment in reversed(self.used):
            manifest = _manifest_of(segment)
            if manifest is not None:
                store = DamagedStore(self.log, manifest.metadata, manifest.specs, {}, {})
                store.allocate_arrays(segment.path, self.rows)
                store.epoch = manifest.epoch
                store.problems = self.problems
                store.lost_rows = np.zeros(store.n_ring_rows, np.bool_)
                return store
        raise CorruptStorage(f"{self.log.folder}: no file has readable metadata: {'; '.join(self.problems)}")

    def _read(self, segment: Segment, limit: int | None, *, is_last: bool) -> None:
        is_snapshot = segment.is_snapshot
        self.is_after_damage |= is_snapshot  # until its values are read
        pending: list[NDArray[np.uint8]] = []
        for part in segment.undamaged_records(limit):
            if isinstance(part, CorruptStorage):
                self.problems.append(str(part))
                self.is_after_damage |= not is_snapshot
                continue
            try:
                if part.kind == PATCHES:
                    pending.append(part.content)
                elif part.kind == MANIFEST:
                    manifest = Manifest.from_json(part.content, segment)
                    self.log.ids.update(manifest.segments)
                    self._set_values(manifest.values, manifest.codecs, manifest.step)
                elif part.kind == COMMIT and is_snapshot:
                    commit, _ = split_commit(part.content)
                    self._set_values(commit.get("values", {}), commit.get("codecs", {}), self.store.step)
                elif part.kind == COMMIT:
                    self._apply_commit(part, pending)
                    pending = []
                elif part.kind == SEALED and is_last:
                    self.problems.append(f"the segment after {segment.path} is missing")
            except CorruptStorage as error:
                self.problems.append(f"{segment.path}: {error}")
                if not is_snapshot:
                    self.is_after_damage, pending = True, []
        for patches in pending if is_snapshot else ():  # after its values, even if others are damaged
            try:
                self.applier.apply(patches)
            except CorruptStorage as error:  # noqa: PERF203  # rare
                self.problems.append(f"{segment.path}: {error}")
        self.applier.finish()
        self.end = segment.end

    def _set_values(self, values: dict[str, Any], codecs: dict[str, int], step: int) -> None:
        """Use the values at the beginning of a segment; earlier steps that were not read are lost."""
        self._lose_steps(self._position(), (step + 1, values.get("pos")))
        self.store.values, self.store.codecs, self.store.step = values, codecs, step
        self.is_after_damage = False

    def _apply_commit(self, record: Record, pending: list[NDArray[np.uint8]]) -> None:
        store = self.store
        commit, patches = split_commit(record.content)
        if not self.is_after_damage:
            store.apply_commit(commit, [*pending, patches], self.applier)
            return
        self.applier.finish()
        before, written = self._position(), self._no_rows()
        applier = self._new_applier(written)
        store.apply_commit(commit, [*pending, patches], applier)
        applier.finish()
        self._lose_steps(before, (applier.first_step, store.values.get("pos")))
        for of_array, rows in zip(self.covered, written, strict=True):
            of_array |= rows
        self.is_after_damage = False

    def _position(self) -> tuple[int, Any]:
        """Return the last step that was read, and the row that is written next."""
        return self.store.step, self.store.values.get("pos")

    def _lose_steps(self, before: tuple[int, Any], after: tuple[int | None, Any]) -> None:
        """Mark the rows of steps in damaged commits as lost, unless later commits write them again.

        :param before: the last step before the damage, and the row that was written next
        :param after: the first step after it, ``None`` or 0 where rows are written without counting steps, and the row
            written next, which decides in that case
        """
        store, n_rows = self.store, self.store.n_ring_rows
        (last_step, pos), (next_step, next_pos) = before, after
        if next_step:
            first, n_lost = last_step + 1, next_step - last_step - 1
        elif type(pos) is type(next_pos) is int and 0 <= pos < n_rows and 0 <= next_pos < n_rows:
            first, n_lost = pos, (next_pos - pos) % n_rows
        else:
            return
        if n_rows and n_lost > 0:
            if (first + n_lost) // n_rows > first // n_rows and "full" in store.values:
                store.values["full"] = True  # a damaged commit set it
            rows = (first + np.arange(min(n_lost, n_rows))) % n_rows
            for number in store.ring_numbers:
                self.covered[number][rows] = False

    def _no_rows(self) -> list[NDArray[np.bool_]]:
        """Return a mask of rows for each array, without any."""
        return [np.zeros(len(array), np.bool_) for array in self.store.arrays.values()]

    def _new_applier(self, covered: list[NDArray[np.bool_]]) -> PatchApplier:
        return PatchApplier([*self.store.arrays.values()], self.store.ring_numbers, covered)

    def _finish(self) -> None:
        store = self.store
        store.problems = [*dict.fromkeys(self.problems)]
        for number in store.ring_numbers:
            store.lost_rows |= ~self.covered[number]
        store.incomplete_arrays = {
            name for name, rows in zip(store.arrays, self.covered, strict=True) if not rows.all()
        }
        self.log.set_chain(self.used)
        last = self.used[-1]
        last.end = self.end
        for name, damage in damaged_codecs(store).items():  # a writer creates new ones
            store.problems.append(damage)
            del store.codecs[name]


def _manifest_of(segment: Segment) -> Manifest | None:
    """Return the first manifest in a segment that can be read, ``None`` if there is none."""
    for part in segment.undamaged_records():
        if isinstance(part, Record) and part.kind == MANIFEST:
            with contextlib.suppress(CorruptStorage):
                return Manifest.from_json(part.content, segment)
    return None


def _snapshot_damage(segment: Segment, limit: int | None) -> str | None:
    """Return the first damage of a snapshot, which may be incomplete; ``None`` if it is intact."""
    has_commit = False
    for part in segment.undamaged_records(limit):
        if isinstance(part, CorruptStorage):
            return str(part)
        has_commit |= part.kind == COMMIT
    return None if has_commit else f"{segment.path} is damaged: its snapshot is incomplete"


def _limit(segments: list[Segment], index: int) -> int | None:
    """Return where a segment ends, if the one that follows it stores that."""
    segment, after = segments[index], segments[index + 1] if index + 1 < len(segments) else None
    return after.previous_end if after is not None and after.previous_id == segment.id else None

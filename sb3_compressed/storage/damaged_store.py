"""Opening a damaged folder: what is whole is read, and what is not is named."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.array_store import MANIFEST, ArraySpec, ArrayStore, Manifest
from sb3_compressed.storage.chunks import addresses_in, row_chunks
from sb3_compressed.storage.commit_format import COMMIT, PATCHES, SECTION, Replay, split_commit
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import SEALED, Log, segment_path
from sb3_compressed.storage.segment import Record, Segment
from sb3_compressed.storage.verification import damaged_codecs, damaged_records

__all__ = ["DamagedStore", "move_slots_from_damaged_files", "open_damaged"]

#: Slots that are moved at once.
SLOTS_AT_ONCE = 1 << 14


class DamagedStore(ArrayStore):
    """A store of which parts may be lost.

    :ivar damages: a line for each damaged part that was found
    :ivar lost_rows: the rows of the ring of which something could not be read, a mask ``(n_rows,)``
    """

    damages: list[str]
    lost_rows: NDArray[np.bool_]


def open_damaged(folder: Path, *, writable: bool, rows: int = 0) -> DamagedStore:
    """Open a store of which files may be damaged or missing, with all commits that can be read.

    Where the newest snapshot is damaged, its state is put together from the commits in all files that there are.

    :param writable: whether to write to it; nothing is changed before :meth:`ArrayStore.write_snapshot` is called
    :param rows: as for :meth:`ArrayStore.open`
    :raises StorageError: if there is none, or a process writes to it
    :raises CorruptStorage: if nothing of it can be read
    """
    log = Log.open(folder, writable=writable)
    try:
        if not writable and FolderLock.is_held(folder):
            raise StorageError(f"{folder} is being written to; close the buffer that writes to it before repairing")
        damages: list[str] = []
        segments = _readable_segments(log, damages)
        store = _Reader(log, segments, damages, rows).read()
        if writable:
            log.skip_to(max(log.numbers()) + 1)
    except BaseException:
        log.close()
        raise
    return store


def _readable_segments(log: Log, damages: list[str]) -> list[Segment]:
    """Return the segments of one buffer that can be opened, sorted; those of the newest if there are several.

    :raises CorruptStorage: if there is none
    """
    found: list[Segment] = []
    for number in log.numbers():
        try:
            found.append(log.open_segment(number))
        except (CorruptStorage, OSError) as error:  # noqa: PERF203  # rare
            damages.append(str(error))
    if not found:
        raise CorruptStorage(f"{log.folder} has no file that can be read: {'; '.join(damages)}")
    newest = next((segment for segment in reversed(found) if segment.is_snapshot), found[-1])
    damages += [f"{each.path} is of another buffer" for each in found if each.identity != newest.identity]
    return [segment for segment in found if segment.identity == newest.identity]


def move_slots_from_damaged_files(store: ArrayStore) -> None:
    """Write the slots that are in damaged files anew, so that nothing refers to these any more.

    All slots that tables refer to have to be whole.
    """
    paths = {number: segment_path(store.log.folder, number) for number in sorted(store.live_segments())}
    numbers = [number for number, path in paths.items() if any(damaged_records(path))]
    tables = [store.arrays[name] for name, plan in store.plans.items() if plan.is_table]
    for number in numbers:
        addresses = np.unique(np.concatenate([addresses_in(table) for table in tables]))
        addresses = addresses[addresses >> 32 == number]
        moved = np.zeros_like(addresses)
        for start in range(0, len(addresses), SLOTS_AT_ONCE):
            store.make_room()
            slots = store.slots.load(addresses[start : start + SLOTS_AT_ONCE])
            moved[start : start + SLOTS_AT_ONCE] = store.slots.write([*slots])
        for table in tables:
            for rows in row_chunks(table):
                is_there = np.isin(table[rows], addresses)
                table[rows][is_there] = moved[np.searchsorted(addresses, table[rows][is_there])]


class _Reader:
    """Reads what can be read of some segments.

    :param segments: sorted; some may be missing in between
    :param damages: is given a line for each damaged part
    :param rows: as for :meth:`ArrayStore.open`
    """

    def __init__(self, log: Log, segments: list[Segment], damages: list[str], rows: int) -> None:
        self.log, self.segments, self.damages, self.rows = log, segments, damages, rows

    def read(self) -> DamagedStore:
        """Return the store.

        :raises CorruptStorage: if no segment tells what it is of
        """
        snapshots = [index for index, segment in enumerate(self.segments) if segment.is_snapshot]
        start = snapshots[-1] if snapshots else 0
        if not snapshots:
            self.damages.append(f"{self.log.folder} has no snapshot that can be read")
        chain = self._chain(start)
        # The snapshot is all that is needed, unless it is damaged.
        damage = _snapshot_damage(chain[0], _limit(chain, 0)) if snapshots else None
        is_whole = bool(snapshots) and damage is None
        used = chain if is_whole else [*self._before(chain[0]), *chain]
        self.store = self._empty_store(used)
        self.replay = self._replay(None)
        self.is_covered: list[NDArray[np.bool_]] | None = None
        if not is_whole:
            self._track_coverage(is_covered=False)
        self.is_behind_damage = False
        self.damages += [] if damage is None else [damage]
        for index, segment in enumerate(used):
            if index and segment.number != used[index - 1].number + 1:
                self.is_behind_damage = True
            if segment in chain or self._is_of_same_content(segment):
                self._read(segment, _limit(used, index), is_last=segment is used[-1])
        self._finish(used)
        return self.store

    def _chain(self, start: int) -> list[Segment]:
        """Return a snapshot and what follows it, as far as that is of the same copy of the buffer."""
        chain = [self.segments[start]]
        for segment in self.segments[start + 1 :]:
            if segment.number != chain[-1].number + 1:
                self.damages.append(
                    f"{self.log.folder}: files between {chain[-1].number} and {segment.number} are missing"
                )
                manifest = _manifest_of(segment)
                told = {} if manifest is None else manifest.segments
                known = [(told[each.number], each.id) for each in chain if each.number in told]
                follows = bool(known) and all(listed == found for listed, found in known)
            else:
                follows = segment.previous_id == chain[-1].id
            if not follows:
                self.damages.append(
                    f"{segment.path} does not follow {chain[-1].path}; it and what follows it is given up"
                )
                break
            chain.append(segment)
        return chain

    def _is_of_same_content(self, segment: Segment) -> bool:
        """Return whether commits in a segment are of the content that the store has, not of one before a resize."""
        manifest = _manifest_of(segment)
        return segment.id == 0 or (manifest is not None and manifest.epoch == self.store.epoch)

    def _before(self, snapshot: Segment) -> list[Segment]:
        """Return the segments before a snapshot that it refers to, not those of another copy of the buffer."""
        older = [segment for segment in self.segments if segment.number < snapshot.number]
        first = next((part for part in snapshot.undamaged_records() if isinstance(part, Record)), None)
        if snapshot.id == 0:
            return older
        ids = {snapshot.number - 1: snapshot.previous_id}
        is_told = first is not None and first.kind == MANIFEST
        if first is not None and is_told:
            ids |= Manifest.parse(first.content.tobytes(), str(snapshot.path)).segments
        self.damages += [
            f"{segment.path} is of a copy of this buffer that was written to as well"
            for segment in older
            if ids.get(segment.number, segment.id) != segment.id
        ]
        return [each for each in older if ids.get(each.number, 0 if is_told else each.id) == each.id]

    def _empty_store(self, used: list[Segment]) -> DamagedStore:
        for segment in reversed(used):
            for part in segment.undamaged_records():
                if isinstance(part, Record) and part.kind == MANIFEST:
                    manifest = Manifest.parse(part.content.tobytes(), str(segment.path))
                    plans = manifest.plans if segment.id else _with_ring(manifest.plans)
                    store = DamagedStore(self.log, manifest.about, plans, {}, {})
                    store.set_zeros(segment.path, self.rows)
                    store.epoch = manifest.epoch
                    store.damages = self.damages
                    store.lost_rows = np.zeros(store.n_ring_rows, np.bool_)
                    return store
        raise CorruptStorage(f"{self.log.folder}: no file has metadata that can be read: {'; '.join(self.damages)}")

    def _read(self, segment: Segment, limit: int | None, *, is_last: bool) -> None:
        is_snapshot = segment.is_snapshot and segment.id != 0
        if is_snapshot:
            self._take_snapshot_values(segment, limit)
        # Version 1 begins each segment with a snapshot that does not tell rows of zeros.
        may_be_snapshot = segment.id == 0
        pending: list[NDArray[np.uint8]] = []
        for part in segment.undamaged_records(limit):
            if isinstance(part, CorruptStorage):
                self.damages.append(str(part))
                self.is_behind_damage |= not is_snapshot
                may_be_snapshot = False
                continue
            try:
                if part.kind == PATCHES and is_snapshot:
                    self.replay.apply(part.content)  # whatever becomes of the others
                elif part.kind == PATCHES:
                    pending.append(part.content)
                elif part.kind == COMMIT and not is_snapshot:
                    if may_be_snapshot:
                        self._begin_with_zeros()
                    self._take_commit(part, pending)
                    pending, may_be_snapshot = [], False
                elif part.kind == MANIFEST and not is_snapshot:
                    self._take_manifest(Manifest.parse(part.content.tobytes(), str(segment.path)), segment)
                elif part.kind == SECTION:
                    self.store.take_section(part.content)
                elif part.kind == SEALED and is_last:
                    self.damages.append(f"the segment after {segment.path} is missing")
            except CorruptStorage as error:
                self.damages.append(f"{segment.path}: {error}")
                self.is_behind_damage, pending = not is_snapshot or self.is_behind_damage, []
        self.replay.finish()
        self.end = segment.end

    def _take_snapshot_values(self, segment: Segment, limit: int | None) -> None:
        """Take in what the first or the last record of a snapshot tells, before its patches: they are newer."""
        found: tuple[dict[str, Any], dict[str, int], int] | None = None
        for part in segment.undamaged_records(limit):
            if isinstance(part, CorruptStorage) or part.kind not in (MANIFEST, COMMIT):
                continue  # which is reported with the patches
            try:
                if part.kind == MANIFEST:
                    manifest = Manifest.parse(part.content.tobytes(), str(segment.path))
                    self.log.ids.update(manifest.segments)
                    found = manifest.values, manifest.codecs, manifest.step
                else:
                    told, _ = split_commit(part.content)
                    step = self.store.step if found is None else found[2]
                    found = told.get("values", {}), told.get("codecs", {}), step
            except CorruptStorage as error:
                self.damages.append(f"{segment.path}: {error}")
        if found is None:
            self.is_behind_damage = True
        else:
            if self.is_covered is not None:  # else nothing was read before it
                self._lose_rows_up_to(found[2] + 1, found[0].get("pos"))
            self.store.values, self.store.codecs, self.store.step = found
            self.is_behind_damage = False

    def _track_coverage(self, *, is_covered: bool) -> list[NDArray[np.bool_]]:
        """Keep of each array which rows were read, from now on.

        :param is_covered: whether all were until now
        """
        if self.is_covered is None:
            self.replay.finish()
            self.is_covered = [np.full(len(array), is_covered) for array in self.store.arrays.values()]
            self.replay = self._replay(self.is_covered)
        return self.is_covered

    def _begin_with_zeros(self) -> None:
        for array, covered in zip(self.store.arrays.values(), self._track_coverage(is_covered=True), strict=True):
            array[...], covered[...] = 0, True
        self.is_behind_damage = False

    def _replay(self, is_covered: list[NDArray[np.bool_]] | None) -> Replay:
        store = self.store
        return Replay([*store.arrays.values()], store.ring_numbers, is_covered)

    def _take_manifest(self, manifest: Manifest, segment: Segment) -> None:
        self.log.ids.update(manifest.segments)
        if segment.id == 0:  # version 1 has the values in a commit
            return
        self._lose_rows_up_to(manifest.step + 1, manifest.values.get("pos"))
        self.store.values, self.store.codecs, self.store.step = manifest.values, manifest.codecs, manifest.step
        self.is_behind_damage = False

    def _take_commit(self, record: Record, pending: list[NDArray[np.uint8]]) -> None:
        store = self.store
        told, patches = split_commit(record.content)
        if not self.is_behind_damage:
            store.apply_commit(told, [*pending, patches], self.replay)
            return
        is_covered = self._track_coverage(is_covered=True)
        self.replay.finish()
        step, pos = store.step, store.values.get("pos")
        is_written = [np.zeros(len(array), np.bool_) for array in store.arrays.values()]
        own = self._replay(is_written)
        store.apply_commit(told, [*pending, patches], own)
        own.finish()
        self._lose_rows_between((step, pos), (own.first_step, store.values.get("pos")))
        for covered, written in zip(is_covered, is_written, strict=True):
            covered |= written
        self.is_behind_damage = False

    def _lose_rows_up_to(self, step: int, pos: Any) -> None:
        """Lose the rows between the last commit that is known and a step, before which ``pos`` is the next row."""
        self._lose_rows_between((self.store.step, self.store.values.get("pos")), (step, pos))

    def _lose_rows_between(self, before: tuple[int, Any], after: tuple[int | None, Any]) -> None:
        """Note that the rows of steps in between were written by commits that are damaged.

        They are lost unless a later commit writes them again.

        :param before: the last step before the damage, and the row that was written next
        :param after: the first step behind it, ``None`` or 0 where rows are written without counting steps, and the row
            that was written next, by which they are found there
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
                store.values["full"] = True  # which a commit that is damaged said
            rows = (first + np.arange(min(n_lost, n_rows))) % n_rows
            for number in store.ring_numbers:
                self._track_coverage(is_covered=True)[number][rows] = False

    def _finish(self, used: list[Segment]) -> None:
        store = self.store
        store.damages = [*dict.fromkeys(self.damages)]
        if self.is_covered is not None:
            for number in store.ring_numbers:
                store.lost_rows |= ~self.is_covered[number]
        self.log.start_from(used)
        last = used[-1]
        if not last.is_writable:
            last.end = self.end
        for name, damage in damaged_codecs(store).items():  # whoever writes begins with new ones
            store.damages.append(damage)
            del store.codecs[name]


def _manifest_of(segment: Segment) -> Manifest | None:
    """Return what the first record of a segment tells, ``None`` if it is damaged."""
    try:
        return Manifest.of(segment)
    except CorruptStorage:
        return None


def _snapshot_damage(segment: Segment, limit: int | None) -> str | None:
    """Return the first thing that is wrong with a snapshot, which may lack its end."""
    has_commit = False
    for part in segment.undamaged_records(limit):
        if isinstance(part, CorruptStorage):
            return str(part)
        has_commit |= part.kind == COMMIT
    return None if has_commit else f"{segment.path} is damaged: it has no whole snapshot"


def _with_ring(plans: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """Return plans of version 1, which does not tell which arrays are of the ring: those of as many rows as most."""
    lengths = Counter(plan.shape[:1] for plan in plans.values())
    return {
        name: dataclasses.replace(plan, is_ring=plan.shape[:1] == lengths.most_common(1)[0][0])
        for name, plan in plans.items()
    }


def _limit(segments: list[Segment], index: int) -> int | None:
    """Return where a segment ends, if the one that follows it says so."""
    after = segments[index + 1] if index + 1 < len(segments) else None
    is_told = after is not None and after.previous_id == segments[index].id != 0
    return after.previous_end if after is not None and is_told else None

"""``CommitWriter``: commits changes of an ``ArrayStore`` to its folder, and begins new snapshots there."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sb3_compressed.codecs import Codec
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.chunks import segments_of
from sb3_compressed.storage.commit_format import commit_record, pack_patch, pack_ring_row, snapshot_patches
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_files import segment_path
from sb3_compressed.storage.manifest import ArraySpec, Manifest
from sb3_compressed.storage.record_kinds import COMMIT, MANIFEST, PATCHES

__all__ = ["RING_ROWS", "Change", "CommitWriter", "copy_committed", "snapshot_records"]

#: Changed rows: the name of an array, the first row, and the one after the last.
Change = tuple[str, int, int]
#: Stands for all arrays of the ring in a :data:`Change`.
RING_ROWS = ""


class CommitWriter:
    """Makes changes of a store visible in its folder, each atomically; for one process at a time.

    A commit is one record, which counts when it is complete. A snapshot is a new segment, which gets its name when it
    is complete and on the disk. So both survive a crash of the process, and after :meth:`.Log.flush` a commit survives
    a power cut as well.

    :param store: the store, with write access to its log when this writes
    """

    #: Maximum and minimum size at which a segment is full. In between, it is proportional to the live data, which also
    #: bounds unused bytes and the time to open the folder.
    SEGMENT_NBYTES, MIN_SEGMENT_NBYTES = 64 << 20, 384 << 10
    SEGMENT_SHARE = 8

    def __init__(self, store: ArrayStore) -> None:
        self.store = store
        #: Size at which the segment that is written to is full; 0 if not known yet.
        self._full_at = 0
        #: Whether this object committed anything since the last snapshot.
        self._has_commits = False

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
    ) -> CommitWriter:
        """Create a store whose arrays are zero; the arguments are those of :class:`.ArrayStore`.

        :param overwrite: whether it may replace an existing store, which stays until this one is complete
        :param lock: a lock of the folder, which the caller releases after errors; it is acquired
        :raises StorageError: if the folder contains a store that may not be replaced, or other files
        """
        log = Log.create(folder, overwrite=overwrite, lock=lock)
        try:
            writer = cls(ArrayStore(log, metadata, specs, values))
            writer.write_snapshot()
        except BaseException:
            log.close()
            raise
        return writer

    def commit(self, changes: Iterable[Change], values: Mapping[str, Any], codecs: Mapping[str, Codec]) -> None:
        """Store rows of the arrays, and all slots that they refer to, atomically.

        :param values: all values
        :param codecs: all codecs in use; :attr:`.ArrayStore.codecs` has their addresses afterwards
        :raises OSError: if the disk is full; nothing is committed
        """
        store, patches, step = self.store, [], self.store.step
        for name, first, last in changes:
            if name == RING_ROWS:
                ring = [store.arrays[each] for each in store.ring_names]
                for row in range(first, last):
                    step += 1 + (row - step - 1) % store.n_ring_rows
                    patches.append(pack_ring_row(ring, row, step))
            else:
                patches.append(pack_patch(store.numbers[name], store.arrays[name], first, last))
        commit: dict[str, Any] = {}
        before = store.values if step == store.step else {**store.values, "pos": (step + 1) % store.n_ring_rows}
        changed = {name: value for name, value in values.items() if name not in before or before[name] != value}
        if changed:
            commit["values"] = changed
        segment = store.log.segment_to_write()
        # In a new segment, all codecs are written, so that an old one need not be kept for them.
        addresses = {name: store.log.address_of_codec(codec) for name, codec in codecs.items()}
        if addresses.items() - store.codecs.items():
            commit["codecs"] = addresses
        segment.append(COMMIT, commit_record(commit, patches))
        # Copies, since the caller may modify lists and dicts in place.
        store.values = {**before, **copy.deepcopy(changed)} if changed else before
        store.step = step
        store.advance_step()
        store.codecs.update(addresses)
        self._has_commits = True
        if not self._full_at:  # the first commit
            self._plan_next_segment(store.live_segments())
        if segment.end > self._full_at:
            try:
                self.write_snapshot()
            except (OSError, StorageError) as error:  # the commit is complete; a new segment can wait
                self._full_at += segment.end
                warn_user(f"{store.log.folder}: cannot begin a new segment, so the last one keeps growing: {error}")

    def replace_content(
        self,
        metadata: Mapping[str, Any],
        specs: Mapping[str, ArraySpec],
        arrays: Mapping[str, Any],
        values: Mapping[str, Any],
        codecs: Mapping[str, Codec],
    ) -> None:
        """Replace the content by other arrays atomically; the slots that they refer to must be written already.

        :param codecs: as for :meth:`commit`
        :raises OSError: if the disk is full; the folder is unchanged, and must be opened again
        """
        store = self.store
        store.codecs = {name: store.log.address_of_codec(codec) for name, codec in codecs.items()}
        store.values = dict(values)
        store.replace_arrays(metadata, specs, arrays)
        store.advance_step()
        self.write_snapshot()

    def write_snapshot(self) -> None:
        """Write the complete state to a new segment, and delete segments that it does not refer to.

        There must be no uncommitted changes.
        """
        store = self.store
        live = store.live_segments()
        for table in store.log.live_tables():  # others than those of arrays, such as that of the last row
            live |= set() if any(table is own for own in store.arrays.values()) else segments_of(table)
        store.log.drop_cached(live)  # before: Windows neither truncates nor deletes files that are mapped
        store.log.begin_segment(snapshot_records(store, live))
        self._has_commits = False
        store.log.drop_segments(keep=live)
        self._plan_next_segment(live)

    def _plan_next_segment(self, live: Collection[int]) -> None:
        """Choose the size of the next segment, given the numbers of all live ones."""
        state = sum(spec.shape[0] * spec.row_nbytes for spec in self.store.specs.values())
        paths = [segment_path(self.store.log.folder, number) for number in live]
        share = max(sum(path.stat().st_size for path in paths if path.exists()), state) // self.SEGMENT_SHARE
        self._full_at = min(max(self.MIN_SEGMENT_NBYTES, share), self.SEGMENT_NBYTES)

    def close(self) -> None:
        """Close the folder, with a snapshot if there are commits after the last one, which makes opening fast."""
        log = self.store.log
        if log.is_writable and self._has_commits:
            try:
                self.write_snapshot()
            except OSError as error:  # everything is committed already
                warn_user(f"{log.folder}: opening takes longer, since no final snapshot could be written: {error}")
        self.store.close()


def copy_committed(store: ArrayStore, folder: Path) -> None:
    """Copy the committed state of a store to a new folder, with hard links where the file system supports them.

    A segment that is still written to can be shared: the copy ignores what is appended to it later.

    :raises StorageError: if the folder is not empty
    :raises OSError: if the disk is full
    """
    # The arrays of this store may be those of a buffer, which may have changed since the last commit.
    with contextlib.closing(ArrayStore.open(store.log.folder, rows=store.n_ring_rows)) as committed:
        live = committed.live_segments()
        committed.log.copy_to(folder, live, snapshot_records(committed, live))


def snapshot_records(store: ArrayStore, live: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yield kinds and contents of the records of a snapshot.

    :param live: the numbers of the segments that the state refers to
    """
    segments = {number: store.log.ids.get(number, 0) for number in live}
    manifest = Manifest(store.metadata, store.specs, segments, store.values, store.codecs, store.step).to_json()
    yield MANIFEST, manifest
    for name, array in store.arrays.items():
        for patch in snapshot_patches(store.numbers[name], array):
            yield PATCHES, patch
    yield MANIFEST, manifest  # a second copy, in case one is damaged
    yield COMMIT, commit_record({"values": store.values, "codecs": store.codecs})

"""``ArrayStore``: a folder that holds arrays, slots and values, changed in whole steps."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.config import dtype_from_text
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.chunks import copy_changed, row_chunks, segments_of
from sb3_compressed.storage.commit_format import (
    COMMIT,
    PATCHES,
    SECTION,
    Replay,
    commit_record,
    pack_patch,
    pack_ring_row,
    section_name,
    snapshot_patches,
    split_commit,
)
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import SEALED, Log
from sb3_compressed.storage.log_slot_store import LogSlotStore
from sb3_compressed.storage.metadata_schema import MANIFEST as MANIFEST_SCHEMA
from sb3_compressed.storage.metadata_schema import check, check_arrays_nbytes, load_json
from sb3_compressed.storage.segment import Segment
from sb3_compressed.warning import warn_user

__all__ = ["RING_ROWS", "ArraySpec", "ArrayStore", "Change"]

MANIFEST = 1  # a kind of record: JSON that says what the store is of, the first in every segment

REPAIR = "; repair=True keeps what is not damaged"
#: What a segment may come to in the middle of a change. Offsets in it have 32 bits.
MAX_SEGMENT_NBYTES = 2 << 30
#: Patches of a commit that have more bytes than this are records of their own: damage to one costs no others.
MAX_COMMIT_NBYTES = 1 << 16

#: Commits after which it is checked that no other process can have taken the folder over, and all values are written.
COMMITS_A_CHECK = 64

#: Items that may be missing though they are said to be written: a user's own code may have set ``pos`` or ``full``.
MAX_MISSING = 1 << 20

#: Rows of an array by its name, from the first up to the last, that are as the array now has them.
Change = tuple[str, int, int]
#: In the place of a name: all arrays of the ring.
RING_ROWS = ""


@dataclass(frozen=True)
class ArraySpec:
    """An array of a store.

    :param shape: its shape
    :param dtype: its dtype, as NumPy's ``dtype.str``
    :param is_table: whether its elements are addresses of slots
    :param is_ring: whether it has a row for each step, and steps write the same row of all arrays that have
    """

    shape: tuple[int, ...]
    dtype: str
    is_table: bool = False
    is_ring: bool = dataclasses.field(default=False, compare=False)

    @classmethod
    def of(cls, array: NDArray[Any], *, is_table: bool = False, is_ring: bool = False) -> ArraySpec:
        """Return the plan of an array that there is."""
        return cls(array.shape, array.dtype.str, is_table, is_ring)

    def zeros(self) -> NDArray[Any]:
        """Return the array, as it is before anything was written to it."""
        if not self.shape:
            raise ValueError(f"arrays have rows, got {self}")
        try:
            return np.zeros(self.shape, dtype_from_text(self.dtype))
        except MemoryError as error:
            raise StorageError(f"there is no memory for {self}") from error
        except ValueError as error:
            raise ValueError(f"arrays are of numbers, got {self}: {error}") from error

    @property
    def row_nbytes(self) -> int:
        """The bytes of one of its rows."""
        return math.prod(self.shape[1:]) * dtype_from_text(self.dtype).itemsize


class ArrayStore:
    """Named arrays of numbers, slots and a few values, in a folder, for one writer and any number of readers.

    What is written counts when it is committed, all at once, and outlives the process from then on, however that ends.
    After :meth:`flush`, it outlives a power cut. Use :meth:`create` or :meth:`open`.

    :param log: where all of it is
    :param about: what a reader has to know before it reads, for JSON
    :param plans: the arrays, by name
    :param arrays: what is in them
    :param values: a few numbers and texts, for JSON
    """

    #: Bytes after which a segment is full, at most and at least. In between, it is a part of what is live: so are the
    #: bytes that nothing refers to any more, and the commits to be read when the folder is opened.
    SEGMENT_NBYTES, MIN_SEGMENT_NBYTES = 64 << 20, 384 << 10
    SEGMENT_SHARE = 8

    def __init__(
        self,
        log: Log,
        about: Mapping[str, Any],
        plans: Mapping[str, ArraySpec],
        arrays: Mapping[str, NDArray[Any]],
        values: Mapping[str, Any],
    ) -> None:
        self.log = log
        self.about = dict(about)
        self.arrays: dict[str, Any] = dict(arrays)
        self.values = dict(values)
        #: The last step that wrote a row of the ring, -1 if there was none.
        self.step = -1
        #: How often it became a store of other content: commits of another one are of no concern.
        self.epoch = 0
        #: The address of each codec that is in use, by a name of its own.
        self.codecs: dict[str, int] = {}
        self.slots = LogSlotStore(log)
        #: The segment that was the last one when codecs were told, and these.
        self._placed: tuple[int, dict[str, Codec]] = (-1, {})
        self._set_plans(plans)
        #: Bytes after which the segment that is written to is full; 0 if that is not known yet.
        self._live_nbytes = self._full_at = 0
        self._n_commits = 0
        #: Whether this object committed anything since the last snapshot.
        self._has_commits = False
        log.describe = self._manifest

    def _set_plans(self, plans: Mapping[str, ArraySpec]) -> None:
        self.plans = dict(plans)
        self._numbers = {name: number for number, name in enumerate(self.plans)}
        self._ring_names = [name for name, plan in self.plans.items() if plan.is_ring]
        #: How many rows the arrays of the ring have.
        self.n_ring_rows = min((self.plans[name].shape[0] for name in self._ring_names), default=0)

    # -- making and opening ----------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        folder: Path,
        about: Mapping[str, Any],
        plans: Mapping[str, ArraySpec],
        values: Mapping[str, Any],
        *,
        overwrite: bool = False,
        advice: str = "pass overwrite=True to begin anew",
    ) -> ArrayStore:
        """Make a store of arrays of zeros.

        :param overwrite: whether it may take the place of another one, which is there until this one is
        :param advice: what a user can do where there is one
        :raises StorageError: if the folder holds a store and may not, or something else
        """
        log = Log.create(folder, overwrite=overwrite, advice=advice)
        try:
            store = cls(log, about, plans, {name: plan.zeros() for name, plan in plans.items()}, values)
            store.write_snapshot()
        except BaseException:
            log.close()
            raise
        return store

    @classmethod
    def open(cls, folder: Path, *, writable: bool = False, rows: int = 0) -> ArrayStore:
        """Open a store as it was after the last commit.

        :param writable: whether to write to it, which one process can
        :param rows: rows of arrays that the caller has memory for, however little is on the disk
        :raises StorageError: if there is none, or another process writes to it
        :raises CorruptStorage: if a file that is read is damaged, or declares more than there can be
        """
        log = Log.open(folder, writable=writable)
        try:
            store = cls._opened(log, writable=writable, rows=rows)
            if writable:
                log.clean_up()
                store._plan_next_segment(store.live_segments())
            else:
                store._hold_segments()  # somebody may begin to write at any time
        except BaseException:
            log.close()
            raise
        return store

    @classmethod
    def _opened(cls, log: Log, *, writable: bool, rows: int) -> ArrayStore:
        """Return the store of which the newest snapshot and what follows it tell."""
        while True:
            is_growing = not writable and FolderLock.is_held(log.folder)
            numbers = log.numbers()
            try:
                return cls._of_chain(log, log.open_chain(), is_growing=is_growing, rows=rows)
            except CorruptStorage as error:
                if writable or (log.numbers() == numbers and is_growing == FolderLock.is_held(log.folder)):
                    raise CorruptStorage(f"{error}{REPAIR}") from error
                # Somebody began to write meanwhile, or wrote another snapshot.

    @classmethod
    def _of_chain(cls, log: Log, chain: list[Segment], *, is_growing: bool, rows: int) -> ArrayStore:
        manifest = Manifest.of(chain[0], is_growing=is_growing)
        store = cls(log, manifest.about, manifest.plans, {}, {})
        store.step, store.epoch = manifest.step, manifest.epoch
        store.set_zeros(chain[0].path, rows)
        log.ids.update(manifest.segments)
        for segment, following in zip_longest(chain, chain[1:]):
            limit = None if following is None else following.previous_end
            store._read(segment, is_growing=is_growing, limit=limit, is_snapshot=segment is chain[0])
        return store

    def _read(
        self,
        segment: Segment,
        *,
        is_growing: bool,
        start: int | None = None,
        limit: int | None = None,
        is_snapshot: bool = False,
    ) -> None:
        """Take in what was committed to a segment.

        :param start: where to begin, if not with the segment
        :param limit: where it ends, if another one follows it
        :param is_snapshot: whether it has to have a commit
        :raises CorruptStorage: if it is damaged
        """
        replay = Replay([*self.arrays.values()], self.ring_numbers)
        pending: list[NDArray[np.uint8]] = []
        committed = start
        try:
            for record in segment.records(start, is_growing=is_growing, limit=limit):
                if record.kind == PATCHES:
                    pending.append(record.content)
                elif record.kind == COMMIT:
                    try:
                        told, patches = split_commit(record.content)
                        self.apply_commit(told, [*pending, patches], replay)
                    except CorruptStorage as error:
                        raise CorruptStorage(f"{segment.path}, the record at byte {record.offset}: {error}") from error
                    pending, committed = [], segment.end
                elif record.kind == SECTION:
                    self.take_section(record.content)
                elif record.kind == SEALED and limit is None and not is_growing:
                    raise CorruptStorage(f"the segment after {segment.path} is missing")
        finally:
            replay.finish()
        if committed is None:
            if is_snapshot:
                raise CorruptStorage(f"{segment.path} is damaged: it has no whole snapshot")
            committed = segment.start
        if limit is None:
            segment.end = committed

    def set_zeros(self, path: Path, rows: int) -> None:
        """Have arrays of zeros.

        :param path: the file that declares them
        :param rows: as for :meth:`open`
        :raises CorruptStorage: if there cannot be so large ones
        """
        check_arrays_nbytes([(plan.shape[0], plan.row_nbytes) for plan in self.plans.values()], path, rows)
        self.arrays = {name: plan.zeros() for name, plan in self.plans.items()}

    @property
    def ring_numbers(self) -> list[int]:
        """The numbers of the arrays that have a row for each step."""
        return [self._numbers[name] for name in self._ring_names]

    def apply_commit(self, told: Mapping[str, Any], patches: Iterable[NDArray[np.uint8]], replay: Replay) -> None:
        """Take in a commit.

        :param told: its values
        :param patches: those of the records before it, and its own
        :param replay: applies them
        :raises CorruptStorage: if one does not fit
        """
        for part in patches:
            step = replay.apply(part)
            if step is not None:
                self.step = step
                self.values["pos"] = (step + 1) % self.n_ring_rows
        self.values.update(told.get("values", {}))
        self._count_steps()
        self.codecs.update(told.get("codecs", {}))

    def _count_steps(self) -> None:
        """Let the last step be the one that wrote the row before the next, where rows are written in another way."""
        pos = self.values.get("pos")
        if self.n_ring_rows and type(pos) is int:
            self.step += (pos - 1 - self.step) % self.n_ring_rows

    def take_section(self, content: NDArray[np.uint8]) -> None:
        """Take in a section.

        :raises StorageError: if it has to be known and is not
        :raises CorruptStorage: if it has no name
        """
        name = section_name(content)
        if name[:1].isupper():
            raise StorageError(f"{self.log.folder} has the section {name!r}, which needs a newer version to be read")

    def refresh(self) -> bool:
        """Take in what another process has committed since; return whether that is anything.

        :raises StorageError: if the folder holds another buffer by now
        """
        before = self.log.last, self.log.last.end
        self._catch_up()
        self._hold_segments()
        return before != (self.log.last, self.log.last.end)

    def _hold_segments(self) -> None:
        """Open all that tables refer to, before the process that writes deletes what it needs no more."""
        while True:
            last = self.log.last
            try:
                live = self.live_segments()
                for each in live:
                    self.log.segment(each)
                self.log.close_others(live)
                self.slots.reader.forget_others(live)
                return
            except CorruptStorage:
                self._catch_up()
                if self.log.last is last:
                    raise

    def _catch_up(self) -> None:
        while True:
            last, numbers = self.log.last, self.log.numbers()
            try:
                following = None if self.log.is_replaced() else self.log.following()
                if following is not None and not following.is_snapshot:
                    self._read(last, is_growing=True, start=last.end, limit=following.previous_end)
                    self.log.advance(following)
                    self._read(following, is_growing=True)
                elif following is None and numbers[-1:] == [last.number]:
                    self._read(last, is_growing=True, start=last.end)
                    if self.log.numbers() == numbers:
                        return
                else:
                    self._reopen()
            except CorruptStorage:
                if self.log.numbers() == numbers:
                    raise
                # There is a newer snapshot, and what was to be read has been deleted.

    def _reopen(self) -> None:
        """Take in what the folder holds by now as a whole."""
        log = Log.open(self.log.folder)
        try:
            fresh = ArrayStore._opened(log, writable=False, rows=self.n_ring_rows)
            if log.identity != self.log.identity or (fresh.about, fresh.plans) != (self.about, self.plans):
                raise StorageError(f"{self.log.folder} holds another buffer by now; open it anew")
        except BaseException:
            log.close()
            raise
        # Only now, when all of it could be read.
        self.log.adopt(log)
        self.slots.reader.forget_others(())  # a repair may have given up what they were of
        for name, array in self.arrays.items():
            copy_changed(fresh.arrays[name], array)
        self.values, self.codecs = fresh.values, fresh.codecs
        self.step, self.epoch = fresh.step, fresh.epoch

    # -- writing ---------------------------------------------------------------------------------------------

    @property
    def is_of_version_1(self) -> bool:
        """Whether its state is in a snapshot of version 1 of the format, which does not tell what the ring is."""
        return self.log.last.id == 0

    def commit(self, changes: Iterable[Change], values: Mapping[str, Any], codecs: Mapping[str, Codec]) -> None:
        """Make rows of the arrays, and all slots they refer to, part of what is stored.

        :param values: all of them
        :param codecs: those in use, which :attr:`codecs` tells where to find
        :raises OSError: if the disk does not take it; nothing is committed then
        """
        arrays, patches, nbytes, step = self.arrays, [], 0, self.step
        segment = self.log.segment_to_write()
        self._n_commits += 1
        if self._n_commits % COMMITS_A_CHECK == 0:
            self.log.check_lock()
        start, has_patches = segment.end, False
        try:
            for name, first, last in changes:
                if name == RING_ROWS:
                    ring = [arrays[each] for each in self._ring_names]
                    for row in range(first, last):
                        step += 1 + (row - step - 1) % self.n_ring_rows
                        patches.append(pack_ring_row(ring, row, step))
                else:
                    patches.append(pack_patch(self._numbers[name], arrays[name], first, last))
                nbytes += len(patches[-1]) if patches else 0
                if nbytes > MAX_COMMIT_NBYTES:
                    has_patches = True
                    segment.append(PATCHES, b"".join(patches))
                    patches, nbytes = [], 0
            self._commit(patches, values, codecs, step)
        except Exception:
            if has_patches:  # which are not committed, and must not become part of the next commit
                segment.truncate(start)
                self.slots.writer.reset()
            raise
        if segment.end > self._full_at:
            try:
                self.write_snapshot()
            except (OSError, StorageError) as error:  # what was to be committed is; another segment can wait
                self._full_at = segment.end + self._capacity()
                warn_user(f"{self.log.folder} cannot begin another file, and goes on with the last one: {error}")

    def _commit(
        self, patches: Iterable[bytes], values: Mapping[str, Any], codecs: Mapping[str, Codec], step: int
    ) -> None:
        """Commit patches.

        :param step: the last step that wrote a row of the ring
        """
        told: dict[str, Any] = {}
        known = self.values if step == self.step else {**self.values, "pos": (step + 1) % self.n_ring_rows}
        if changed := {name: value for name, value in values.items() if name not in known or known[name] != value}:
            told["values"] = changed
        segment = self.log.segment_to_write()
        places = self._new_places(codecs, segment.number)
        if places:
            told["codecs"] = places
        if self._n_commits % COMMITS_A_CHECK == 0:  # damage to a commit costs what changes rarely for a while only
            told = {"values": {**known, **values}, "codecs": {**self.codecs, **places}}
        segment.append(COMMIT, commit_record(told, patches))
        # The caller may change in place what is no number or text.
        self.values = {**known, **{name: _own(value) for name, value in changed.items()}}
        self.step = step
        self._count_steps()
        self.codecs.update(places)
        self._placed = (segment.number, {**codecs})
        self._has_commits = True

    def _new_places(self, codecs: Mapping[str, Codec], segment: int) -> dict[str, int]:
        """Return the addresses of codecs that are other ones than before.

        In a new segment those of all, so that an old one need not be kept for them.
        """
        number, known = self._placed
        is_old = number != segment
        return {
            name: self.slots.writer.place_of_codec(codec)
            for name, codec in codecs.items()
            if is_old or known.get(name) is not codec
        }

    def become(
        self,
        about: Mapping[str, Any],
        plans: Mapping[str, ArraySpec],
        arrays: Mapping[str, Any],
        values: Mapping[str, Any],
        codecs: Mapping[str, Codec] | None = None,
    ) -> None:
        """Be a store of other arrays from now on, all at once; the slots that they refer to are there already.

        :param codecs: as for :meth:`commit`; ``None`` for those that there are
        :raises OSError: if the disk does not take it; it holds what it held then, and has to be opened anew
        """
        if codecs is not None:
            self.codecs = {name: self.slots.writer.place_of_codec(codec) for name, codec in codecs.items()}
        self.values = dict(values)
        self.replace_arrays(about, plans, arrays)
        self._count_steps()
        self.epoch += 1
        self.write_snapshot()

    def replace_arrays(
        self, about: Mapping[str, Any], plans: Mapping[str, ArraySpec], arrays: Mapping[str, Any]
    ) -> None:
        """Have other arrays from now on; the next snapshot makes that part of what is stored."""
        self.about = dict(about)
        self._set_plans(plans)
        self.arrays = {name: arrays[name] for name in plans}

    def make_room(self) -> None:
        """Begin another segment in the middle of a change, if the last one becomes too large. None is given up."""
        if self.log.last.end > MAX_SEGMENT_NBYTES:
            self.log.begin_segment()

    def write_snapshot(self) -> None:
        """Write the whole state to a segment of its own, and delete those that it does not refer to.

        There must be no change that is not committed.
        """
        live = self.live_segments()
        self.log.write_snapshot(self._snapshot(live))
        self._has_commits = False
        self.log.keep(live)
        self.slots.reader.forget_others(live)
        self._plan_next_segment(live)

    def _plan_next_segment(self, live: Iterable[int]) -> None:
        """Let the next segment be as large as it should be now.

        :param live: what :meth:`live_segments` returned
        """
        self._live_nbytes = self.log.nbytes(live)
        self.log.room = self._full_at = self._capacity()

    def _capacity(self) -> int:
        """Return the bytes that a segment is to have."""
        state = sum(math.prod(plan.shape) * np.dtype(plan.dtype).itemsize for plan in self.plans.values())
        share = max(self._live_nbytes, state) // self.SEGMENT_SHARE
        return min(max(self.MIN_SEGMENT_NBYTES, share), self.SEGMENT_NBYTES)

    def _manifest(self, live: Iterable[int] | None = None) -> tuple[int, bytes]:
        """Return the record that every segment begins with.

        :param live: numbers of segments whose ids it tells; ``None`` for all that are known
        """
        live = self.log.ids if live is None else live
        told = {
            "about": self.about,
            "arrays": {
                name: [list(plan.shape), plan.dtype, plan.is_table, plan.is_ring] for name, plan in self.plans.items()
            },
            "segments": {str(number): f"{self.log.ids.get(number, 0):016x}" for number in sorted(live)},
            "values": self.values,
            "codecs": self.codecs,
            "step": self.step,
            "epoch": self.epoch,
        }
        return MANIFEST, json.dumps(told).encode()

    def _snapshot(self, live: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        yield self._manifest(live)
        for name, array in self.arrays.items():
            for patch in snapshot_patches(self._numbers[name], array):
                yield PATCHES, patch
        yield self._manifest(live)  # again: damage to one costs nothing
        yield COMMIT, commit_record({"values": self.values, "codecs": self.codecs})

    def check_claims(self) -> None:
        """Raise if far fewer items are stored than the values claim, which what goes through them would trust.

        :raises CorruptStorage: with both numbers
        """
        for name, plan in self.plans.items():
            claimed = plan.shape[0] if self.values["full"] else self.values["pos"]
            if not plan.is_table or claimed * plan.shape[1] <= MAX_MISSING:
                continue
            written = sum(np.count_nonzero(self.arrays[name][part]) for part in row_chunks(self.arrays[name]))
            if claimed * plan.shape[1] - written > MAX_MISSING:
                raise CorruptStorage(
                    f"{self.log.folder}: {claimed} rows of {name} are said to be written, and only {written} items are"
                )

    def live_segments(self) -> set[int]:
        """Return the numbers of the segments that tables refer to, or that codecs in use are in."""
        numbers = {address >> 32 for address in self.codecs.values()}
        for name, plan in self.plans.items():
            if plan.is_table:
                numbers.update(segments_of(self.arrays[name]))
        return numbers

    def copy_to(self, folder: Path) -> None:
        """Copy what is committed to a new folder, files by links where the file system has them.

        A segment that is written to can be shared: the copy has one of its own behind it, and what comes to the shared
        one later is of no concern there.

        :raises StorageError: if the folder is not empty
        :raises OSError: if the disk does not take it
        """
        live = self.live_segments()
        self.log.copy_to(folder, live, self._snapshot(live))

    def flush(self) -> None:
        """Return when everything committed outlives a power cut."""
        self.log.flush()

    def release(self) -> None:
        """Let others write to the folder."""
        self.log.release()

    def acquire(self) -> None:
        """Write to the folder again; see :meth:`Log.acquire`."""
        self.log.acquire(COMMIT)
        if not self._full_at:
            self._plan_next_segment(self.live_segments())

    def close(self) -> None:
        """Let go of the folder. Slots can still be read from what is open already."""
        if self.log.is_writable and self._has_commits:
            try:
                self.write_snapshot()  # so that it is opened in no time
            except OSError as error:  # all is committed as it is
                warn_user(f"{self.log.folder} takes longer to open, since its last snapshot is not there: {error}")
        self.log.close()


def _own(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, dict | list) else value


@dataclass(frozen=True)
class Manifest:
    """What the first record of a segment tells.

    :param about: what a reader has to know before it reads
    :param plans: the arrays, by name
    :param segments: the ids of the segments that the state refers to, by number
    :param values: a few numbers and texts, as they were when the segment was begun
    :param codecs: the addresses of the codecs in use, likewise
    :param step: the last step that wrote a row of the ring, likewise
    :param epoch: how often the store became one of other content
    """

    about: dict[str, Any]
    plans: dict[str, ArraySpec]
    segments: dict[int, int]
    values: dict[str, Any]
    codecs: dict[str, int]
    step: int
    epoch: int

    @classmethod
    def of(cls, segment: Segment, *, is_growing: bool = False) -> Manifest:
        """Return that of a segment.

        :raises CorruptStorage: if it has none, or one that makes no sense
        """
        record = next(segment.records(is_growing=is_growing), None)
        if record is None or record.kind != MANIFEST:
            raise CorruptStorage(f"{segment.path} has no metadata")
        return cls.parse(record.content.tobytes(), str(segment.path))

    @classmethod
    def parse(cls, content: bytes, name: str) -> Manifest:
        """Return what the content of a record tells.

        :param name: where it comes from, for messages
        :raises CorruptStorage: if it makes no sense
        """
        try:
            told = load_json(content)
            check(MANIFEST_SCHEMA, told, "it does not fit the schema")
            plans = {name: ArraySpec(tuple(plan[0]), *plan[1:]) for name, plan in told["arrays"].items()}
            for each, plan in plans.items():
                if plan.is_table and (plan.dtype != "<i8" or len(plan.shape) != 2):
                    raise ValueError(f"{each} is to hold addresses, and is {plan}")
            segments = {int(number): int(own, 16) for number, own in told.get("segments", {}).items()}
            values, codecs = told.get("values", {}), told.get("codecs", {})
            step, epoch = told.get("step", -1), told.get("epoch", 0)
            return cls(told["about"], plans, segments, values, codecs, step, epoch)
        except ValueError as error:
            raise CorruptStorage(f"{name}: what it says of itself makes no sense: {error}") from error

"""``Store``: a folder that holds arrays, slots and values, changed in whole steps."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.chunks import copy_changed, segments_of
from sb3_compressed.storage.dtypes import dtype_from_text
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import SEALED, Log
from sb3_compressed.storage.schema import MANIFEST as MANIFEST_SCHEMA
from sb3_compressed.storage.schema import check, check_arrays_nbytes, load_json
from sb3_compressed.storage.segment import Segment
from sb3_compressed.storage.slots import StoredSlots
from sb3_compressed.storage.state import (
    COMMIT,
    PATCHES,
    apply_patches,
    commit_record,
    pack_patch,
    patches_of,
    split_commit,
)
from sb3_compressed.warning import warn_user

__all__ = ["ArrayPlan", "Change", "Store"]

MANIFEST = 1  # a kind of record: JSON that says what the store is of, the first in every segment

REPAIR = "; load_checkpoint(..., repair=True) goes back to the last whole state before"
#: What a segment may come to in the middle of a change. Offsets in it have 32 bits.
MAX_SEGMENT_NBYTES = 2 << 30

#: Rows of an array by its name, from the first up to the last, that are as the array now has them.
Change = tuple[str, int, int]


@dataclass(frozen=True)
class ArrayPlan:
    """An array of a store.

    :param shape: its shape
    :param dtype: its dtype, as NumPy's ``dtype.str``
    :param is_table: whether its elements are addresses of slots
    """

    shape: tuple[int, ...]
    dtype: str
    is_table: bool = False

    @classmethod
    def of(cls, array: NDArray[Any], *, is_table: bool = False) -> ArrayPlan:
        """Return the plan of an array that there is."""
        return cls(array.shape, array.dtype.str, is_table)

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


class Store:
    """Named arrays of numbers, slots and a few values, in a folder, for one writer and any number of readers.

    What is written counts when it is committed, all at once, and outlives the process from then on, however that ends.
    After :meth:`flush`, it outlives a power cut. Use :meth:`create` or :meth:`open`.

    :param log: where all of it is
    :param about: what a reader has to know before it reads, for JSON
    :param plans: the arrays, by name
    :param arrays: what is in them
    :param values: a few numbers and texts, for JSON
    """

    #: Bytes behind its snapshot after which a segment is full. A snapshot is to be a small part of it.
    SEGMENT_NBYTES = 64 << 20
    SEGMENT_SHARE = 2

    def __init__(
        self,
        log: Log,
        about: Mapping[str, Any],
        plans: Mapping[str, ArrayPlan],
        arrays: Mapping[str, NDArray[Any]],
        values: Mapping[str, Any],
    ) -> None:
        self.log = log
        self.about = dict(about)
        self.plans = dict(plans)
        self.arrays: dict[str, Any] = dict(arrays)
        self.values = dict(values)
        #: The address of each codec that is in use, by a name of its own.
        self.codecs: dict[str, int] = {}
        self.slots = StoredSlots(log)
        #: The segment that was the last one when codecs were told, and these.
        self._placed: tuple[int, dict[str, Codec]] = (-1, {})
        self._numbers = {name: number for number, name in enumerate(self.plans)}
        self._full_at = 0
        self._followed: Segment | None = None

    # -- making and opening ----------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        folder: Path,
        about: Mapping[str, Any],
        plans: Mapping[str, ArrayPlan],
        values: Mapping[str, Any],
        *,
        overwrite: bool = False,
        advice: str = "pass overwrite=True to begin anew",
    ) -> Store:
        """Make a store of arrays of zeros.

        :param overwrite: whether it may take the place of another one, which is there until this one is
        :param advice: what a user can do where there is one
        :raises StorageError: if the folder holds a store and may not, or something else
        """
        log = Log.create(folder, overwrite=overwrite, advice=advice)
        try:
            store = cls(log, about, plans, {name: plan.zeros() for name, plan in plans.items()}, values)
            store.start_segment()
        except BaseException:
            log.close()
            raise
        return store

    @classmethod
    def open(cls, folder: Path, *, writable: bool = False, repair: bool = False, rows: int = 0) -> Store:
        """Open a store as it was after the last commit.

        :param writable: whether to write to it, which one process can
        :param repair: whether to go back to the last commit before a damaged place instead of raising; after a power
            cut, that is the last state that reached the disk
        :param rows: rows of arrays that the caller has memory for, however little is on the disk
        :raises StorageError: if there is none, or another process writes to it
        :raises CorruptStorage: if a file that is read is damaged, or declares more than there can be
        """
        log = Log.open(folder, writable=writable)
        try:
            is_growing = not writable and FolderLock.is_held(folder)
            try:
                store = cls._opened(log, is_growing=is_growing, writable=writable, repair=repair, rows=rows)
            except CorruptStorage:
                if is_growing or writable or not FolderLock.is_held(folder):
                    raise
                # Somebody began to write meanwhile.
                store = cls._opened(log, is_growing=True, writable=writable, repair=repair, rows=rows)
            if writable:
                log.clean_up(repair=repair)
                store._start_to_write()
            else:
                store._hold_segments()  # somebody may begin to write at any time
        except BaseException:
            log.close()
            raise
        return store

    @classmethod
    def _opened(cls, log: Log, *, is_growing: bool, writable: bool, repair: bool, rows: int) -> Store:
        """Return the store of which the last segment tells, or to repair it, the last one that is whole."""
        numbers = log.numbers()
        for number in reversed(numbers):
            try:
                segment = log.open_last(number)
                store = cls(log, *_manifest(segment, is_growing=is_growing), {}, {})
                declared = [(plan.shape[0], plan.row_nbytes) for plan in store.plans.values()]
                check_arrays_nbytes(declared, segment.path, rows)
                store.arrays = {name: plan.zeros() for name, plan in store.plans.items()}
                is_newest = number == numbers[-1]
                store._read(segment, is_growing=is_growing or not is_newest, repair=repair)
                return store
            except CorruptStorage as error:  # noqa: PERF203  # rarely more than once
                if not writable and log.numbers() != numbers:  # deleted or begun meanwhile
                    return cls._opened(log, is_growing=True, writable=writable, repair=repair, rows=rows)
                if not repair or number == numbers[0]:
                    raise CorruptStorage(f"{error}{'' if repair else REPAIR}") from error
                warn_user(f"{error}; what was committed after the segment before it is given up")
        raise StorageError(f"{log.folder} holds no buffer")

    def _read(self, segment: Segment, *, is_growing: bool, repair: bool = False, start: int | None = None) -> None:
        """Take in what was committed to a segment.

        :param start: where to begin, if not with the segment
        :raises CorruptStorage: if it is damaged, unless something is committed before and ``repair`` says to give up
            what comes after
        """
        arrays = [*self.arrays.values()]
        pending: list[NDArray[np.uint8]] = []
        committed = start
        try:
            for record in segment.records(*([] if start is None else [start]), is_growing=is_growing):
                if record.kind == PATCHES:
                    pending.append(record.content)
                elif record.kind == COMMIT:
                    try:
                        values, patches = split_commit(record.content)
                        for content in [*pending, patches]:
                            apply_patches(content, arrays)
                    except CorruptStorage as error:
                        raise CorruptStorage(f"{segment.path}, the record at byte {record.offset}: {error}") from error
                    self.values.update(values.get("values", {}))
                    self.codecs.update(values.get("codecs", {}))
                    pending = []
                    committed = segment.end
                elif record.kind == SEALED and not is_growing:
                    raise CorruptStorage(f"the segment after {segment.path} is missing")
            if committed is None:
                raise CorruptStorage(f"{segment.path} is damaged: it has no whole snapshot")
        except CorruptStorage as error:
            if not repair or committed is None:
                raise
            warn_user(f"{error}; what was committed after byte {committed} of {segment.path} is given up")
        segment.end = committed
        self._followed = segment

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
                self.log.let_go_of_others(live)
                self.slots.reader.forget_others(live)
                return
            except CorruptStorage:
                self._catch_up()
                if self.log.last is last:
                    raise

    def _catch_up(self) -> None:
        last = self.log.newest()
        if last is self._followed:
            self._read(last, is_growing=True, start=last.end)
            return
        about, plans = _manifest(last, is_growing=True)
        if (about, plans) != (self.about, self.plans):
            raise StorageError(f"{self.log.folder} holds another buffer by now; open it anew")
        fresh = Store(self.log, about, plans, {name: plan.zeros() for name, plan in plans.items()}, {})
        fresh._read(last, is_growing=True)
        if self._followed is not None and self._followed.number == last.number:  # a repair went back in it
            self.slots.reader.forget_others(())
        # Only now, when all of it could be read.
        for name, array in self.arrays.items():
            copy_changed(fresh.arrays[name], array)
        self.values, self.codecs, self._followed = fresh.values, fresh.codecs, fresh._followed

    # -- writing ---------------------------------------------------------------------------------------------

    def commit(self, changes: Iterable[Change], values: Mapping[str, Any], codecs: Mapping[str, Codec]) -> None:
        """Make rows of the arrays, and all slots they refer to, part of what is stored.

        :param values: all of them
        :param codecs: those in use, which :attr:`codecs` tells where to find
        :raises OSError: if the disk does not take it; nothing is committed then
        """
        number_of, arrays = self._numbers, self.arrays
        patches = [pack_patch(number_of[name], arrays[name], first, last) for name, first, last in changes]
        self._commit(patches, values, codecs)

    def _commit(self, patches: Iterable[bytes], values: Mapping[str, Any], codecs: Mapping[str, Codec]) -> None:
        told: dict[str, Any] = {}
        if changed := {
            name: value for name, value in values.items() if name not in self.values or self.values[name] != value
        }:
            told["values"] = changed
        segment = self.log.segment_to_write()
        if places := self._new_places(codecs, segment.number):
            told["codecs"] = places
        segment.append(COMMIT, commit_record(told, patches))
        # The caller may change in place what is no number or text.
        self.values.update({name: _own(value) for name, value in changed.items()})
        self.codecs.update(places)
        self._placed = (segment.number, {**codecs})
        if segment.end > self._full_at:
            try:
                self.start_segment()
            except OSError as error:  # what was to be committed is; another segment can wait
                self._full_at = segment.end + self._capacity() // 8
                warn_user(f"{self.log.folder} cannot begin another file, and goes on with the last one: {error}")

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
        plans: Mapping[str, ArrayPlan],
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
        self.about, self.plans, self.values = dict(about), dict(plans), dict(values)
        self.arrays = {name: arrays[name] for name in plans}
        self._numbers = {name: number for number, name in enumerate(plans)}
        self.start_segment()

    def make_room(self) -> None:
        """Begin another segment in the middle of a change, if the last one becomes too large. None is given up."""
        if self.log.last.end > MAX_SEGMENT_NBYTES:
            rows = max((plan.shape[0] for plan in self.plans.values()), default=0)
            committed = Store.open(self.log.folder, rows=rows)
            self._start_segment(committed)
            committed.close()

    def start_segment(self) -> None:
        """Begin another segment, and give up those that nothing committed refers to. There must be no change yet."""
        self._start_segment(self)
        self.keep_live_segments()

    def keep_live_segments(self) -> None:
        """Give up what nothing committed refers to. There must be no change yet."""
        live = self.live_segments()
        self.log.keep(live)
        self.slots.reader.forget_others(live)

    def _start_segment(self, committed: Store) -> None:
        capacity = self._capacity()
        self.log.start_segment(committed._snapshot(), capacity)
        self._full_at = self.log.last.end + capacity

    def _start_to_write(self) -> None:
        capacity = self._capacity()
        self.log.last.make_room(capacity)
        self._full_at = capacity

    def _capacity(self) -> int:
        """Return the bytes that a segment is to have besides its snapshot."""
        state = sum(math.prod(plan.shape) * np.dtype(plan.dtype).itemsize for plan in self.plans.values())
        return min(max(self.SEGMENT_NBYTES, self.SEGMENT_SHARE * state), MAX_SEGMENT_NBYTES // 2)

    def _snapshot(self) -> Iterator[tuple[int, bytes]]:
        plans = {name: [list(plan.shape), plan.dtype, plan.is_table] for name, plan in self.plans.items()}
        yield MANIFEST, json.dumps({"about": self.about, "arrays": plans}).encode()
        for name, array in self.arrays.items():
            for patch in patches_of(self._numbers[name], array):
                yield PATCHES, patch
        yield COMMIT, commit_record({"values": self.values, "codecs": self.codecs})

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
        self.log.copy_to(folder, self.live_segments(), self._snapshot())

    def flush(self) -> None:
        """Return when everything committed outlives a power cut."""
        self.log.flush()

    def release(self) -> None:
        """Let others write to the folder."""
        self.log.release()

    def acquire(self) -> None:
        """Write to the folder again; see :meth:`Log.acquire`."""
        self.log.acquire(COMMIT)
        try:
            self._start_to_write()
        except BaseException:
            self.log.release()
            raise

    def close(self) -> None:
        """Let go of the folder. Slots can still be read from what is open already."""
        self.log.close()


def _own(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, dict | list) else value


def _manifest(segment: Segment, *, is_growing: bool = False) -> tuple[dict[str, Any], dict[str, ArrayPlan]]:
    """Return what a segment says of the store and its arrays."""
    for record in segment.records(is_growing=is_growing):
        try:
            if record.kind != MANIFEST:
                break
            told = load_json(record.content.tobytes())
            check(MANIFEST_SCHEMA, told, "it does not fit the schema")
            plans = {
                name: ArrayPlan(tuple(shape), dtype, is_table)
                for name, (shape, dtype, is_table) in told["arrays"].items()
            }
            for name, plan in plans.items():
                if plan.is_table and (plan.dtype != "<i8" or len(plan.shape) != 2):
                    raise ValueError(f"{name} is to hold addresses, and is {plan}")
            return told["about"], plans
        except ValueError as error:
            raise CorruptStorage(f"{segment.path}: what it says of itself makes no sense: {error}") from error
    raise CorruptStorage(f"{segment.path} does not say what it is of")

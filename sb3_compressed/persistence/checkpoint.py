"""Checkpoints: the state of a replay buffer in a folder, saved as a whole or only what changed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.frame_layout import FrameLayout, layout_from_state
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.buffer_repair import RepairReport, repair_store
from sb3_compressed.persistence.ring_resize import EPISODE_BEGINS, Resized, check_episodes, rows_by_age
from sb3_compressed.persistence.vector_slots import VectorSlots
from sb3_compressed.storage.array_store import ArrayStore, Change
from sb3_compressed.storage.checksum import checksum
from sb3_compressed.storage.chunks import copy_changed
from sb3_compressed.storage.commit_format import rows_of_chunk
from sb3_compressed.storage.damaged_store import DamagedStore, move_slots_from_damaged_files, open_damaged
from sb3_compressed.storage.json_schema import check
from sb3_compressed.storage.log import has_log, log_fingerprint
from sb3_compressed.storage.metadata_schema import METADATA, check_values

__all__ = [
    "Change",
    "Checkpoint",
    "bind",
    "changed_chunks",
    "checksums_of",
    "fitted",
    "load_into",
    "open_storage",
    "open_to_load",
    "refuse_other",
    "restore",
]

#: Rows that are written at a time.
ROWS = 64
#: Vectors that are looked for among those before.
MAX_KNOWN = 1 << 16


class Checkpoint:
    """A folder that a buffer in memory is saved to, and what of the buffer is in it already.

    :param buffer: the buffer
    :param store: the folder, which nobody holds between saves
    :param is_saved: whether it holds what the buffer holds now
    """

    def __init__(self, buffer: Any, store: ArrayStore, *, is_saved: bool) -> None:
        self.store = store
        self._is_new = not is_saved
        #: How the folder was left after the last save, whether that succeeded or not.
        self.left_at: tuple[int, ...] | None = None
        self._arrays = buffer_state.named_arrays(buffer)
        self._streams = buffer_state.streams(buffer)
        slotted = [name for names in self._streams.values() for name in names]
        #: The addresses of slots, and where slots were written since the last save.
        self._tables: dict[str, NDArray[np.int64]] = {}
        self._changed: dict[str, NDArray[np.bool_]] = {}
        for name in slotted:
            array = self._arrays[name]
            if isinstance(array, CompressedArray):
                self._changed[name] = array.track_changes()
            self._tables[name] = store.arrays[name] if is_saved else np.zeros(array.shape[:2], np.int64)
        #: Checksums of what does not notice when it is written to.
        self._checksums = self._new_checksums() if is_saved else {}
        if is_saved:
            store.arrays = self._stored()

    @classmethod
    def new(cls, buffer: Any, folder: Path, *, overwrite: bool) -> Checkpoint:
        """Return the checkpoint of a buffer in a folder that it was not saved to yet.

        :raises StorageError: if the folder holds another buffer, unless that may be overwritten, or something else
        """
        store = _to_overwrite(folder) if has_log(folder) else None
        if store is not None and store.metadata and not overwrite:
            store.close()
            store = None
        if store is None:
            store = ArrayStore.create(folder, {}, {}, {}, overwrite=overwrite)
        store.release()
        return cls(buffer, store, is_saved=False)

    def _new_checksums(self) -> dict[str, list[int]]:
        return checksums_of({name: self._arrays[name] for name in self._arrays if name not in self._changed})

    def _stored(self) -> dict[str, Any]:
        """Return the arrays of the store: addresses in the places of observations, others as they are."""
        return {**self._arrays, **self._tables}

    def is_of(self, buffer: Any, folder: Path) -> bool:
        """Return whether this is that buffer's, with the arrays that it has now, and in that folder."""
        arrays = buffer_state.named_arrays(buffer)
        same = self._arrays.keys() == arrays.keys() and all(self._arrays[name] is arrays[name] for name in arrays)
        # Another one may have begun to ask for changes, as of a copy that has the same arrays.
        same = same and all(arrays[name].changes is flags for name, flags in self._changed.items())
        return same and self.store.log.folder.resolve() == folder.resolve()

    def save(self, buffer: Any) -> None:
        """Write what changed since the last time.

        :raises OSError: if the disk does not take it; the folder is as it was then, and this cannot be used again
        :raises StorageError: if somebody else writes or wrote to the folder
        """
        store = self.store
        store.acquire()
        try:
            checksums = self._new_checksums()
            chunks = [] if self._is_new else changed_chunks(self._arrays, self._checksums, checksums)
            changes = self._save_slots(buffer, chunks)
            values, codecs = buffer_state.values(buffer), buffer_state.codecs(buffer)
            if self._is_new:
                store.replace_content(
                    buffer_state.about(buffer), buffer_state.plans(buffer), self._stored(), values, codecs
                )
            else:
                store.commit(changes, values, codecs)  # files that nothing refers to go when the next one begins
                store.flush()
            self._checksums, self._is_new = checksums, False
        finally:
            store.release()
            self.left_at = log_fingerprint(store.log.folder)

    def _save_slots(self, buffer: Any, chunks: list[Change]) -> list[Change]:
        """Write the slots that changed, and their addresses to the tables.

        :param chunks: rows of plain arrays that changed, or some that did
        :return: what changed of the arrays in the store
        """
        changed = np.full(buffer.buffer_size, self._is_new)
        for flags in self._changed.values():
            changed |= flags.any(axis=1)
            flags[...] = False
        for name, first, last in chunks:
            if name in self._tables:
                changed[first:last] = True
        by_age = rows_by_age(buffer.pos, buffer.buffer_size, full=buffer.full)
        behind = np.setdiff1d(np.arange(buffer.buffer_size), by_age)  # where a user may have written
        rows = np.concatenate([behind, by_age])
        rows = rows[changed[rows]] if self._tables else rows[:0]
        known: dict[bytes, bytes] = {}
        for start in range(0, len(rows), ROWS):
            some = rows[start : start + ROWS]
            self.store.begin_segment_if_full()
            if len(known) > MAX_KNOWN:
                known = {}
            for names in self._streams.values():
                # An observation and the next one after the other, so that what they share is known.
                slots = np.stack([self._slots(name, some, known) for name in names], axis=1)  # [rows, arrays, envs]
                addresses = self.store.slots.write([*slots.reshape(-1)]).reshape(slots.shape)
                for index, name in enumerate(names):
                    self._tables[name][some] = addresses[:, index]
        rows = np.sort(rows)
        spans = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
        written = [(name, int(span[0]), int(span[-1]) + 1) for name in self._tables for span in spans]
        return written + [chunk for chunk in chunks if chunk[0] not in self._tables]

    def _slots(self, name: str, rows: NDArray[np.int64], known: dict[bytes, bytes]) -> NDArray[Any]:
        array = self._arrays[name]
        return array.slots_at(rows) if isinstance(array, CompressedArray) else VectorSlots(array).slots_at(rows, known)


def _to_overwrite(folder: Path) -> ArrayStore | None:
    """Open what a folder holds, which stays until a first save is complete; ``None`` if it cannot be read."""
    try:
        return ArrayStore.open(folder, writable=True)
    except CorruptStorage:
        return None


def checksums_of(arrays: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the checksum of each chunk of plain arrays, by which their changes are found."""
    found = {}
    for name, array in arrays.items():
        n_rows = rows_of_chunk(array)
        chunks = (np.ascontiguousarray(array[first : first + n_rows]) for first in range(0, len(array), n_rows))
        found[name] = [checksum(chunk.reshape(-1).view(np.uint8)) for chunk in chunks]
    return found


def changed_chunks(
    arrays: Mapping[str, Any], before: Mapping[str, list[int]], after: Mapping[str, list[int]]
) -> list[Change]:
    """Return the rows of plain arrays of which the checksums are others than before."""
    changes: list[Change] = []
    for name, of_chunks in after.items():
        n_rows, length = rows_of_chunk(arrays[name]), len(arrays[name])
        changes += [
            (name, index * n_rows, min((index + 1) * n_rows, length))
            for index, (old, new) in enumerate(zip(before[name], of_chunks, strict=True))
            if old != new
        ]
    return changes


def open_storage(
    buffer: Any, folder: Path, *, resume: bool, overwrite: bool, repair: bool = False
) -> tuple[ArrayStore, RepairReport | None]:
    """Open a folder for a buffer whose slots are to be there, and make the buffer what the folder holds.

    :param repair: whether to exclude damaged transitions, with ``resume``
    :return: the store, and what was excluded
    :raises StorageError: if the folder holds a buffer and neither ``resume`` nor ``overwrite`` is said, or another one
    """
    if repair and not resume:
        raise StorageError("repair=True is for resume=True: it repairs what a folder holds")
    if resume and overwrite:
        raise StorageError("resume=True goes on with what a folder holds, overwrite=True begins anew: pass one of them")
    if not resume:
        about, plans, values = buffer_state.about(buffer), buffer_state.plans(buffer), buffer_state.values(buffer)
        advice = "pass resume=True to go on with it, or overwrite=True to begin anew"
        created = ArrayStore.create(folder, about, plans, values, overwrite=overwrite, advice=advice)
        bind(buffer, created)
        return created, None
    report, rows = None, buffer.buffer_size
    store = (open_damaged if repair else ArrayStore.open)(folder, writable=True, rows=rows)
    try:
        if isinstance(store, DamagedStore):
            report = repair_store(store)
            move_slots_from_damaged_files(store)
        refuse_other(store, buffer)
        arrays, values = fitted(store, buffer)
        if arrays is not store.arrays or store.is_version_1 or report is not None:
            codecs = {name: store.slots.reader.codec(address) for name, address in store.codecs.items()}
            store.replace_content(buffer_state.about(buffer), buffer_state.plans(buffer), arrays, values, codecs)
        bind(buffer, store)
        restore(buffer, store, values)
    except BaseException:
        store.close()
        raise
    return store, report


def open_to_load(folder: Path, *, repair: bool = False, follow: bool = False, rows: int = 0) -> ArrayStore:
    """Open a folder to load or follow what it holds.

    :param rows: as for :meth:`ArrayStore.open`
    :raises StorageError: if there is nothing, or a damaged folder is to be followed
    """
    if repair and follow:
        raise StorageError("a folder cannot be followed and repaired at once; repair it with resume=True, repair=True")
    return open_damaged(folder, writable=False, rows=rows) if repair else ArrayStore.open(folder, rows=rows)


def bind(buffer: Any, store: ArrayStore, *, writable: bool = True) -> None:
    """Put the arrays of a store in the places of a buffer's.

    :param writable: whether plain arrays may be written to; what is written to them would be lost otherwise
    """
    for name, array in buffer_state.named_arrays(buffer).items():
        if isinstance(array, CompressedArray):
            array.keep_in(store.slots.of_codec(array.codec.name), store.arrays[name])
        else:
            plain = store.arrays[name]
            if not writable:
                plain = plain.view()
                plain.flags.writeable = False
            buffer_state.put_array(buffer, name, plain)


def load_into(buffer: Any, store: ArrayStore) -> Checkpoint:
    """Make a buffer in memory what a store holds, the newest that fits, and return what is saved of it.

    :raises StorageError: if it cannot be such a buffer's
    :raises CorruptPayload: if a slot is damaged
    """
    refuse_other(store, buffer)
    arrays, values = fitted(store, buffer)
    ours = buffer_state.named_arrays(buffer)
    streams = buffer_state.streams(buffer)
    layouts = _layouts_of_vectors(store, values, {key: ours[names[0]] for key, names in streams.items()})
    vectors = [ours[names[0]] for names in streams.values() if not isinstance(ours[names[0]], CompressedArray)]
    row_nbytes = max((math.prod(array.shape[1:]) * array.dtype.itemsize for array in vectors), default=1)
    n_rows = max(1, min(LOADED_ROWS, MAX_LOADED_NBYTES // max(row_nbytes, 1)))
    for first in range(0, buffer.buffer_size, n_rows):
        rows = slice(first, min(first + n_rows, buffer.buffer_size))
        for key, names in streams.items():
            array = ours[names[0]]
            codec = array.codec.name if isinstance(array, CompressedArray) else "none"
            # An observation and the next one after the other, so that what they share is one object again.
            addresses = np.stack([arrays[name][rows] for name in names], axis=1)  # [rows, arrays, envs]
            if addresses.any():
                slots = store.slots.of_codec(codec).load(addresses.reshape(-1)).reshape(addresses.shape)
                for index, name in enumerate(names):
                    if isinstance(array := ours[name], CompressedArray):
                        array.put_slots(rows, slots[:, index])
                    else:
                        VectorSlots(array).put_slots(rows, slots[:, index], layouts.get(key))
    slotted = {name for names in streams.values() for name in names}
    for name, array in ours.items():
        if name not in slotted:
            copy_changed(arrays[name], array)
    restore(buffer, store, values)
    store.log.close_segments(keep=[])
    # Vectors do not remember a layout, without which nobody could read what is in the folder. What was repaired is
    # not in the folder yet.
    is_saved = arrays is store.arrays and not layouts and not isinstance(store, DamagedStore)
    return Checkpoint(buffer, store, is_saved=is_saved)


def _layouts_of_vectors(
    store: ArrayStore, values: Mapping[str, Any], arrays: Mapping[str, Any]
) -> dict[str, FrameLayout]:
    """Return how those observations are cut into frames in a folder that are plain arrays in memory.

    :param values: the state of the buffer in the folder
    :param arrays: the arrays of the buffer in memory, one of each stream
    :raises CorruptStorage: if it makes no sense
    """
    try:
        told = {key: values["streams"].get(key, {}).get("layout") for key in arrays}
        return {
            key: layout_from_state(array.shape[2:], *told[key])
            for key, array in arrays.items()
            if told[key] and not isinstance(array, CompressedArray)
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptStorage(f"{store.log.folder}: invalid values: {error!r}") from error


#: Rows that are loaded at a time, and the bytes of vectors that they may have.
LOADED_ROWS = 4096
MAX_LOADED_NBYTES = 32 << 20


def refuse_other(store: ArrayStore, buffer: Any) -> None:
    """Raise if what a store holds cannot be the state of such a buffer.

    :raises StorageError: with both sides
    """
    if not store.metadata:
        raise StorageError(f"{store.log.folder} holds no buffer: the first save to it was not completed")
    check(METADATA, store.metadata, f"{store.log.folder}: what it says of its buffer makes no sense")
    try:
        buffer_state.refuse_other(store.metadata, store.specs, buffer)
    except StorageError as error:
        raise type(error)(f"{store.log.folder}: {error}") from error


def fitted(store: ArrayStore, buffer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays and the values of a store as a buffer of any size has them, the newest that fits."""
    wanted, told, old = buffer_state.plans(buffer), store.values, len(store.arrays["actions"])
    plans = {
        name: dataclasses.replace(plan, shape=(buffer.buffer_size, *plan.shape[1:]))
        for name, plan in store.specs.items()
        if name != EPISODE_BEGINS and plan.shape[0] == old
    }
    plans = {**store.specs, **plans}
    if plans != wanted:
        raise StorageError(f"{store.log.folder} holds the arrays {store.specs}, here they are {wanted}")
    _check_values(store, told, store.arrays, old)
    store.check_item_counts()
    if old == buffer.buffer_size:
        return store.arrays, told
    looks_ahead = bool(buffer.optimize_memory_usage)
    resized = Resized(told["pos"], old, buffer.buffer_size, full=told["full"], looks_ahead=looks_ahead)
    arrays = {name: plan.zeros() for name, plan in plans.items()}
    resized.arrays(store.arrays, arrays)
    return arrays, {**told, "pos": resized.pos, "full": resized.full}


def _check_values(store: ArrayStore, values: Mapping[str, Any], arrays: Mapping[str, Any], rows: int) -> None:
    """Raise if values, or the arrays of hindsight's episodes, are out of range.

    :raises CorruptStorage: naming what is
    """
    check_values(values, rows, f"{store.log.folder}: invalid values")
    check_episodes(arrays, rows, str(store.log.folder))


def restore(buffer: Any, store: ArrayStore, values: dict[str, Any]) -> None:
    """Put into a buffer all of its state that is not in arrays.

    :raises CorruptStorage: if it makes no sense
    """
    _check_values(store, values, buffer_state.named_arrays(buffer), buffer.buffer_size)
    try:
        codecs = {name: store.slots.reader.codec(address) for name, address in store.codecs.items()}
        for key, array in buffer_state.last_of_streams(buffer).items():
            if key in codecs and codecs[key].name != array.codec.name:
                raise ValueError(f"the codec of {key!r} is {codecs[key].name}, and its slots are by {array.codec.name}")
        buffer_state.restore_values(buffer, values, {**buffer_state.codecs(buffer), **codecs})
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StorageError | CorruptPayload):
            raise
        raise CorruptStorage(f"{store.log.folder}: invalid values: {error!r}") from error

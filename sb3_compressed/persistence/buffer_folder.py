"""``BufferFolder``: the folder of a replay buffer, and what of the buffer it does not contain yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from sb3_compressed.errors import StorageError
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.replay_buffer_like import ReplayBufferLike
from sb3_compressed.persistence.sampler_state import sampler_arrays, sampler_values
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.chunks import copy_changed
from sb3_compressed.storage.commit_format import rows_of_chunk
from sb3_compressed.storage.commit_writer import Change, CommitWriter

__all__ = ["BufferFolder", "changed_chunks", "checksums_of"]


class BufferFolder:
    """Writes the state of a buffer to a folder: all of it the first time, then what changed.

    The folder of a checkpoint is only saved to; with ``storage=<folder>``, rows are committed between saves. The buffer
    is an argument of each method, since a reference to it would be a cycle.

    :param buffer: the buffer
    :param store: the folder
    :param arrays: the arrays to store: plain ones, which are those of the buffer, and addresses instead of slots.
        Arrays of the sampler among them are copies that are updated when the buffer is saved, since a snapshot may
        write them before; where there are none, its own arrays are written
    :param is_saved: whether the store contains the state of the buffer
    """

    def __init__(
        self, buffer: ReplayBufferLike, store: ArrayStore, arrays: Mapping[str, Any], *, is_saved: bool
    ) -> None:
        self._store, self._arrays, self._writer = store, arrays, CommitWriter(store)
        self._last_arrays = buffer_state.last_arrays(buffer)  # looked up once, since that takes time
        #: Checksums of what the store contains, by which a save finds changes; ``None`` before the first one.
        self._checksums = checksums_of(store.arrays) if is_saved else None

    def commit(self, buffer: ReplayBufferLike, changes: Iterable[Change]) -> None:
        """Commit some rows, and the values of the buffer.

        :raises OSError: if they cannot be written; nothing is committed
        """
        self._writer.commit(changes, *buffer_state.values_and_codecs(buffer, self._last_arrays))

    def save(self, buffer: ReplayBufferLike, changes: Iterable[Change] = ()) -> None:
        """Commit everything that the store does not contain yet, and sync it to the disk.

        Before, :func:`.buffer_state.require_loadable` checks that it could be loaded.

        :param changes: rows that are written whether they have changed or not
        :raises OSError: if it cannot be written; nothing is committed
        :raises StorageError: if an array of the sampler has another shape or dtype than before
        """
        store, arrays = self._store, {**self._arrays}
        for name, array in sampler_arrays(buffer).items():
            if self._checksums is not None:
                _require_same_format(name, array, store.arrays[name])
            if name in self._arrays:
                copy_changed(array, self._arrays[name])
            else:
                arrays[name] = array
        values, codecs = buffer_state.values_and_codecs(buffer, self._last_arrays)
        values |= sampler_values(buffer, store, buffer.pos)
        checksums = checksums_of(arrays)
        if self._checksums is None:
            specs = buffer_state.array_specs(buffer)
            self._writer.replace_content(buffer_state.metadata(buffer), specs, arrays, values, codecs)
        else:
            store.arrays |= arrays
            self._writer.commit([*changes, *changed_chunks(arrays, self._checksums, checksums)], values, codecs)
            store.log.flush()
        self._checksums = checksums

    def close(self) -> None:
        """Release the folder, whose slots can still be read."""
        self._writer.close()


def _require_same_format(name: str, array: Any, stored: Any) -> None:
    if (array.shape, array.dtype) != (stored.shape, stored.dtype):
        raise StorageError(
            f"{name} must always be {stored.shape} of {stored.dtype}, got {array.shape} of {array.dtype}"
        )


def checksums_of(arrays: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the checksum of each chunk of arrays, to detect changes."""
    checksums = {}
    for name, array in arrays.items():
        n_rows = rows_of_chunk(array)
        chunks = (np.ascontiguousarray(array[first : first + n_rows]) for first in range(0, len(array), n_rows))
        checksums[name] = [checksum(chunk.reshape(-1).view(np.uint8)) for chunk in chunks]
    return checksums


def changed_chunks(
    arrays: Mapping[str, Any], before: Mapping[str, list[int]], after: Mapping[str, list[int]]
) -> list[Change]:
    """Return the chunks of arrays whose checksums changed, as rows; all those of arrays without earlier checksums."""
    changes: list[Change] = []
    for name, checksums in after.items():
        n_rows, length = rows_of_chunk(arrays[name]), len(arrays[name])
        changes += [
            (name, index * n_rows, min((index + 1) * n_rows, length))
            for index, (old, new) in enumerate(zip_longest(before.get(name, ()), checksums))
            if old != new
        ]
    return changes

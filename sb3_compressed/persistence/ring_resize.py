"""Resizing replay buffers: the newest rows that fit stay, the oldest of them in the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.errors import CorruptStorage
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.buffer_state import EPISODE_BEGINS
from sb3_compressed.storage.chunks import row_chunks

if TYPE_CHECKING:
    from sb3_compressed.buffers.replay_mixin import CompressedReplay

__all__ = ["RingResize", "check_episodes", "copy_newest", "resize", "rows_by_age"]


def resize(buffer: CompressedReplay, buffer_size: int) -> None:
    """Increase the size of a replay buffer, in memory or in its folder; its content stays.

    Nothing is decoded. In memory, slots are copied as references; in a folder, the buffer is resumed with the new size.

    :param buffer: a buffer with next observations: not one with SB3's own ``optimize_memory_usage``, nor hindsight's
    :param buffer_size: the new number of transitions, not smaller than the current one
    :raises StorageError: if the folder is not open for writing
    :raises OSError: if it cannot be written
    """
    storage: dict[str, Any] = {}
    bound = buffer._bound_sampler
    sampler = {} if bound is None else {"sampler": bound.configured}
    if buffer.folder is not None:
        storage = {"storage": buffer.folder, "storage_mode": "resume"}
        buffer.close()
    resized = type(buffer)(
        observation_space=buffer.observation_space,
        action_space=buffer.action_space,
        device=buffer.device,
        num_threads=buffer.num_threads,
        **{**buffer_state.upgrade_arguments(buffer.given_arguments), **storage, **sampler, "buffer_size": buffer_size},
    )
    if buffer.is_in_memory:
        copy_newest(buffer, resized)
    buffer.take_over(resized)


def copy_newest(buffer: Any, resized: Any) -> None:
    """Copy the newest rows of a buffer in memory that fit to a new one of the same kind, and the state of its sampler.

    Neither may be one of hindsight replay.
    """
    ring = RingResize(buffer.pos, buffer.buffer_size, resized.buffer_size, full=buffer.full)
    new_arrays = buffer_state.named_arrays(resized)
    for name, array in buffer_state.named_arrays(buffer).items():
        if isinstance(array, CompressedArray):  # with its trained codec and frames to share
            buffer_state.put_array(resized, name, array.resized(resized.buffer_size, ring.kept))
        else:
            new_arrays[name][: len(ring.kept)] = array[ring.kept]
    resized.pos, resized.full = ring.pos, ring.full
    if (bound := buffer._bound_sampler) is None:
        return
    bound.prepare_to_save(buffer)
    n_items, n_new_items = (each.buffer_size * buffer.n_envs for each in (buffer, resized))
    kept = (ring.kept[:, np.newaxis] * buffer.n_envs + np.arange(buffer.n_envs)).reshape(-1)
    state = bound.sampler.state_dict()
    for name, value in state.items():
        if isinstance(value, np.ndarray) and value.ndim and len(value) == n_items:
            state[name] = np.zeros((n_new_items, *value.shape[1:]), value.dtype)
            state[name][: len(kept)] = value[kept]
    resized._bound_sampler.load(state, bound.n_written - bound.n_new, bound.n_new, len(ring.kept))
    resized._bound_sampler.catch_up(resized)


def rows_by_age(pos: int, rows: int, *, full: bool) -> NDArray[np.int64]:
    """Return the rows of a ring that are written, the oldest first."""
    return np.roll(np.arange(rows), -pos) if full else np.arange(pos)


def check_episodes(arrays: Mapping[str, Any], rows: int, what: str) -> None:
    """Raise if hindsight's episodes are not within the rows of a ring.

    :param what: how the message begins
    :raises CorruptStorage: naming the array
    """
    for name, most in (("ep_start", rows - 1), ("ep_length", rows), (EPISODE_BEGINS, rows - 1)):
        for part in row_chunks(arrays[name]) if name in arrays and rows else ():
            values = arrays[name][part]
            if values.min(initial=0) < 0 or values.max(initial=0) > most:
                raise CorruptStorage(f"{what}: {name} must be from 0 to {most}, got {values.min()} to {values.max()}")


class RingResize:
    """Which rows of a ring come to which rows of another.

    :param pos: the row of the old ring that is written next
    :param old: number of rows of the old ring
    :param new: number of rows of the new ring
    :param full: whether all rows of the old ring are written
    :param looks_ahead: whether the next observation of a row is the observation of the following row, as in SB3 with
        ``optimize_memory_usage``; then the row to be written next contains that of the newest, and no transition
    """

    def __init__(self, pos: int, old: int, new: int, *, full: bool, looks_ahead: bool = False) -> None:
        kept = rows_by_age(pos, old, full=full)
        if looks_ahead:
            kept = (kept[1:] if full else kept)[-(new - 1) :] if new > 1 else kept[:0]
        #: The old rows that are kept, in the order of the new ones, from row 0 on.
        self.kept = kept[-new:]
        n_kept = len(self.kept)
        self.pos, self.full = n_kept % new, n_kept == new
        self._ahead = (pos, n_kept) if looks_ahead else None
        self._old_pos = pos
        self._new_row = np.full(old, -1)
        self._new_row[self.kept] = np.arange(n_kept)

    def copy_arrays(self, old: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]) -> None:
        """Copy arrays of the old ring to those of the new one, which are zeros."""
        for name, array in old.items():
            if name == EPISODE_BEGINS:
                # An episode begins with the next row, or with one that is kept, or its beginning is lost.
                begins = np.where(array == self._old_pos, self.pos, np.maximum(self._new_row[array], 0))
                new[name][...] = begins
                continue
            new[name][: len(self.kept)] = array[self.kept]
            if self._ahead and name.startswith("observations"):
                new[name][self._ahead[1]] = array[self._ahead[0]]
        if "ep_start" in new:
            self._move_episodes(new["ep_start"][: len(self.kept)], new["ep_length"][: len(self.kept)])

    def _move_episodes(self, start: NDArray[Any], length: NDArray[Any]) -> None:
        """Set where hindsight's episodes begin now; one whose beginning is lost cannot be sampled from."""
        start[...] = self._new_row[start]
        is_cut = start < 0
        start[is_cut], length[is_cut] = 0, 0

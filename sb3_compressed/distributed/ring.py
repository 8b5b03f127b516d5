"""``Ring``: the transitions of one writer, in a replay buffer of a shard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.observations import take
from sb3_compressed.buffers.resize import copy_newest
from sb3_compressed.distributed.block import Block
from sb3_compressed.distributed.encoded_rows import OBSERVATIONS, append_rows
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.persistence.buffer_state import is_observation, named_arrays
from sb3_compressed.samplers import PrioritizedSampler
from sb3_compressed.samplers.bound_sampler import BoundSampler

__all__ = ["NUMBER_BITS", "Ring"]

#: Bits of the number of a transition in its ring.
NUMBER_BITS = 43


class Ring:
    """A replay buffer that one writer appends to.

    :param spec: how the buffer is constructed
    :param n_rows: number of rows
    :param n_envs: number of environments
    :param storage: ``storage`` and ``storage_mode`` of the buffer, empty for memory
    :param rng: draws transitions uniformly
    """

    def __init__(
        self, spec: RingSpec, n_rows: int, n_envs: int, storage: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._spec, self._rng = spec, rng
        self.buffer = spec.ring(n_rows, n_envs, **storage)
        #: The writer that may append, as it named itself; empty if this process has not heard of it.
        self.session = ""
        #: Number of rows that it has inserted.
        self.n_inserted = 0
        self._renumber()

    @property
    def streams(self) -> dict[str, CompressedArray]:
        """The compressed observations by their names."""
        arrays = named_arrays(self.buffer).items()
        return {name: array for name, array in arrays if is_observation(name) and isinstance(array, CompressedArray)}

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.buffer.buffer_size

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return self.buffer.n_envs

    @property
    def n_transitions(self) -> int:
        """Number of transitions that can be sampled."""
        return self.buffer.size() * self.buffer.n_envs

    @property
    def mass(self) -> float:
        """The sum of the priorities, or without any, the number of transitions."""
        sampler = self.buffer.sampler
        if not isinstance(sampler, PrioritizedSampler):
            return self.n_transitions
        self._bound.catch_up(self.buffer)  # after a reset, whose priorities would count otherwise
        return sampler.tree.total

    @property
    def max_updated(self) -> float:
        """The largest priority that was updated, 0 if there is none."""
        sampler = self.buffer.sampler
        return sampler.tree.max_updated if isinstance(sampler, PrioritizedSampler) else 0.0

    @property
    def _bound(self) -> BoundSampler:
        bound = self.buffer.bound_sampler
        assert bound is not None
        return bound

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, rows: Block, max_updated: float = 0.0) -> None:
        """Append rows.

        :param rows: what :func:`.block_of` returned
        :param max_updated: the largest priority that was updated in all rings of the shard; new transitions have at
            least this
        :raises OSError: if the folder cannot be written; the ring is then as it was, unless it has fewer rows than
            these
        """
        sampler = self.buffer.sampler
        if isinstance(sampler, PrioritizedSampler):
            sampler.max_updated_elsewhere = max_updated
        before = self.buffer.pos
        try:
            append_rows(self.buffer, rows)
        except BaseException:
            if self.buffer.pos != before:
                self._renumber()
            raise
        self.n_inserted += rows.values["n_rows"]
        self._end += rows.values["n_rows"]

    def truncate(self) -> None:
        """End the last episode of each environment by truncation, since what follows is from another episode."""
        buffer = self.buffer
        if not buffer.size():
            return
        row = buffer.pos - 1
        is_running = buffer.dones[row] == 0
        buffer.timeouts[row][is_running] = 1
        buffer.dones[row] = 1
        if buffer.folder is not None:
            buffer.flush()

    def reset(self) -> None:
        """Remove all transitions."""
        self.buffer.reset()
        self._renumber()
        self.session = ""
        if self.buffer.folder is not None:
            self.buffer.flush()

    def resize(self, n_rows: int) -> None:
        """Change the number of rows; the newest transitions that fit stay.

        :raises OSError: if the folder cannot be written; the ring is then as it was
        """
        if n_rows == self.n_rows:
            return
        old = self.buffer
        n_envs = old.n_envs
        if old.folder is not None:
            old.close()
            try:
                self.buffer = self._spec.ring(n_rows, n_envs, storage=old.folder, storage_mode="resume")
            except OSError:
                self.buffer = self._spec.ring(old.buffer_size, n_envs, storage=old.folder, storage_mode="resume")
                raise
        else:
            self.buffer = self._spec.ring(n_rows, n_envs)
            copy_newest(old, self.buffer)
        self._renumber()

    def load(self, folder: Path) -> None:
        """Replace the content by that of a checkpoint, in memory.

        :raises StorageError: if the folder does not contain such a ring
        """
        self.buffer = type(self.buffer).from_checkpoint(
            folder, buffer_size=self.n_rows * self.n_envs, device="cpu", num_threads=1, sampler=self._spec.sampler
        )
        self._renumber()

    # -- numbers ---------------------------------------------------------------------------------------------

    # Updates of priorities arrive after other rows were written, so transitions have numbers by which those of
    # overwritten ones are recognized: rows are numbered in the order in which they were written, and
    # ``number % (n_rows * n_envs)`` is the flat index.

    def _renumber(self) -> None:
        """Give all transitions new numbers. They begin anywhere, so those of before name none of them."""
        end = self.n_rows + int(self._rng.integers(1 << NUMBER_BITS - 1)) // self.n_envs
        #: The number of the next row.
        self._end = end + (self.buffer.pos - end) % self.n_rows

    def _numbers_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the transitions at flat indices."""
        first = (self._end - self.n_rows) * self.n_envs  # of the oldest row if the buffer is full
        return first + (indices - first) % (self.n_rows * self.n_envs)

    # -- sampling --------------------------------------------------------------------------------------------

    def sample(self, n: int) -> Block:
        """Draw transitions, each independently of the others or, with priorities, stratified; in any order.

        :return: their arrays ``(n, ...)``, among them ``"numbers"`` for :meth:`update` and, with priorities,
            ``"priorities"``. Of each compressed stream it has a batch of payloads, the observations before the next
            observations, and of these the ``"layouts"``
        """
        buffer = self.buffer
        priorities: NDArray[np.float64] | None = None
        if buffer.sampler is None:
            indices = self._rng.integers(0, self.n_transitions, n)
        else:
            indices = self._bound.draw(buffer, n).indices
            if isinstance(buffer.sampler, PrioritizedSampler):
                priorities = buffer.sampler.tree.values[indices]
        transitions = buffer._transitions_at(indices)
        arrays = {
            "numbers": indices if buffer.sampler is None else self._numbers_of(indices),
            "priorities": priorities,
            "actions": transitions.actions,
            "dones": transitions.dones,
            "rewards": transitions.rewards,
            "discounts": transitions.discounts,
        }
        layouts, batches = {}, {}
        at, next_at = transitions.indices, transitions.last_indices
        all_arrays = named_arrays(buffer)
        for name, array in all_arrays.items():
            if not name.startswith(OBSERVATIONS):
                continue
            next_array = all_arrays[f"next_{name}"]
            if isinstance(array, CompressedArray):
                layouts[name] = array.layout
                batches[name] = array.payloads(at, next_array, next_at)
            else:
                arrays |= {name: take(array, at), f"next_{name}": take(next_array, next_at)}
        sent = {name: array for name, array in arrays.items() if array is not None}
        return Block({"layouts": layouts}, sent, batches)

    def update(self, numbers: NDArray[np.int64], td_errors: NDArray[np.float64]) -> int:
        """Update priorities of the transitions that are still here; return how many these are."""
        first = (self._end - self.buffer.size()) * self.n_envs
        is_current = (numbers >= first) & (numbers < self._end * self.n_envs)
        indices = numbers[is_current] % (self.n_rows * self.n_envs)
        return len(indices) - self._bound.update(self.buffer, indices, td_errors[is_current])

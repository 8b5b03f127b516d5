"""``BoundSampler``: the sampler of one replay buffer, which is informed of what the buffer adds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sb3_compressed.common.warning import warn_user
from sb3_compressed.samplers.episode_table import EpisodeTable
from sb3_compressed.samplers.sampler import Draw, Sampler
from sb3_compressed.samplers.td_errors import validated_td_errors
from sb3_compressed.samplers.without_replacement import WithoutReplacementSampler

__all__ = ["BoundSampler", "SamplerBuffer"]

#: Batches without any update of priorities after which a warning says so.
MAX_WITHOUT_UPDATE = 1_000


class SamplerBuffer(Protocol):
    """What a sampler reads from a replay buffer, by the names that SB3 uses."""

    #: The row that is written next.
    pos: int
    #: Whether all rows are written.
    full: bool
    #: Whether the next observation of a row is the observation of the following row, as in SB3. Row ``pos`` of a full
    #: ring then contains the last next observation, and no transition.
    optimize_memory_usage: bool

    @property
    def episodes(self) -> EpisodeTable | None:
        """The episodes of hindsight replay, ``None`` for other buffers."""

    def size(self) -> int:
        """Return the number of rows that are written."""


class BoundSampler:
    """Keeps a sampler in step with its buffer: reports new and removed transitions, and validates draws.

    Each ``add`` reports its rows by :meth:`add_rows`; hindsight replay reports episodes to the sampler itself. The
    buffer is an argument of methods, since a reference to it would be a cycle.

    :param sampler: a sampler that belongs to no buffer
    :param n_rows: number of rows of the buffer
    :param n_envs: number of its environments
    """

    def __init__(self, sampler: Sampler, n_rows: int, n_envs: int) -> None:
        #: A copy of the sampler before it belonged to a buffer, for folders and for other buffers.
        self.configuration = copy.deepcopy(sampler)
        sampler.bind(n_rows, n_envs)
        self.sampler = sampler
        self.n_rows, self.n_envs = n_rows, n_envs
        #: How many updates were skipped since their transitions could no longer be drawn.
        self.n_skipped_updates = 0
        #: The number of newest rows that were not reported: those that a folder contains and its state of the sampler
        #: does not.
        self.n_unreported = 0
        # The position and the size of the buffer at the last report.
        self._pos = self._size = 0
        # Batches that were drawn without any update of priorities so far; -1 after the first update.
        self._n_without_update = 0

    # -- which transitions may be drawn ----------------------------------------------------------------------

    def add_rows(self, buffer: SamplerBuffer, n_new: int) -> None:
        """Report the newest rows to the sampler, one by one, after the buffer has counted them."""
        pos, size = (self._pos + n_new) % self.n_rows, min(self._size + n_new, self.n_rows)
        if (pos, size) != (buffer.pos, buffer.size()):
            self.catch_up(buffer)
            return
        if buffer.episodes is None:
            for offset in range(n_new):
                row = self._pos + offset
                if buffer.optimize_memory_usage and self._size + offset + 1 >= self.n_rows:
                    # The next observations of that row were overwritten. See SB3's ReplayBuffer.sample.
                    self.sampler.remove(self._indices_of(row + 1))
                    if self.n_rows == 1:
                        continue
                self.sampler.add(self._indices_of(row), buffer)
        self._pos, self._size = pos, size

    def _indices_of(self, row: int) -> NDArray[np.int64]:
        """Return the flat indices of a row."""
        first = row % self.n_rows * self.n_envs
        return np.arange(first, first + self.n_envs)

    def catch_up(self, buffer: SamplerBuffer) -> None:
        """Report what was not reported: after an interrupt within ``add``, a reset, or an assigned position."""
        if (self._pos, self._size) == (buffer.pos, buffer.size()):
            return
        self.n_unreported = int(buffer.pos - self._pos) % self.n_rows
        self.synchronize(buffer)

    def synchronize(self, buffer: SamplerBuffer) -> None:
        """Report every transition that became valid or invalid since the last report, and all unreported rows.

        For a buffer that was restored, from a folder or after a commit that failed.
        """
        pos, size = int(buffer.pos), int(buffer.size())  # a user may assign a tensor
        before, may_be_drawn = self.sampler.is_valid, self._may_be_drawn(buffer, pos, size)
        is_new = may_be_drawn & ~before
        end = pos * self.n_envs
        newest = np.arange(end - min(self.n_unreported, self.n_rows) * self.n_envs, end) % len(before)
        is_new[newest] = may_be_drawn[newest]
        if len(removed := np.flatnonzero(before & ~may_be_drawn)):
            self.sampler.remove(removed)
        if len(added := np.flatnonzero(is_new)):
            begin = np.searchsorted(added, end)  # the oldest row
            self.sampler.add(np.concatenate((added[begin:], added[:begin])), buffer)
        self._pos, self._size, self.n_unreported = pos, size, 0

    def _may_be_drawn(self, buffer: SamplerBuffer, pos: int, size: int) -> NDArray[np.bool_]:
        """Return which transitions of the buffer may be drawn, ``(n_rows * n_envs,)``."""
        if buffer.episodes is not None:
            return buffer.episodes.is_complete
        rows = np.arange(self.n_rows)
        is_written = rows < size
        if buffer.optimize_memory_usage and buffer.full:
            is_written &= rows != pos
        return np.repeat(is_written, self.n_envs)

    # -- restoring -------------------------------------------------------------------------------------------

    def load(self, state: dict[str, Any], n_new: int, n_kept: int | None = None) -> None:
        """Restore a saved state; :meth:`synchronize` must be called after the buffer's content is restored, too.

        :param state: the state of the sampler, in the order of this buffer's rows
        :param n_new: number of rows that were written after the state was saved
        :param n_kept: if the buffer has another size than the saved one, the number of rows that were kept
        :raises ValueError: if the state does not fit; the sampler must not be used then. Other errors are possible, too
        """
        if n_kept is None:
            self.sampler.load_state_dict(state)
        else:
            self.sampler.load_resized_state_dict(state, n_kept)
        self.n_unreported = min(n_new, self.n_rows if n_kept is None else n_kept)

    # -- drawing ---------------------------------------------------------------------------------------------

    def draw(self, buffer: SamplerBuffer, batch_size: int) -> Draw:
        """Draw a batch.

        :param batch_size: number of transitions, 0 for none
        :raises ValueError: if the sampler returns anything but that many transitions that may be drawn
        """
        if batch_size == 0:
            return Draw(np.empty(0, dtype=np.int64))
        self.begin_batch(buffer)
        return self._validated(self.sampler.draw(batch_size), batch_size)

    def begin_batch(self, buffer: SamplerBuffer) -> None:
        """Prepare the sampler for a draw; warn once if many batches were drawn without any update of priorities."""
        self.catch_up(buffer)
        if self._n_without_update >= 0 and self.sampler.has_priorities:
            self._n_without_update += 1
            if self._n_without_update == MAX_WITHOUT_UPDATE:
                warn_user(
                    f"{MAX_WITHOUT_UPDATE:,} batches were drawn by {type(self.sampler).__name__} and no priority was "
                    "updated, so prioritization has no effect: call prioritize(model), or update_priorities of the "
                    "buffer after each batch"
                )

    def draws_of_epochs(self, buffer: SamplerBuffer, batch_size: int, n: int, *, resume: bool) -> Iterator[Draw]:
        """Yield the batches of epochs, for :class:`.WithoutReplacementSampler`.

        :param n: number of epochs
        :param resume: whether the first one is the current epoch, if that has transitions left
        """
        sampler = self.sampler
        assert isinstance(sampler, WithoutReplacementSampler)
        for epoch in range(n):
            self.catch_up(buffer)
            if epoch or not (resume and sampler.n_left):
                sampler.start_epoch()
            while len((draw := sampler.draw_of_epoch(batch_size)).indices):
                yield draw
                self.catch_up(buffer)

    def _validated(self, draw: Any, batch_size: int) -> Draw:
        name = type(self.sampler).__name__
        if not isinstance(draw, Draw):
            raise TypeError(f"{name}.draw must return a Draw, got {type(draw).__name__}")
        indices, weights = draw
        if not isinstance(indices, np.ndarray) or indices.shape != (batch_size,) or indices.dtype.kind not in "iu":
            raise ValueError(f"{name}.draw must return {batch_size} integer indices, got {_described(indices)}")
        is_valid = self.sampler.is_valid
        # Negative integers are large unsigned ones.
        if indices.astype(np.int64, copy=False).view(np.uint64).max() >= len(is_valid):
            wrong = indices[(indices < 0) | (indices >= len(is_valid))][0]
            raise ValueError(f"{name}.draw must return indices from 0 to {len(is_valid) - 1}, got {wrong}")
        may_be_drawn = is_valid[indices]
        if not may_be_drawn.all():
            raise ValueError(
                f"{name}.draw returned the transition {indices[~may_be_drawn][0]}, which may not be drawn; see is_valid"
            )
        if weights is None:
            return draw
        if not isinstance(weights, np.ndarray) or weights.shape != (batch_size,) or weights.dtype.kind != "f":
            raise ValueError(f"{name}.draw must return {batch_size} weights as floats, got {_described(weights)}")
        if not np.isfinite(weights).all():
            raise ValueError(f"{name}.draw returned weights that are not finite")
        return draw

    # -- updating --------------------------------------------------------------------------------------------

    def update(self, buffer: SamplerBuffer, indices: ArrayLike, td_errors: Any) -> int:
        """Update the values of transitions; return how many were skipped since they may not be drawn.

        Parameters and errors are those of :meth:`validated_update`; no value is changed after an error.

        :raises TypeError: if the sampler has no values, too
        """
        indices, values, n_skipped = self.validated_update(buffer, indices, td_errors)
        self._n_without_update = -1
        self.sampler.update(indices, values)
        self.n_skipped_updates += n_skipped
        return n_skipped

    def validated_update(
        self, buffer: SamplerBuffer, indices: ArrayLike, td_errors: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
        """Return flat indices and values of those transitions that may be drawn, and how many others there are.

        Parameters and errors are those of :func:`.validated_td_errors`.

        :raises ValueError: if there is no such transition, too
        """
        indices, values = validated_td_errors(indices, td_errors)
        self.catch_up(buffer)
        n_items = self.n_rows * self.n_envs
        if len(indices) and (indices.min() < 0 or indices.max() >= n_items):
            wrong = indices[(indices < 0) | (indices >= n_items)][0]
            raise ValueError(f"indices must be those of a batch of this buffer, from 0 to {n_items - 1}, got {wrong}")
        may_be_drawn = self.sampler.is_valid[indices]
        n_skipped = len(indices) - int(np.count_nonzero(may_be_drawn))
        if n_skipped:
            indices, values = indices[may_be_drawn], values[may_be_drawn]
        return indices, values, n_skipped


def _described(value: Any) -> str:
    return f"{value.shape} of {value.dtype}" if isinstance(value, np.ndarray) else repr(value)

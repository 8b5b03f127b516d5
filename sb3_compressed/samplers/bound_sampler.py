"""``BoundSampler``: the sampler of one replay buffer, and which of the buffer's transitions it was informed of."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import BufferNotReady
from sb3_compressed.samplers.replay_ring import ReplayRing
from sb3_compressed.samplers.sampler import Draw, Sampler
from sb3_compressed.samplers.td_errors import validated_td_errors
from sb3_compressed.samplers.without_replacement import WithoutReplacementSampler

__all__ = ["BoundSampler"]

#: Batches after which a sampler with priorities that are never updated is a mistake.
MAX_WITHOUT_UPDATE = 1_000


class BoundSampler:
    """A sampler and the replay buffer's transitions that it may draw.

    The buffer only counts its rows, in :attr:`n_written`. What changed is passed to the sampler before it draws or
    updates values. The buffer is an argument of each method, since a reference to it would be a cycle.

    Each transition has a number, ``row_number * n_envs + env``, where rows are numbered from the first one that was
    ever written. So numbers of overwritten transitions are recognized, and ``number % (n_rows * n_envs)`` is the flat
    index.

    :param sampler: a sampler that belongs to no buffer
    :param n_rows: number of rows of the buffer
    :param n_envs: number of its environments
    """

    #: Batches that were drawn without any update of priorities so far; -1 after the first update.
    _n_without_update = 0  # pickles of version 0.2 lack it

    def __init__(self, sampler: Sampler, n_rows: int, n_envs: int) -> None:
        #: The sampler as it was configured, which belongs to no buffer.
        self.configured = copy.deepcopy(sampler)
        sampler.bind(n_rows, n_envs)
        self.sampler = sampler
        self.n_rows, self.n_envs = n_rows, n_envs
        #: Number of the next row, which the buffer increases.
        self.n_written = 0
        #: How many updates were skipped since their transitions were overwritten.
        self.n_skipped_updates = 0
        # The state of the buffer at the last synchronization.
        self._n_synced = 0
        self._pos, self._is_full = 0, False
        #: Which transitions of hindsight replay the sampler may draw, ``(n_rows * n_envs,)``.
        self._is_included: NDArray[np.bool_] | None = None
        #: Whether a state was loaded that was not compared with the content of the buffer yet.
        self._is_behind = False

    def number_after(self, replaced: BoundSampler) -> None:
        """Increase the numbers of all transitions, such that those in batches of a replaced sampler are overwritten."""
        shift = -(-replaced.n_written // self.n_rows) * self.n_rows
        self.n_written += shift
        self._n_synced += shift
        self.n_skipped_updates += replaced.n_skipped_updates

    # -- which transitions may be drawn ----------------------------------------------------------------------

    def synchronize(self, buffer: ReplayRing) -> None:
        """Pass the transitions to the sampler that were written since the last call, each once.

        The state of new transitions may depend on when the sampler is informed of them: prioritized ones get the
        largest priority at that time. So only draws and updates call this, and saves do not: a save must not change
        which transitions are drawn afterwards.
        """
        if not self._complete_count(buffer):
            self._start_anew(buffer)
        n_new, episodes = self.n_new, buffer.episodes
        is_included = None if episodes is None else episodes.is_complete
        if self._is_behind or is_included is not None:
            before = self.sampler.is_valid if self._is_behind else self._is_included
            self._pass_changes(buffer, before, is_included, n_new)
            self._is_included = is_included
        elif n_new:
            self._synchronize_rows(buffer, n_new)
        self._n_synced, self._pos, self._is_full = self.n_written, buffer.pos, buffer.full
        self._is_behind = False

    def prepare_to_save(self, buffer: ReplayRing) -> None:
        """Count the transitions that were written since the last :meth:`synchronize`, without passing them on.

        Only if the buffer was reset, or its position was assigned directly, is the sampler synchronized.
        """
        if not self._complete_count(buffer):
            self.synchronize(buffer)

    def _complete_count(self, buffer: ReplayRing) -> bool:
        """Count the row of an interrupted ``add``; return whether the counted rows lead to the buffer's position."""
        if self._is_reached(buffer):
            return True
        self.n_written += 1  # Ctrl-C may interrupt an add after it has moved the position
        if self._is_reached(buffer):
            return True
        self.n_written -= 1
        return False

    def _is_reached(self, buffer: ReplayRing) -> bool:
        """Return whether the rows that were counted lead to the position of the buffer."""
        reached = self._pos + self.n_written - self._n_synced
        is_full: bool = self._is_full or reached >= self.n_rows
        return bool(buffer.pos == reached % self.n_rows and buffer.full == is_full)

    def _start_anew(self, buffer: ReplayRing) -> None:
        """Replace all transitions, after the buffer was reset or its position was assigned directly."""
        self.sampler.remove(np.arange(self.n_rows * self.n_envs))
        self._is_included = None
        n_rows = buffer.size()
        # All earlier numbers are those of overwritten transitions.
        n_written = self.n_written + n_rows
        self.n_written = n_written + (buffer.pos - n_written) % self.n_rows
        self._n_synced = self.n_written - n_rows

    def _synchronize_rows(self, buffer: ReplayRing, n_new: int) -> None:
        reserves_row = buffer.optimize_memory_usage and buffer.full
        n_new = min(n_new, self.n_rows - reserves_row)
        first, n_envs = (buffer.pos - n_new) * self.n_envs, self.n_envs
        indices = np.arange(first, first + n_new * n_envs)
        if first < 0:
            indices %= self.n_rows * n_envs
        if reserves_row:
            # The next observations of that row were overwritten. See SB3's ReplayBuffer.sample.
            self.sampler.remove(np.arange(buffer.pos * n_envs, (buffer.pos + 1) * n_envs))
        self.sampler.add(indices, buffer)

    def _pass_changes(
        self, buffer: ReplayRing, before: NDArray[np.bool_] | None, may_be_drawn: NDArray[np.bool_] | None, n_new: int
    ) -> None:
        """Inform the sampler of the transitions that may be drawn now and could not be drawn before, and vice versa.

        New transitions are added, and others that could not be drawn before: those of an episode that was completed, or
        that a repair includes.

        :param before: which transitions could be drawn at the last synchronization, ``None`` if none could
        :param may_be_drawn: which transitions hindsight replay may draw now, ``None`` for other buffers
        :param n_new: number of rows that were written since the last synchronization
        """
        shape = self.n_rows, self.n_envs
        if may_be_drawn is None:
            may_be_drawn = self._may_be_drawn(buffer, np.arange(self.n_rows * self.n_envs))
        if may_be_drawn is None:
            may_be_drawn = np.ones(self.n_rows * self.n_envs, dtype=np.bool_)
        is_new = may_be_drawn
        if before is not None:
            is_new = may_be_drawn & ~before
            rows = np.arange(buffer.pos - min(n_new, self.n_rows), buffer.pos) % self.n_rows
            is_new.reshape(shape)[rows] = may_be_drawn.reshape(shape)[rows]
            if len(removed := np.flatnonzero(before & ~may_be_drawn)):
                self.sampler.remove(removed)
        if len(indices := np.flatnonzero(is_new)):
            begin = np.searchsorted(indices, buffer.pos * self.n_envs)  # the oldest row
            self.sampler.add(np.concatenate((indices[begin:], indices[:begin])), buffer)

    def _may_be_drawn(self, buffer: ReplayRing, indices: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return which flat indices are those of transitions that may be drawn, after a synchronization.

        :return: ``None`` if all are
        """
        if self._is_included is not None:
            return self._is_included[indices]
        may_be_drawn: NDArray[np.bool_] | None = None
        if not buffer.full:
            may_be_drawn = indices < buffer.pos * self.n_envs
        elif buffer.optimize_memory_usage:
            may_be_drawn = indices // self.n_envs != buffer.pos
        return may_be_drawn

    @property
    def lacks_episodes(self) -> bool:
        """Whether no episode of hindsight replay is complete yet; always false for other buffers."""
        return self._is_included is not None and not self._is_included.any()

    # -- restoring -------------------------------------------------------------------------------------------

    def undo_to(self, n_written: int) -> None:
        """Forget the newest rows, which were undone, unless a batch was drawn since: then the sampler begins anew."""
        if self._n_synced <= n_written:
            self.n_written = n_written

    def load(self, state: dict[str, Any], n_written: int, n_new: int, n_kept: int | None = None) -> None:
        """Restore a saved state; :meth:`catch_up` must be called before anything else, after the buffer's content.

        :param state: the state of the sampler, in the order of this buffer's rows
        :param n_written: number of rows that the sampler had been informed of when the state was saved
        :param n_new: number of rows that were written afterwards
        :param n_kept: if the buffer has another size than the saved one, the number of rows that were kept
        :raises ValueError: if the state does not fit; the sampler must not be used then. Other errors are possible, too
        """
        if n_kept is None:
            self.sampler.load_state_dict(state)
            self.n_written = n_written + n_new
        else:
            self.sampler.load_resized_state_dict(state, n_kept)
            # All earlier numbers are those of overwritten transitions.
            self.n_written = n_written + n_new + n_kept
            n_new = min(n_new, n_kept)
        self._n_synced = self.n_written - n_new
        self._is_behind = True

    def discard_state(self) -> None:
        """Begin anew, after a state that could not be loaded."""
        self.sampler = copy.deepcopy(self.configured)
        self.sampler.bind(self.n_rows, self.n_envs)
        self._is_behind = False

    @property
    def n_new(self) -> int:
        """Number of rows that were written since the state of the sampler."""
        return self.n_written - self._n_synced

    def catch_up(self, buffer: ReplayRing) -> None:
        """Count the rows of a restored buffer, if a state was loaded; the next :meth:`synchronize` compares them."""
        if not self._is_behind:
            return
        n_new = self.n_new
        self.n_written = max(self.n_written, buffer.size())
        self.n_written += (buffer.pos - self.n_written) % self.n_rows
        self._n_synced, self._pos, self._is_full = self.n_written - n_new, buffer.pos - n_new, buffer.full

    # -- drawing ---------------------------------------------------------------------------------------------

    def draw(self, buffer: ReplayRing, batch_size: int) -> Draw:
        """Draw a batch.

        :param batch_size: number of transitions, 0 for none
        :raises ValueError: if the sampler returns anything but that many transitions that may be drawn
        """
        self.synchronize(buffer)
        if batch_size == 0:
            return Draw(np.empty(0, dtype=np.int64))
        if self._n_without_update >= 0 and self.sampler.has_priorities:
            self._n_without_update += 1
            if self._n_without_update == MAX_WITHOUT_UPDATE:
                warn_user(
                    f"{MAX_WITHOUT_UPDATE:,} batches were drawn by {type(self.sampler).__name__} and no priority was "
                    "updated, so batches are biased for nothing: call prioritize(model), or update_priorities of the "
                    "buffer after each batch"
                )
        draw = self.sampler.draw(batch_size)
        self._validate(draw, buffer, batch_size)
        return draw

    def draw_again(self, buffer: ReplayRing, batch_size: int) -> Draw:
        """Draw more transitions for the batch of the last :meth:`draw`, at least 1."""
        draw = self.sampler.draw_again(batch_size)
        self._validate(draw, buffer, batch_size)
        return draw

    @property
    def can_draw_among(self) -> bool:
        """Whether the sampler implements :meth:`.Sampler.draw_among`."""
        return type(self.sampler).draw_among is not Sampler.draw_among

    def draw_among(self, buffer: ReplayRing, candidates: NDArray[np.int64], batch_size: int) -> Draw:
        """Draw a batch from some transitions, after :meth:`draw`. Those that may not be drawn are left out.

        :param candidates: flat indices ``(n,)``
        :raises BufferNotReady: if none of them may be drawn
        """
        may_be_drawn = self._may_be_drawn(buffer, candidates)
        candidates = candidates if may_be_drawn is None else candidates[may_be_drawn]
        if not len(candidates):
            raise BufferNotReady("a sequence begins at none of the transitions that the sampler may draw")
        draw = self.sampler.draw_among(candidates, batch_size)
        self._validate(draw, buffer, batch_size)
        return draw

    def draw_of_epoch(self, buffer: ReplayRing, batch_size: int) -> Draw:
        """Draw a batch that ends with the epoch of a :class:`WithoutReplacementSampler`."""
        sampler = self.sampler
        assert isinstance(sampler, WithoutReplacementSampler)
        self.synchronize(buffer)
        return sampler.draw_of_epoch(batch_size)

    def start_epoch(self, buffer: ReplayRing, *, resume: bool) -> None:
        """Begin an epoch of a :class:`WithoutReplacementSampler`.

        :param resume: whether to continue the current epoch instead, if it has transitions left that were not
            overwritten
        """
        sampler = self.sampler
        assert isinstance(sampler, WithoutReplacementSampler)
        self.synchronize(buffer)
        if not (resume and sampler.n_left):
            sampler.start_epoch()

    def _validate(self, draw: Any, buffer: ReplayRing, batch_size: int) -> None:
        name = type(self.sampler).__name__
        if not isinstance(draw, Draw):
            raise TypeError(f"{name}.draw must return a Draw, got {type(draw).__name__}")
        indices, weights = draw
        if not isinstance(indices, np.ndarray) or indices.shape != (batch_size,) or indices.dtype.kind not in "iu":
            raise ValueError(f"{name}.draw must return {batch_size} integer indices, got {_described(indices)}")
        n_items = self.n_rows * self.n_envs
        # Negative integers are large unsigned ones.
        if indices.astype(np.int64, copy=False).view(np.uint64).max() >= n_items:
            wrong = indices[(indices < 0) | (indices >= n_items)][0]
            raise ValueError(f"{name}.draw must return indices from 0 to {n_items - 1}, got {wrong}")
        may_be_drawn = self._may_be_drawn(buffer, indices)
        if may_be_drawn is not None and not may_be_drawn.all():
            raise ValueError(
                f"{name}.draw returned the transition {indices[~may_be_drawn][0]}, which may not be drawn; see is_valid"
            )
        if weights is None:
            return
        if not isinstance(weights, np.ndarray) or weights.shape != (batch_size,) or weights.dtype.kind != "f":
            raise ValueError(f"{name}.draw must return {batch_size} weights as floats, got {_described(weights)}")
        if not np.isfinite(weights).all():
            raise ValueError(f"{name}.draw returned weights that are not finite")

    def numbers_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the transitions at flat indices."""
        n_items = self.n_rows * self.n_envs
        first = (self.n_written - self.n_rows) * self.n_envs  # of the oldest row if the buffer is full
        return first + (indices - first) % n_items

    # -- updating --------------------------------------------------------------------------------------------

    def update(self, buffer: ReplayRing, numbers: ArrayLike, td_errors: Any) -> int:
        """Update the values of transitions; return how many were skipped since they were overwritten.

        Parameters and errors are those of :meth:`validated_update`; no value is changed after an error.

        :raises TypeError: if the sampler has no values, too
        """
        indices, values, n_skipped = self.validated_update(buffer, numbers, td_errors)
        self._n_without_update = -1
        self.sampler.update(indices, values)
        self.n_skipped_updates += n_skipped
        return n_skipped

    def validated_update(
        self, buffer: ReplayRing, numbers: ArrayLike, td_errors: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
        """Return flat indices and values without those of overwritten transitions, and how many these are.

        Parameters and errors are those of :func:`.validated_td_errors`.

        :raises ValueError: if there is no such transition, too
        """
        numbers, values = validated_td_errors(numbers, td_errors)
        self.synchronize(buffer)
        end = self.n_written * self.n_envs
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= end):
            wrong = numbers[(numbers < 0) | (numbers >= end)][0]
            possible = f"from 0 to {end - 1}" if end else "of which none was sampled yet"
            raise ValueError(f"indices must be those of a batch of this buffer, {possible}, got {wrong}")
        is_current = numbers >= (self.n_written - buffer.size()) * self.n_envs
        indices = (numbers % (self.n_rows * self.n_envs)).astype(np.int64, copy=False)
        if (may_be_drawn := self._may_be_drawn(buffer, indices)) is not None:
            is_current &= may_be_drawn
        n_skipped = len(numbers) - int(np.count_nonzero(is_current))
        if n_skipped:
            indices, values = indices[is_current], values[is_current]
        return indices, values, n_skipped


def _described(value: Any) -> str:
    return f"{value.shape} of {value.dtype}" if isinstance(value, np.ndarray) else repr(value)

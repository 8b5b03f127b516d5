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

__all__ = ["BoundSampler"]

#: Batches after which a sampler with priorities that are never updated is a mistake.
MAX_WITHOUT_UPDATE = 1_000


class BoundSampler:
    """A sampler and the replay buffer's transitions that it may draw.

    The buffer only counts its rows, in :attr:`n_written`. The sampler is informed of them before it draws or updates
    values: of many rows at once, which takes less time than at each ``add``, and of none that a failed commit to a
    folder has undone. The buffer is an argument of each method, since a reference to it would be a cycle.

    Each transition has a number, ``row_number * n_envs + env``, where rows are numbered from the first one that was
    ever written. So numbers of overwritten transitions are recognized without any memory for it, and
    ``number % (n_rows * n_envs)`` is the flat index.

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
        # The number of the next row and the number of written rows in the buffer at the last synchronization.
        self._n_synced = self._size = 0
        #: Whether a state was loaded that was not compared with the content of the buffer yet.
        self._is_behind = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_is_full" in state:  # of version 0.3.0 or older
            size = state["n_rows"] if state["_is_full"] else state["_pos"]
            state = {name: state[name] for name in state.keys() - {"_pos", "_is_full", "_is_included"}}
            state["_size"] = size
        vars(self).update(state)

    def number_after(self, replaced: BoundSampler) -> None:
        """Increase the numbers of all transitions, such that those in batches of a replaced sampler are overwritten."""
        shift = -(-replaced.n_written // self.n_rows) * self.n_rows
        self.n_written += shift
        self._n_synced += shift
        self.n_skipped_updates += replaced.n_skipped_updates

    # -- which transitions may be drawn ----------------------------------------------------------------------

    @property
    def n_new(self) -> int:
        """Number of rows that were written since the last synchronization, or the loaded state."""
        return self.n_written - self._n_synced

    def synchronize(self, buffer: ReplayRing) -> None:
        """Pass the transitions to the sampler that were written since the last call, each once.

        The state of new transitions may depend on when the sampler is informed of them: prioritized ones get the
        largest priority at that time. So only draws and updates call this, and saves do not: a save must not change
        which transitions are drawn afterwards.
        """
        if not self._count(buffer):  # the buffer was reset, or its position was assigned
            self.sampler.remove(np.arange(self.n_rows * self.n_envs))
            # A lap later, so that all earlier numbers are those of overwritten transitions.
            self.n_written += (buffer.pos - self.n_written) % self.n_rows + self.n_rows
            self._n_synced = self.n_written - buffer.size()
        n_new = min(self.n_new, self.n_rows)
        if self._is_behind or buffer.episodes is not None:
            self._pass_differences(buffer, n_new)
        elif n_new:
            self._pass_rows(buffer, n_new)
        self._n_synced, self._size, self._is_behind = self.n_written, buffer.size(), False

    def prepare_to_save(self, buffer: ReplayRing) -> None:
        """Count all rows. Only if the buffer was reset, or its position was assigned, is the sampler synchronized."""
        if not self._count(buffer):
            self.synchronize(buffer)

    def _count(self, buffer: ReplayRing) -> bool:
        """Count the row of an interrupted ``add``; return whether the counted rows lead to the buffer's position."""
        n_missed = (buffer.pos - self.n_written) % self.n_rows
        if n_missed > 1 or min(self._size + self.n_new + n_missed, self.n_rows) != buffer.size():
            return False
        self.n_written += n_missed
        return True

    def _pass_rows(self, buffer: ReplayRing, n_new: int) -> None:
        """Inform the sampler of the newest rows."""
        n_rows, n_envs = self.n_rows, self.n_envs
        if buffer.optimize_memory_usage and buffer.full:
            # The next observations of that row were overwritten. See SB3's ReplayBuffer.sample.
            self.sampler.remove(np.arange(buffer.pos * n_envs, (buffer.pos + 1) * n_envs))
            n_new = min(n_new, n_rows - 1)
        indices = np.arange((buffer.pos - n_new) * n_envs, buffer.pos * n_envs)
        self.sampler.add(indices % (n_rows * n_envs) if n_new > buffer.pos else indices, buffer)

    def _pass_differences(self, buffer: ReplayRing, n_new: int) -> None:
        """Inform the sampler of all transitions that may be drawn now and could not be drawn before, and vice versa.

        Those are new ones, and those of an episode that was completed or overwritten, or that a repair includes.
        """
        n_items, before = self.n_rows * self.n_envs, self.sampler.is_valid
        episodes = buffer.episodes
        may_be_drawn = episodes.is_complete if episodes else self._may_be_drawn(buffer, np.arange(n_items))
        is_new = may_be_drawn & ~before
        newest = np.arange((buffer.pos - n_new) * self.n_envs, buffer.pos * self.n_envs) % n_items
        is_new[newest] = may_be_drawn[newest]
        if len(removed := np.flatnonzero(before & ~may_be_drawn)):
            self.sampler.remove(removed)
        if len(added := np.flatnonzero(is_new)):
            begin = np.searchsorted(added, buffer.pos * self.n_envs)  # the oldest row
            self.sampler.add(np.concatenate((added[begin:], added[:begin])), buffer)

    def _may_be_drawn(self, buffer: ReplayRing, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which flat indices are those of transitions that may be drawn."""
        may_be_drawn: NDArray[np.bool_]
        if buffer.episodes is not None:
            may_be_drawn = buffer.episodes.lengths.reshape(-1)[indices] > 0
            return may_be_drawn
        may_be_drawn = indices < buffer.size() * self.n_envs
        if buffer.optimize_memory_usage and buffer.full:
            may_be_drawn &= indices // self.n_envs != buffer.pos
        return may_be_drawn

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

    def catch_up(self, buffer: ReplayRing) -> None:
        """Count the rows of a restored buffer, if a state was loaded; the next :meth:`synchronize` compares them."""
        if not self._is_behind:
            return
        n_new, size = self.n_new, buffer.size()
        self.n_written = max(self.n_written, size)
        self.n_written += (buffer.pos - self.n_written) % self.n_rows
        self._n_synced, self._size = self.n_written - n_new, size if buffer.full else max(size - n_new, 0)

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
        candidates = candidates[self._may_be_drawn(buffer, candidates)]
        if not len(candidates):
            raise BufferNotReady("a sequence begins at none of the transitions that the sampler may draw")
        draw = self.sampler.draw_among(candidates, batch_size)
        self._validate(draw, buffer, batch_size)
        return draw

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
        if not may_be_drawn.all():
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
        is_current &= self._may_be_drawn(buffer, indices)
        n_skipped = len(numbers) - int(np.count_nonzero(is_current))
        if n_skipped:
            indices, values = indices[is_current], values[is_current]
        return indices, values, n_skipped


def _described(value: Any) -> str:
    return f"{value.shape} of {value.dtype}" if isinstance(value, np.ndarray) else repr(value)

"""``WithoutReplacementSampler``: epochs, in each of which each transition is drawn once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.samplers.sampler import Draw, Sampler

__all__ = ["WithoutReplacementSampler"]

#: How many positions of an epoch are examined at once, at least.
MIN_CHUNK = 1024


class WithoutReplacementSampler(Sampler):
    """Draws each transition once in an epoch, in random order, and then begins the next epoch.

    An epoch consists of the transitions at its beginning. Those that are overwritten before they are drawn leave it,
    new ones are drawn in the next epoch. A batch across the end of an epoch contains transitions of both, so one of
    them may be in it twice; ``buffer.iterate`` returns smaller batches there instead.

    The order is a random permutation of the indices, which takes 8 bytes a transition during the epoch; two more record
    which ones may be drawn and which are left. The state contains these and the key of the permutation, so that a
    resumed training continues in the middle of an epoch.
    """

    #: How many epochs were begun.
    n_epochs = 0
    # Transitions of the epoch that were not drawn yet, (n_rows * n_envs,), and how many.
    _is_left: NDArray[np.bool_]
    _n_left = 0
    # The key and the length of the epoch's permutation, which includes all that are left.
    _key = 0
    _n_ordered = 0
    #: The permutation, ``None`` until it is needed, and the position in it.
    _order: NDArray[np.int64] | None = None
    _position = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def n_left(self) -> int:
        """How many transitions of the epoch are left; the next draw subtracts those that were overwritten since."""
        return self._n_left

    def bind(self, n_rows: int, n_envs: int) -> None:
        """Allocate the state."""
        super().bind(n_rows, n_envs)
        self._is_left = np.zeros_like(self.is_valid)

    def add(self, indices: NDArray[np.int64], buffer: Any) -> None:
        """Include transitions in the next epoch."""
        super().add(indices, buffer)
        self._leave_out(indices)

    def remove(self, indices: NDArray[np.int64]) -> None:
        """Exclude transitions."""
        super().remove(indices)
        self._leave_out(indices)

    def _leave_out(self, indices: NDArray[np.int64]) -> None:
        if self._n_left:
            self._n_left -= int(np.count_nonzero(self._is_left[np.unique(indices)]))
            self._is_left[indices] = False

    def start_epoch(self) -> None:
        """Begin an epoch of all transitions that may be drawn now, in a new order."""
        np.copyto(self._is_left, self.is_valid)
        self._n_left = int(np.count_nonzero(self.is_valid))
        self._n_ordered = len(self.is_valid) - int(np.argmax(self.is_valid[::-1]))
        self._key = int(np.random.randint(0, 2**63, dtype=np.int64))  # noqa: NPY002  # SB3's generator
        self._order = None
        self.n_epochs += 1

    def draw(self, batch_size: int) -> Draw:
        """Draw a batch, across the ends of epochs where necessary."""
        parts: list[NDArray[np.int64]] = []
        n_missing = batch_size
        while n_missing:
            if not self._n_left:
                self.start_epoch()
            parts.append(self.draw_of_epoch(n_missing).indices)
            n_missing -= len(parts[-1])
        return Draw(np.concatenate(parts) if len(parts) > 1 else parts[0])

    def draw_of_epoch(self, batch_size: int) -> Draw:
        """Draw a batch that ends with the epoch: of ``batch_size`` transitions, or of all that are left."""
        if not self._n_left:
            return Draw(np.empty(0, dtype=np.int64))
        if self._order is None:
            # The legacy generator: its permutations are the same in all versions of NumPy.
            seed = self._key & 0xFFFFFFFF, self._key >> 32
            self._order, self._position = np.random.RandomState(seed).permutation(self._n_ordered), 0
        parts: list[NDArray[np.int64]] = []
        n_missing = min(batch_size, self._n_left)
        while n_missing:
            following = self._order[self._position : self._position + max(2 * n_missing, MIN_CHUNK)]
            # Those that were drawn or overwritten, and those that were not valid at the beginning, are skipped.
            found = np.flatnonzero(self._is_left[following])[:n_missing]
            self._position += int(found[-1]) + 1 if len(found) == n_missing else len(following)
            parts.append(following[found])
            n_missing -= len(found)
            self._leave_out(parts[-1])
        if not self._n_left:
            self._order = None
        return Draw(np.concatenate([np.empty(0, dtype=np.int64), *parts]))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_order"}

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {
            **super().state_dict(),
            "is_left": self._is_left,
            "key": self._key,
            "n_ordered": self._n_ordered,
            "n_epochs": self.n_epochs,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        is_left, is_valid = self._flags_in(state, "is_left"), self._flags_in(state, "is_valid")
        if (is_left > is_valid).any():
            raise ValueError("is_left must be a part of is_valid")
        key, n_ordered, n_epochs = (int(state[name]) for name in ("key", "n_ordered", "n_epochs"))
        if not (0 <= n_ordered <= len(is_valid) and 0 <= key < 2**63 and n_epochs >= 0) or is_left[n_ordered:].any():
            raise ValueError(
                f"the order must be that of at most {len(is_valid)} transitions with all that are left, got "
                f"{n_ordered} with the key {key} and {n_epochs} epochs"
            )
        super().load_state_dict(state)
        self._is_left[:] = is_left
        self._n_left = int(np.count_nonzero(is_left))
        self._key, self._n_ordered, self._order = key, n_ordered, None
        self.n_epochs = n_epochs

    def load_resized_state_dict(self, state: dict[str, Any], n_rows: int) -> None:
        """Restore the state of a buffer of another size; what is left of the epoch is drawn in another order."""
        self.load_state_dict({**state, "n_ordered": len(self.is_valid)})

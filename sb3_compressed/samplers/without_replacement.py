"""``WithoutReplacementSampler``: epochs, in each of which each transition is drawn once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.samplers.keyed_permutation import keyed_permutation
from sb3_compressed.samplers.replay_ring import ReplayRing
from sb3_compressed.samplers.sampler import Draw, Sampler

__all__ = ["WithoutReplacementSampler"]

#: How many positions of an epoch are examined at once, at most.
MAX_CHUNK = 1 << 16


class WithoutReplacementSampler(Sampler):
    """Draws each transition once in an epoch, in random order, and then begins the next epoch.

    An epoch consists of the transitions at its beginning. Those that are overwritten before they are drawn leave it,
    new ones are drawn in the next epoch. A batch across the end of an epoch contains transitions of both, so one of
    them may be in it twice; ``buffer.iterate`` returns smaller batches there instead.

    The order is a keyed permutation, which takes no memory; two bytes a transition record which ones may be drawn and
    which are left. The state contains both, so that a resumed training continues in the middle of an epoch.
    """

    is_without_replacement = True
    #: How many epochs were begun.
    n_epochs = 0
    # Transitions of the epoch that were not drawn yet, (n_rows * n_envs,), and how many.
    _is_left: NDArray[np.bool_]
    _n_left = 0
    # The epoch's permutation of the integers of that many bits, and the position in it.
    _key = 0
    _n_bits = 2
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

    def add(self, indices: NDArray[np.int64], buffer: ReplayRing) -> None:
        """Include transitions in the next epoch."""
        super().add(indices, buffer)
        self._leave_out(indices)

    def remove(self, indices: NDArray[np.int64]) -> None:
        """Exclude transitions."""
        super().remove(indices)
        self._leave_out(indices)

    def _leave_out(self, indices: NDArray[np.int64]) -> None:
        if self._n_left:
            self._n_left -= int(np.count_nonzero(self._is_left[indices]))
            self._is_left[indices] = False

    def start_epoch(self) -> None:
        """Begin an epoch of all transitions that may be drawn now, in a new order."""
        np.copyto(self._is_left, self.is_valid)
        self._n_left = int(np.count_nonzero(self.is_valid))
        end = len(self.is_valid) - int(np.argmax(self.is_valid[::-1]))
        self._n_bits = _n_bits_for(end)
        self._key = int(np.random.randint(0, 2**63, dtype=np.int64))  # noqa: NPY002  # what SB3 draws from
        self._position = 0
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

    def draw_among(self, candidates: NDArray[np.int64], batch_size: int) -> Draw:
        """Draw from some transitions; when all of them were drawn in this epoch, the next one begins."""
        parts: list[NDArray[np.int64]] = []
        n_missing = batch_size
        while n_missing:
            left = candidates[self._is_left[candidates]]
            if not len(left):
                self.start_epoch()
                left = candidates
            parts.append(np.random.permutation(left)[:n_missing])  # noqa: NPY002
            self._leave_out(parts[-1])
            n_missing -= len(parts[-1])
        return Draw(np.concatenate(parts))

    def draw_of_epoch(self, batch_size: int) -> Draw:
        """Draw a batch that ends with the epoch: of ``batch_size`` transitions, or of all that are left."""
        parts: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
        n_missing = min(batch_size, self._n_left)
        while n_missing:
            # Integers of the permutation that are no transition, or none of those that are left, are skipped.
            n_positions = (1 << self._n_bits) - self._position
            if not n_positions:  # only if a loaded state was wrong
                self._leave_out(np.arange(len(self._is_left)))
                break
            n_expected = n_missing * n_positions // self._n_left
            n_examined = min(n_expected + n_expected // 8 + 16, n_positions, MAX_CHUNK)
            positions = np.arange(self._position, self._position + n_examined, dtype=np.uint64)
            images = keyed_permutation(positions, self._n_bits, self._key)
            found = np.flatnonzero(images < len(self._is_left))
            found = found[self._is_left[images[found]]][:n_missing]
            self._position += int(found[-1]) + 1 if len(found) == n_missing else n_examined
            indices = images[found].astype(np.int64)
            self._is_left[indices] = False
            self._n_left -= len(indices)
            n_missing -= len(indices)
            parts.append(indices)
        return Draw(np.concatenate(parts))

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {
            **super().state_dict(),
            "is_left": self._is_left,
            "key": self._key,
            "n_bits": self._n_bits,
            "position": self._position,
            "n_epochs": self.n_epochs,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        is_left, is_valid = self._flags_in(state, "is_left"), self._flags_in(state, "is_valid")
        if (is_left > is_valid).any():
            raise ValueError("is_left must be a part of is_valid")
        key, n_bits, position, n_epochs = (int(state[name]) for name in ("key", "n_bits", "position", "n_epochs"))
        if not (2 <= n_bits <= _n_bits_for(len(is_valid)) and 0 <= position <= 1 << n_bits and n_epochs >= 0):
            raise ValueError(
                f"the position must be in a permutation of at most {len(is_valid)} transitions, got {position} of "
                f"2 ** {n_bits} and {n_epochs} epochs"
            )
        super().load_state_dict(state)
        self._is_left[:] = is_left
        self._n_left = int(np.count_nonzero(is_left))
        self._key, self._n_bits, self._position, self.n_epochs = key, n_bits, position, n_epochs

    def load_resized_state_dict(self, state: dict[str, Any], n_rows: int) -> None:
        """Restore the state of a buffer of another size; what is left of the epoch is drawn in another order."""
        self.load_state_dict({**state, "n_bits": _n_bits_for(len(self.is_valid)), "position": 0})


def _n_bits_for(n_items: int) -> int:
    """Return how many bits the indices of so many items have, at least two."""
    return max((n_items - 1).bit_length(), 2)

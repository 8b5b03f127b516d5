"""Small samplers, for tests of what is between a sampler and a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sb3_compressed.samplers import Draw, Sampler


class ValidSampler(Sampler):
    """Draws all transitions that may be drawn with equal probability, and records what it is informed of."""

    def bind(self, n_rows: int, n_envs: int) -> None:
        """Begin the records."""
        super().bind(n_rows, n_envs)
        self.added: list[NDArray[np.int64]] = []
        self.removed: list[NDArray[np.int64]] = []

    def add(self, indices: NDArray[np.int64], buffer: Any) -> None:
        """Record the call."""
        super().add(indices, buffer)
        self.added.append(indices.copy())

    def remove(self, indices: NDArray[np.int64]) -> None:
        """Record the call."""
        super().remove(indices)
        self.removed.append(indices.copy())

    def draw(self, batch_size: int) -> Draw:
        """Draw a batch."""
        return Draw(np.random.choice(np.flatnonzero(self.is_valid), batch_size))  # noqa: NPY002


class WeightedSampler(Sampler):
    """Draws transitions in proportion to their values, with the inverse of the value as the weight."""

    def bind(self, n_rows: int, n_envs: int) -> None:
        """Allocate the values."""
        super().bind(n_rows, n_envs)
        self.values = np.zeros(n_rows * n_envs)

    def add(self, indices: NDArray[np.int64], buffer: Any) -> None:
        """Give new transitions the value 1."""
        super().add(indices, buffer)
        self.values[indices] = 1.0

    def remove(self, indices: NDArray[np.int64]) -> None:
        """Give them the value 0."""
        super().remove(indices)
        self.values[indices] = 0.0

    def draw(self, batch_size: int) -> Draw:
        """Draw a batch."""
        shares = self.values / self.values.sum()
        indices = np.random.choice(len(shares), batch_size, p=shares)  # noqa: NPY002
        return Draw(indices, (1.0 / self.values[indices]).astype(np.float32))

    def update(self, indices: NDArray[np.int64], values: ArrayLike) -> None:
        """Replace the values."""
        self.values[indices] = values

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {**super().state_dict(), "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        super().load_state_dict(state)
        self.values[:] = state["values"]


class ScriptedSampler(Sampler):
    """Returns what a test assigns to it."""

    result: Any = None

    def draw(self, batch_size: int) -> Any:
        """Return it."""
        return self.result

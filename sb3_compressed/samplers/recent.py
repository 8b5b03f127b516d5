"""``RecentSampler``: draws that emphasize recent transitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.samplers.sampler import Draw, Sampler

__all__ = ["RecentSampler"]

#: How often transitions that may not be drawn are replaced by other draws, before they are replaced by the newest ones.
MAX_REDRAWS = 32


class RecentSampler(Sampler):
    """Emphasizes recent transitions, but draws all of them.

    Each transition is drawn uniformly from a window of the newest ones, whose length is drawn from a log-uniform
    distribution between ``shortest`` and ``longest``. That is the distribution of Emphasizing Recent Experience (Wang
    and Ross 2019, https://arxiv.org/abs/1906.04009) over a sequence of its updates: its windows shrink geometrically
    from the whole buffer to about 2% of it. Here the sequence needs no known length. A transition of age ``a`` is drawn
    with a probability of about ``1 / a`` where ``a`` is between the two lengths. Zhang and Sutton (2017,
    https://arxiv.org/abs/1712.01275) show why large buffers need such an emphasis. With ``shortest == longest``, all
    of the newest transitions are drawn with equal probability.

    Windows consist of rows, so that all environments are drawn equally often. Transitions that may not be drawn, such
    as unfinished episodes of hindsight replay, are left out; if a window contains no others, the newest ones that may
    be drawn take their place.

    >>> RecentSampler(shortest=1000, longest=1000)  # the newest 1000
    RecentSampler(shortest=1000, longest=1000)

    :param shortest: length of the shortest window, as a number of transitions (int) or a share of the transitions in
        the buffer (float)
    :param longest: length of the longest window, likewise
    :raises ValueError: if a length is not positive, a share is above 1, or ``shortest`` exceeds ``longest``
    """

    def __init__(self, shortest: float = 0.02, longest: float = 1.0) -> None:
        for name, length in (("shortest", shortest), ("longest", longest)):
            if isinstance(length, bool) or not isinstance(length, int | float | np.integer | np.floating):
                raise TypeError(f"{name} must be a number of transitions or a share of them, got {length!r}")
            if not length > 0 or (length > 1 and isinstance(length, float | np.floating)):
                raise ValueError(f"{name} must be an int of at least 1 or a float above 0 and up to 1, got {length!r}")
        if isinstance(shortest, float) == isinstance(longest, float) and shortest > longest:
            raise ValueError(f"shortest must not exceed longest, got {shortest!r} and {longest!r}")
        self.shortest, self.longest = shortest, longest
        # The row that is written next, and how many were written, up to all.
        self._pos = self._n_written = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shortest={self.shortest!r}, longest={self.longest!r})"

    def add(self, indices: NDArray[np.int64], buffer: Any) -> None:
        """Include transitions."""
        super().add(indices, buffer)
        self._pos, self._n_written = buffer.pos, buffer.size()

    def draw(self, batch_size: int) -> Draw:
        """Draw a batch."""
        indices = self._candidates(batch_size)
        for _ in range(MAX_REDRAWS):
            excluded = np.flatnonzero(~self.is_valid[indices])
            if not len(excluded):
                return Draw(indices)
            indices[excluded] = self._candidates(len(excluded))
        excluded = np.flatnonzero(~self.is_valid[indices])
        [valid] = np.nonzero(self.is_valid)
        ages = (self._pos - 1 - valid // self.n_envs) % self.n_rows
        n_newest = int(self._length(self.shortest) * self.n_envs)
        newest = valid[np.argsort(ages, kind="stable")][:n_newest]
        indices[excluded] = np.random.choice(newest, len(excluded))  # noqa: NPY002
        return Draw(indices)

    def _candidates(self, n: int) -> NDArray[np.int64]:
        """Return flat indices from windows, which may include transitions that may not be drawn."""
        longest = self._length(self.longest)
        shortest = min(self._length(self.shortest), longest)
        windows = shortest * (longest / shortest) ** np.random.random_sample(n)  # noqa: NPY002
        ages = np.minimum((windows * np.random.random_sample(n)).astype(np.int64), self._n_written - 1)  # noqa: NPY002
        rows = (self._pos - 1 - ages) % self.n_rows
        return rows * self.n_envs + np.random.randint(0, self.n_envs, n)  # noqa: NPY002  # what SB3 draws from

    def _length(self, length: float) -> float:
        """Return a length in rows, from 1 to all of them."""
        n_rows = length * self._n_written if isinstance(length, float | np.floating) else length / self.n_envs
        return float(min(max(n_rows, 1.0), self._n_written))

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {**super().state_dict(), "pos": self._pos, "n_written": self._n_written}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        is_valid = self._flags_in(state, "is_valid")
        pos, n_written = int(state["pos"]), int(state["n_written"])
        if not (0 <= pos < self.n_rows and 0 <= n_written <= self.n_rows):
            raise ValueError(f"pos and n_written must be those of {self.n_rows} rows, got {pos} and {n_written}")
        n_needed = (int(np.flatnonzero(is_valid)[-1]) // self.n_envs + 1) if is_valid.any() else 0
        if n_written < n_needed or (n_written < self.n_rows and pos != n_written):
            raise ValueError(f"row {n_needed - 1} contains transitions, but pos is {pos} and n_written {n_written}")
        super().load_state_dict(state)
        self._pos, self._n_written = pos, n_written

    def load_resized_state_dict(self, state: dict[str, Any], n_rows: int) -> None:
        """Restore the state of a buffer of another size."""
        self.load_state_dict({**state, "pos": n_rows % self.n_rows, "n_written": n_rows})

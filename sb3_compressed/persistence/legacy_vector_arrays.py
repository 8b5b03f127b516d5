"""Stand-ins for classes of earlier versions; they only rebuild plain arrays.

Up to version 0.1, replay buffers stored a next observation of a vector space only where it was not the observation in
the following row. Pickled buffers of that time contain an ``ObservationArray`` and a ``SuccessorArray``, which share a
``SuccessorStore``. ``legacy_names`` maps their former modules to this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ObservationArray", "SuccessorArray", "SuccessorStore"]


class SuccessorStore:
    """Observations and next observations ``(rows, n_envs, *item_shape)`` from the state of a pickled store."""

    observations: NDArray[Any]
    next_observations: NDArray[Any]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.observations = state["observations"]
        self.next_observations = np.roll(self.observations, -1, axis=0)
        # Numbers of the items, row by row, that differed from the observation in the following row.
        items = self.next_observations.reshape(-1, *self.observations.shape[2:])
        items[state["own"]] = state["next_observations"]


def ObservationArray(store: SuccessorStore) -> NDArray[Any]:  # the name in the pickles
    """Return the observations of a pickled store."""
    return store.observations


def SuccessorArray(store: SuccessorStore) -> NDArray[Any]:  # the name in the pickles
    """Return the next observations of a pickled store."""
    return store.next_observations

"""Prioritized samplers behind one interface: this package's, cpprb's and TorchRL's, each with its default precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adapters.buffer_names import split_name

__all__ = ["ALPHA", "BETA", "PrioritizedItems", "make_sampler"]

ALPHA, BETA = 0.6, 0.4


class PrioritizedItems(Protocol):
    """Items with priorities, without anything else stored with them where the library allows that."""

    def add(self, begin: int, end: int) -> None:
        """Add new items."""

    def draw(self, batch_size: int) -> Any:
        """Draw items with importance weights, and return the items as :meth:`update` accepts them."""

    def update(self, items: Any, td_errors: NDArray[np.float32]) -> None:
        """Set the priorities of items from absolute TD errors."""


class Ours:
    """:class:`~sb3_compressed.samplers.PrioritizedSampler`."""

    def __init__(self, n_items: int) -> None:
        from sb3_compressed.samplers import PrioritizedSampler

        self._sampler = PrioritizedSampler(alpha=ALPHA, beta=BETA)
        self._sampler.bind(n_items, 1)

    def add(self, begin: int, end: int) -> None:
        self._sampler.add(np.arange(begin, end))

    def draw(self, batch_size: int) -> Any:
        return self._sampler.draw(batch_size).indices

    def update(self, items: Any, td_errors: NDArray[np.float32]) -> None:
        self._sampler.update(items, td_errors)


class Cpprb:
    """cpprb's buffer with a single byte for each item, as its sampler is not available on its own."""

    def __init__(self, n_items: int) -> None:
        from cpprb import PrioritizedReplayBuffer

        self._buffer = PrioritizedReplayBuffer(n_items, {"x": {"dtype": np.uint8}}, alpha=ALPHA)

    def add(self, begin: int, end: int) -> None:
        self._buffer.add(x=np.zeros(end - begin, np.uint8))

    def draw(self, batch_size: int) -> Any:
        return self._buffer.sample(batch_size, BETA)["indexes"]

    def update(self, items: Any, td_errors: NDArray[np.float32]) -> None:
        self._buffer.update_priorities(items, td_errors)


class TorchRL:
    """TorchRL's sampler, with a storage of one byte for each item, which it needs for its length."""

    def __init__(self, n_items: int) -> None:
        import torch as th
        from torchrl.data import LazyTensorStorage, PrioritizedSampler

        self._from_numpy = th.from_numpy
        self._arange, self._zeros = th.arange, th.zeros
        self._storage = LazyTensorStorage(n_items)
        self._sampler = PrioritizedSampler(n_items, alpha=ALPHA, beta=BETA)

    def add(self, begin: int, end: int) -> None:
        indices = self._arange(begin, end)
        self._storage.set(indices, self._zeros(end - begin, 1).byte())
        self._sampler.extend(indices)
        self._sampler.mark_update(indices)

    def draw(self, batch_size: int) -> Any:
        return self._sampler.sample(self._storage, batch_size)[0]

    def update(self, items: Any, td_errors: NDArray[np.float32]) -> None:
        self._sampler.update_priority(items, self._from_numpy(td_errors))


def make_sampler(name: str, n_items: int) -> PrioritizedItems:
    """Return a sampler by name: ``prioritized``, ``cpprb`` or ``torchrl``.

    :raises ValueError: if there is none of that name
    """
    library, method, _ = split_name(name)
    classes: dict[tuple[str, str], Callable[[int], PrioritizedItems]] = {
        ("ours", "prioritized"): Ours,
        ("cpprb", ""): Cpprb,
        ("torchrl", ""): TorchRL,
    }
    if (library, method) not in classes:
        raise ValueError(f"{name} is no prioritized sampler")
    return classes[library, method](n_items)

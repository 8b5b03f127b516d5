"""``Payloads``: the payloads of a batch, where their bytes are in memory, and which codec wrote each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Payloads"]


@dataclass(eq=False, repr=False)
class Payloads:
    """Payloads that kernels can read without Python objects.

    :param places: for each payload the address of its first byte, its length in bytes, and the index of the codec that
        wrote it in a separate list of codecs, ``(n, 3)``
    :param owner: an object that keeps this memory alive and unchanged
    """

    places: NDArray[np.int64]
    owner: object

    @classmethod
    def of(cls, payloads: Sequence[bytes], writers: NDArray[np.int64] | None = None) -> Payloads:
        """Return payloads whose bytes are copied to one contiguous block.

        :param writers: for each payload the index of the codec that wrote it, ``(n,)``; ``None`` for 0
        """
        places = np.empty((len(payloads), 3), dtype=np.int64)
        data = np.frombuffer(b"".join(payloads), dtype=np.uint8)
        lengths = np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))
        put_places()(data, lengths, places)  # NumPy would take several calls, in each `add`
        if writers is not None:
            places[:, 2] = writers
        result = cls(places, data)
        result.nbytes = data.size
        return result

    @cached_property
    def nbytes(self) -> int:
        """The number of bytes of all of them. It may be set by what knows it: adding them up takes 3 us."""
        return int(self.places[:, 1].sum())

    @property
    def writers(self) -> NDArray[np.int64]:
        """For each payload the index of the codec that wrote it, ``(n,)``."""
        writers: NDArray[np.int64] = self.places[:, 2]
        return writers

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: slice | NDArray[Any]) -> Payloads:
        """Return some of these payloads, in any order."""
        return Payloads(self.places[index], self.owner)

    def __iter__(self) -> Iterator[bytes]:
        return (ctypes.string_at(address, length) for address, length, _ in self.places.tolist())


@cache
def put_places() -> Callable[[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]], None]:
    """Import the kernel on first use: importing numba is slow."""
    from sb3_compressed.codecs.payload_places import put_places

    return put_places

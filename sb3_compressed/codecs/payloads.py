"""``Payloads``: a batch of payloads, with the places in memory where a kernel finds their bytes, and who wrote each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["Payloads"]


class Payloads(Sequence[bytes]):
    """Payloads and where they are. It reads as the sequence of them; a part of it is one as well.

    :param places: for each payload the address of its first byte, how many bytes it has, and the index of the codec
        that wrote it among codecs named elsewhere, ``(n, 3)``
    :param get: returns the payload of an index
    :param first: what is added to an index of this sequence before it goes to ``get``
    """

    def __init__(self, places: NDArray[np.int64], get: Callable[[int], bytes], first: int = 0) -> None:
        self.places = places
        self._get = get  # whatever this is bound to keeps the payloads where they are
        self._first = first

    @classmethod
    def of(cls, payloads: Sequence[bytes], writers: int | NDArray[np.int64] = 0) -> Payloads:
        """Return payloads with their places, those of one copy of them all.

        :param writers: for each payload, the index of the codec that wrote it, ``(n,)``
        """
        if isinstance(payloads, Payloads):
            return payloads
        places = np.empty((len(payloads), 3), dtype=np.int64)
        places[:, 1] = np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))
        places[:, 2] = writers
        ends = np.cumsum(places[:, 1])
        data = np.frombuffer(b"".join(payloads), dtype=np.uint8)
        places[:, 0] = ends - places[:, 1] + data.ctypes.data

        def get(index: int) -> bytes:
            end = int(ends[index])
            return data[end - int(places[index, 1]) : end].tobytes()

        return cls(places, get)

    @property
    def writers(self) -> NDArray[np.int64]:
        """For each payload, the index of the codec that wrote it, ``(n,)``."""
        writers: NDArray[np.int64] = self.places[:, 2]
        return writers

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Payloads: ...

    def __getitem__(self, index: int | slice) -> bytes | Payloads:
        if not isinstance(index, slice):
            return self._get(self._first + range(len(self))[index])
        start, _, step = index.indices(len(self))
        if step != 1:
            raise ValueError(f"payloads can only be cut into consecutive parts, got {index}")
        return Payloads(self.places[index], self._get, self._first + start)

    def __iter__(self) -> Iterator[bytes]:
        return map(self._get, range(self._first, self._first + len(self)))

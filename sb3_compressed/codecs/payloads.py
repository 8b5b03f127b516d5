"""``Payloads``: a batch of payloads with the places in memory where a kernel finds their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["Payloads"]


class Payloads(Sequence[bytes]):
    """Payloads and where they are. It reads as the sequence of them; a part of it is one as well.

    :param addresses: address of each payload's first byte, ``(n,)``
    :param lengths: bytes of each, ``(n,)``
    :param get: returns the payload of an index
    :param first: what is added to an index of this sequence before it goes to ``get``
    """

    def __init__(
        self, addresses: NDArray[np.int64], lengths: NDArray[np.int64], get: Callable[[int], bytes], first: int = 0
    ) -> None:
        self.addresses = addresses
        self.lengths = lengths
        self._get = get  # whatever this is bound to keeps the payloads alive
        self._first = first

    @classmethod
    def of(cls, payloads: Sequence[bytes]) -> Payloads:
        """Return payloads with their places, those of one copy of them all where they have none yet."""
        if isinstance(payloads, Payloads):
            return payloads
        payloads = tuple(payloads)
        lengths = np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))
        data = np.frombuffer(b"".join(payloads), dtype=np.uint8)
        addresses = np.cumsum(lengths) - lengths + data.ctypes.data
        located = cls(addresses, lengths, payloads.__getitem__)
        located._data = data
        return located

    _data: Any = None

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Payloads: ...

    def __getitem__(self, index: int | slice) -> bytes | Payloads:
        if isinstance(index, slice):
            start, _, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"payloads can only be cut into consecutive parts, got {index}")
            part = Payloads(self.addresses[index], self.lengths[index], self._get, self._first + start)
            part._data = self._data
            return part
        return self._get(self._first + range(len(self))[index])

    def __iter__(self) -> Iterator[bytes]:
        return map(self._get, range(self._first, self._first + len(self)))

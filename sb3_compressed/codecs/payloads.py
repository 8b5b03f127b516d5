"""``Payloads``: the payloads of a batch, where their bytes are in memory, and which codec wrote each."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["Payloads"]


class Payloads(Sequence[bytes]):
    """A sequence of payloads that kernels can read without Python objects.

    :param places: for each payload the address of its first byte, its length in bytes, and the index of the codec that
        wrote it in a separate list of codecs, ``(n, 3)``
    :param owner: an object that keeps this memory alive and unchanged
    :param objects: the payloads as Python objects, if they exist
    :param done: for each payload 1 if the output contains its frame already, so that a decoder may skip it, else 0,
        ``(n,)``; decoders may write to it. ``None`` if no frame is there yet
    """

    def __init__(
        self,
        places: NDArray[np.int64],
        owner: object,
        objects: Sequence[bytes] | None = None,
        done: NDArray[np.uint8] | None = None,
    ) -> None:
        self.places = places
        self.owner = owner
        self.done = done
        self._objects = objects

    @classmethod
    def of(cls, payloads: Sequence[bytes], writers: int | NDArray[np.int64] = 0) -> Payloads:
        """Return payloads whose bytes are copied to one contiguous block.

        :param writers: for each payload the index of the codec that wrote it, ``(n,)``
        """
        if isinstance(payloads, Payloads):
            return payloads
        places = np.empty((len(payloads), 3), dtype=np.int64)
        places[:, 1] = np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))
        places[:, 2] = writers
        data = np.frombuffer(b"".join(payloads), dtype=np.uint8)
        places[:, 0] = data.ctypes.data + np.cumsum(places[:, 1]) - places[:, 1]
        return cls(places, data, payloads)

    @property
    def writers(self) -> NDArray[np.int64]:
        """For each payload the index of the codec that wrote it, ``(n,)``."""
        writers: NDArray[np.int64] = self.places[:, 2]
        return writers

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Payloads: ...

    def __getitem__(self, index: int | slice) -> bytes | Payloads:
        if isinstance(index, slice):
            if index.indices(len(self))[2] != 1:
                raise ValueError(f"a slice of payloads must be contiguous, got {index}")
            return Payloads(self.places[index], self.owner, None if self._objects is None else self._objects[index])
        if self._objects is not None:
            return self._objects[index]
        address, length, _ = self.places[index].tolist()
        return ctypes.string_at(address, length)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._objects if self._objects is not None else map(self.__getitem__, range(len(self.places))))

    def select(self, numbers: NDArray[np.int64]) -> Payloads:
        """Return some of these payloads, in any order."""
        objects = None if self._objects is None else [self._objects[number] for number in numbers.tolist()]
        return Payloads(self.places[numbers], self.owner, objects)

    def skipping(self, done: NDArray[np.uint8] | None) -> Payloads:
        """Return these payloads, of which those that are done need not be decoded."""
        return Payloads(self.places, self.owner, self._objects, done)

    def tolist(self) -> Sequence[bytes]:
        """Return the payloads as a sequence of objects, which is faster to iterate over than this."""
        return [*self] if self._objects is None else self._objects

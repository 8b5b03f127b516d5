"""Handing decoded arrays over: what is decoded inside a batch belongs to nobody yet and may be kept without a copy."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch", "Memory", "claim_owned", "mark_owned", "new_output", "recall", "remember"]


class Memory(Protocol):
    """Where the arrays of a batch are made."""

    def begin_batch(self) -> None:
        """Say that the arrays handed out from here on belong to another batch."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialised array."""


class Batch:
    """A batch in the making: inside a ``with`` block, what this thread decodes is part of it.

    :param memory: where its arrays are made
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.decoded: dict[int, NDArray[Any]] = {}  # by id; being here, no other array gets the same one
        self.remembered: dict[int, Any] = {}
        self._outer: Batch | None = None

    def __enter__(self) -> None:
        self.memory.begin_batch()
        self._outer, _thread.batch = _thread.batch, self

    def __exit__(self, *_: object) -> None:
        _thread.batch = self._outer


class Thread(threading.local):
    """What each thread is making."""

    batch: Batch | None = None


_thread = Thread()


def remember(key: object, value: Any) -> None:
    """Keep a value until the batch is made, if one is."""
    if _thread.batch is not None:
        _thread.batch.remembered[id(key)] = value


def recall(key: object) -> Any:
    """Return the value kept for a key while this batch is made, ``None`` where there is none."""
    return None if _thread.batch is None else _thread.batch.remembered.get(id(key))


def new_output(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an uninitialised array to decode into."""
    return np.empty(shape, dtype=dtype) if _thread.batch is None else _thread.batch.memory.empty(shape, dtype)


def mark_owned(array: NDArray[Any]) -> None:
    """Note that an array was just decoded, for the caller alone."""
    if _thread.batch is not None:
        _thread.batch.decoded[id(array)] = array


def claim_owned(array: NDArray[Any]) -> bool:
    """Return whether an array was decoded for this batch and not taken yet; from now on it is."""
    return _thread.batch is not None and _thread.batch.decoded.pop(id(array), None) is not None

"""Handing decoded arrays over: what is decoded inside a batch belongs to nobody yet and may be kept without a copy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Memory", "collect_decoded", "new_output", "note_decoded", "recall", "remember", "take_decoded"]

_batch = threading.local()


class Memory(Protocol):
    """Where the arrays of a batch are made."""

    def begin_batch(self) -> None:
        """Say that the arrays handed out from here on belong to another batch."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialised array."""


@contextmanager
def collect_decoded(memory: Memory) -> Iterator[None]:
    """Remember, in this thread, the arrays that are decoded from here on, until the end of the block.

    :param memory: where the arrays are made
    """
    memory.begin_batch()
    _batch.decoded = {}
    _batch.memory = memory
    _batch.remembered = {}
    try:
        yield
    finally:
        del _batch.decoded, _batch.memory, _batch.remembered


def remember(key: object, value: Any) -> None:
    """Keep a value until the end of the block, if there is one."""
    remembered = getattr(_batch, "remembered", None)
    if remembered is not None:
        remembered[id(key)] = value


def recall(key: object) -> Any:
    """Return the value kept for a key in this block, ``None`` where there is none."""
    return getattr(_batch, "remembered", {}).get(id(key))


def new_output(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an uninitialised array to decode into."""
    memory: Memory | None = getattr(_batch, "memory", None)
    return np.empty(shape, dtype=dtype) if memory is None else memory.empty(shape, dtype)


def note_decoded(array: NDArray[Any]) -> None:
    """Note that an array was just decoded, for the caller alone."""
    decoded = getattr(_batch, "decoded", None)
    if decoded is not None:
        decoded[id(array)] = array  # which keeps it, so that no other array gets its id


def take_decoded(array: NDArray[Any]) -> bool:
    """Tell whether an array was decoded in this block and not taken yet; from now on it is."""
    decoded: dict[int, NDArray[Any]] = getattr(_batch, "decoded", {})
    return decoded.pop(id(array), None) is not None

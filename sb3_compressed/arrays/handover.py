"""Handing decoded arrays over: what was decoded inside a batch belongs to nobody yet and may be kept without a copy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

__all__ = ["collect_decoded", "note_decoded", "take_decoded"]

_batch = threading.local()


@contextmanager
def collect_decoded() -> Iterator[None]:
    """Remember, in this thread, the arrays that are decoded from here on, until the end of the block."""
    _batch.decoded = {}
    try:
        yield
    finally:
        del _batch.decoded


def note_decoded(array: NDArray[Any]) -> None:
    """Note that an array was just decoded, for the caller alone."""
    decoded = getattr(_batch, "decoded", None)
    if decoded is not None:
        decoded[id(array)] = array  # which keeps it, so that no other array gets its id


def take_decoded(array: NDArray[Any]) -> bool:
    """Tell whether an array was decoded in this block and not taken yet; from now on it is."""
    decoded: dict[int, NDArray[Any]] = getattr(_batch, "decoded", {})
    return decoded.pop(id(array), None) is not None

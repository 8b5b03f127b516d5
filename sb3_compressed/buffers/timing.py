"""``MethodTimer``: measures the calls of a method of one buffer."""

from __future__ import annotations

import time
import weakref
from typing import Any

__all__ = ["MethodTimer", "replaced_by_timer"]


class MethodTimer:
    """Replaces a method of one buffer, calls it, and adds up the time.

    It is an attribute of the buffer with the method's name, so the class does not change, and :meth:`remove` leaves no
    trace. Copies and pickles of compressed buffers contain what it replaces.

    :param buffer: the buffer; it can be deleted while it is timed
    :param name: the method
    :ivar replaced: a method that a user has assigned to this buffer, ``None`` for that of the class
    """

    def __init__(self, buffer: object, name: str) -> None:
        self.replaced = replaced_by_timer(vars(buffer).get(name))  # a timer of a training that ended with an exception
        self._buffer = weakref.ref(buffer)
        self._name = name
        self._method = getattr(type(buffer), name)
        self._n_calls, self._seconds = 0, 0.0
        vars(buffer)[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        begin = time.perf_counter()
        if self.replaced is None:
            result = self._method(self._buffer(), *args, **kwargs)
        else:
            result = self.replaced(*args, **kwargs)
        self._seconds += time.perf_counter() - begin
        self._n_calls += 1
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "the __dict__ of a buffer cannot be copied or pickled while BufferStatsCallback times its methods: copy or "
            "pickle the buffer"
        )

    def take(self) -> float | None:
        """Return the mean seconds of a call since the last one of this method, ``None`` without any."""
        mean = self._seconds / self._n_calls if self._n_calls else None
        self._n_calls, self._seconds = 0, 0.0
        return mean

    def remove(self) -> None:
        """Restore the method of the buffer."""
        buffer = self._buffer()
        if buffer is not None and vars(buffer).get(self._name) is self:
            del vars(buffer)[self._name]
            if self.replaced is not None:
                vars(buffer)[self._name] = self.replaced


def replaced_by_timer(attribute: Any) -> Any:
    """Return what an attribute of a buffer was before it was timed; ``None`` if it had none of its own."""
    return attribute.replaced if isinstance(attribute, MethodTimer) else attribute

"""``RemoteWriter``: a process that adds numbered transitions with a writer."""

from __future__ import annotations

from collections.abc import Iterable

from distributed.emitted import add_to
from sb3_compressed.distributed.writer import ReplayWriter


class RemoteWriter:
    """Adds transitions of the kind ``"images"``."""

    def __init__(self, writer: ReplayWriter, kind: str = "images") -> None:
        self._writer, self._kind = writer, kind

    def add(self, numbers: Iterable[int]) -> int:
        """Add transitions, and return how many were acknowledged so far."""
        add_to(self._writer, self._kind, numbers, self._writer.n_envs)
        self._writer.flush()
        return self._writer.n_acknowledged

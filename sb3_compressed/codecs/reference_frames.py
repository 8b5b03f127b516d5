"""``ReferenceFrames``: the frames that deltas differ from, and their selection from a training sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReferenceFrames", "delta_kernels", "select_medoids", "select_references"]

#: Deltas of smaller frames save nothing. With larger ones, references take memory that is better spent on payloads,
#: and a training sample has too few frames to choose from.
MIN_FRAME_NBYTES, MAX_FRAME_NBYTES = 16, 1 << 20
#: The most memory of the references of a codec, unless a single one takes more.
MAX_REFERENCES_NBYTES = 2_000_000
#: The number of header bytes that are left for references.
MAX_REFERENCES = 249


@cache
def delta_kernels() -> ModuleType:
    """Import the kernels on first use: importing numba is slow."""
    from sb3_compressed.codecs import delta_kernels

    return delta_kernels


@dataclass(frozen=True)
class ReferenceFrames:
    """Immutable reference frames.

    :param content: the bytes of the frames, one after the other
    :param frame_nbytes: bytes of one frame
    """

    content: bytes = field(default=b"", repr=False)
    frame_nbytes: int = 0

    def __len__(self) -> int:
        return len(self.content) // self.frame_nbytes if self.frame_nbytes else 0

    @property
    def rows(self) -> NDArray[np.uint8]:
        """The frames as an array ``(n_references, frame_nbytes)``."""
        return np.frombuffer(self.content, dtype=np.uint8).reshape(len(self), self.frame_nbytes)


def select_references(rows: NDArray[np.uint8], n_references: int) -> ReferenceFrames | None:
    """Return the frames that represent a training sample best, ``None`` for frames that deltas are not useful for.

    :param rows: bytes of frames, ``(n, frame_nbytes)``
    :param n_references: their number, fewer if they take much memory
    """
    frame_nbytes = rows.shape[1]
    if not (len(rows) and MIN_FRAME_NBYTES <= frame_nbytes <= MAX_FRAME_NBYTES):
        return None
    medoids = select_medoids(rows, min(n_references, max(MAX_REFERENCES_NBYTES // frame_nbytes, 1)))
    return ReferenceFrames(rows[medoids].tobytes(), frame_nbytes)


def select_medoids(rows: NDArray[np.uint8], n_medoids: int) -> NDArray[np.intp]:
    """Return the indices of the frames that represent all of them best.

    Greedily, each next frame is the one that minimizes the sum of differences to the nearest selected frame (the
    seeding of k-medoids, Kaufman and Rousseeuw, Finding Groups in Data, 1990, chapter 2).

    :param rows: bytes of frames, ``(n, frame_nbytes)``
    :return: at most ``n_medoids`` indices
    """
    differences = np.empty((len(rows), len(rows)), dtype=np.int64)
    delta_kernels().word_differences(rows, differences)
    nearest = np.full(len(rows), rows.shape[1] + 1)
    selected: list[int] = []
    for _ in range(min(n_medoids, len(rows))):
        totals = np.minimum(nearest, differences).sum(axis=1)  # [candidates]
        best = int(totals.argmin())
        if selected and totals[best] == nearest.sum():  # another one gains nothing
            break
        selected.append(best)
        nearest = np.minimum(nearest, differences[best])
    return np.array(selected, dtype=np.intp)

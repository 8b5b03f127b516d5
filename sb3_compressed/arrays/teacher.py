"""When a codec learns, and from which frames."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Teacher"]


class Teacher:
    """Collects a sample of the frames that pass, and hands it out as a lesson from time to time.

    The first lesson comes early, so that the first frames of a run are not all stored badly; each later one after four
    times as many frames, up to :data:`LONGEST`. From then on lessons keep coming: policies drift, and what a codec has
    learned ages. A sample is spread evenly over the frames since the lesson before.
    """

    #: New frames before the first lesson, and the most between two.
    FIRST, LONGEST = 64, 16_384
    #: Frames in a lesson, and the bytes they may have together.
    MAX_FRAMES, MAX_NBYTES = 192, 2_000_000
    #: With fewer frames than this to a lesson, because they are so large, there is none.
    MIN_FRAMES = 8

    def __init__(self) -> None:
        self._interval = self.FIRST
        self._seen = 0
        self._sample: list[NDArray[Any]] = []

    def see(self, frames: NDArray[Any]) -> NDArray[Any] | None:
        """Look at new frames ``(n, *frame_shape)``; return a lesson ``(m, *frame_shape)`` when it is time for one."""
        frame_nbytes = frames.nbytes // max(len(frames), 1)
        if not frame_nbytes or frame_nbytes * self.MIN_FRAMES > self.MAX_NBYTES:
            return None
        if self._sample and self._sample[0].shape != frames.shape[1:]:  # the layout was found meanwhile
            self._sample = []
            self._seen = 0
        room = min(self.MAX_FRAMES, self.MAX_NBYTES // frame_nbytes)
        stride = -(-max(self._interval, len(frames)) // room)
        first = -self._seen % stride
        self._sample += [frame.copy() for frame in frames[first::stride]]
        self._seen += len(frames)
        if self._seen < self._interval:
            return None
        # One call may have brought far more frames than an interval has.
        kept = self._sample[:: -(-len(self._sample) // room)] if self._sample else []
        lesson = np.stack(kept) if kept else None
        self._interval = min(4 * self._interval, self.LONGEST)
        self._seen = 0
        self._sample = []
        return lesson

    def __getstate__(self) -> dict[str, Any]:
        # A pickle is to be as large as the payloads: the sample is left out and collected anew.
        return {**self.__dict__, "_seen": 0, "_sample": []}

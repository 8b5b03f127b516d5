"""When a codec learns, and from which frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import TrainableCodec

__all__ = ["CodecTrainer"]


class CodecTrainer:
    """Collects a sample of the frames that pass, and hands it out as a lesson from time to time.

    The first lesson comes early, so that the first frames of a run are not all stored badly; each later one after four
    times as many frames, up to :data:`LONGEST`. From then on lessons keep coming, but only change something where
    frames have changed: policies drift, and what a codec has learned ages. What has not aged is better kept, as all
    that reads it finds it in the cache. A sample is spread evenly over the frames since the lesson before.
    """

    #: New frames before the first lesson, and the most between two.
    FIRST, LONGEST = 64, 16_384
    #: Frames in a lesson, and the bytes they may have together.
    MAX_FRAMES, MAX_NBYTES = 192, 2_000_000
    #: How much larger payloads have to be than when a codec learned, for it to learn again once lessons are rare. Some
    #: of the frames that it learned from it knows by heart, so new ones are larger in any case.
    DRIFT = 1.25
    #: With fewer frames than this to a lesson, because they are so large, there is none.
    MIN_FRAMES = 8

    def __init__(self) -> None:
        self._interval = self.FIRST
        self._seen = 0
        self._sample: list[NDArray[Any]] = []
        self._next_sample = 0  # frames to be seen before the next one is taken
        self._learned_nbytes = 0.0  # of a payload of the last lesson that changed something

    def teach(self, codec: TrainableCodec, frames: NDArray[Any]) -> TrainableCodec:
        """Look at new frames ``(n, *frame_shape)``; return the codec to use from now on, often the same."""
        if self._seen + len(frames) <= self._next_sample:  # as nearly always
            self._seen += len(frames)
            return codec
        is_young = self._interval < self.LONGEST
        lesson = self.see(frames)
        if lesson is None:
            return codec
        if not is_young and _payload_nbytes(codec, lesson) <= self.DRIFT * self._learned_nbytes:
            return codec
        learned = codec.train(lesson)
        self._learned_nbytes = _payload_nbytes(learned, lesson)
        if learned is not codec:
            codec.release_encoder()
        return learned

    def see(self, frames: NDArray[Any]) -> NDArray[Any] | None:
        """Look at new frames ``(n, *frame_shape)``; return a lesson ``(m, *frame_shape)`` when it is time for one."""
        frame_nbytes = frames.nbytes // max(len(frames), 1)
        if not frame_nbytes or frame_nbytes * self.MIN_FRAMES > self.MAX_NBYTES:
            return None
        if self._sample and self._sample[0].shape != frames.shape[1:]:  # the layout was found meanwhile
            self._sample = []
            self._seen = self._next_sample = 0
        room = min(self.MAX_FRAMES, self.MAX_NBYTES // frame_nbytes)
        stride = -(-max(self._interval, len(frames)) // room)
        first = -self._seen % stride
        self._sample += [frame.copy() for frame in frames[first::stride]]
        self._seen += len(frames)
        # The next one to take, or that with which the interval is over.
        self._next_sample = min(self._seen + -self._seen % stride, self._interval - 1)
        if self._seen < self._interval:
            return None
        # One call may have brought far more frames than an interval has.
        kept = self._sample[:: -(-len(self._sample) // room)] if self._sample else []
        lesson = np.stack(kept) if kept else None
        self._interval = min(4 * self._interval, self.LONGEST)
        self._seen = self._next_sample = 0
        self._sample = []
        return lesson

    def __getstate__(self) -> dict[str, Any]:
        # A pickle is to be as large as the payloads: the sample is left out and collected anew.
        return {**self.__dict__, "_seen": 0, "_next_sample": 0, "_sample": []}

    def to_data(self) -> dict[str, Any]:
        """Return, for JSON, when it taught what; the sample is left out as it is of a pickle."""
        return {"interval": self._interval, "learned_nbytes": self._learned_nbytes}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on where another one was when it gave this data."""
        self._interval = min(max(int(data["interval"]), self.FIRST), self.LONGEST)
        self._learned_nbytes = float(data["learned_nbytes"])


def _payload_nbytes(codec: TrainableCodec, frames: NDArray[Any]) -> float:
    """Return the mean size of the payloads of some frames."""
    return sum(map(len, codec.encode(frames))) / max(len(frames), 1)

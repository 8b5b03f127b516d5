"""``CodecTrainer``: when a codec is trained, and on which frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import TrainableCodec

__all__ = ["CodecTrainer"]


class CodecTrainer:
    """Collects training samples from the frames that are encoded, and trains the codec from time to time.

    The first training is early, so that few frames of a run are compressed badly; each later one after four times as
    many frames, up to :data:`LONGEST`. From then on the codec is only replaced if payloads have grown: the policy
    changes what the frames show, and an old codec may fit them worse. One that still fits is kept, since its references
    stay in the CPU's cache. A sample is spread evenly over the frames since the last training.
    """

    #: New frames before the first training, and the most between two.
    FIRST, LONGEST = 64, 16_384
    #: Frames in a sample, and the most bytes.
    MAX_FRAMES, MAX_NBYTES = 192, 2_000_000
    #: How much larger payloads have to be than after the last training for a new one, once trainings are rare. Training
    #: frames compress best, so new frames are always larger.
    DRIFT = 1.25
    #: Samples of fewer frames, because they are so large, are not used.
    MIN_FRAMES = 8

    def __init__(self) -> None:
        self._interval = self.FIRST
        self._n_frames = 0  # since the last training
        self._sample: list[NDArray[Any]] = []
        self._next_sample = 0  # value of _n_frames at which the next frame is copied
        self._trained_nbytes = 0.0  # mean size of the payloads of the last sample that changed the codec

    def observe(self, codec: TrainableCodec, frames: NDArray[Any]) -> TrainableCodec:
        """Observe new frames ``(n, *frame_shape)``; return the codec to use from now on, usually the same."""
        if self._n_frames + len(frames) <= self._next_sample:  # as nearly always
            self._n_frames += len(frames)
            return codec
        is_early = self._interval < self.LONGEST
        sample = self.collect(frames)
        if sample is None:
            return codec
        if not is_early and _payload_nbytes(codec, sample) <= self.DRIFT * self._trained_nbytes:
            return codec
        trained = codec.train(sample)
        if type(trained) is not type(codec):  # else its payloads could not be decoded with those of the others
            raise TypeError(f"{type(codec).__name__}.train must return a codec of the same class, got {trained!r}")
        self._trained_nbytes = _payload_nbytes(trained, sample)
        if trained is not codec:
            codec.release_encoder()
        return trained

    def collect(self, frames: NDArray[Any]) -> NDArray[Any] | None:
        """Collect from new frames ``(n, *frame_shape)``; return a sample ``(m, *frame_shape)`` once complete."""
        frame_nbytes = frames.nbytes // max(len(frames), 1)
        if not frame_nbytes or frame_nbytes * self.MIN_FRAMES > self.MAX_NBYTES:
            return None
        if self._sample and self._sample[0].shape != frames.shape[1:]:  # the layout was found meanwhile
            self._sample = []
            self._n_frames = self._next_sample = 0
        room = min(self.MAX_FRAMES, self.MAX_NBYTES // frame_nbytes)
        stride = -(-max(self._interval, len(frames)) // room)
        first = -self._n_frames % stride
        self._sample += [frame.copy(order="K") for frame in frames[first::stride]]
        self._n_frames += len(frames)
        # The next frame to copy, or the last one of the interval.
        self._next_sample = min(self._n_frames + -self._n_frames % stride, self._interval - 1)
        if self._n_frames < self._interval:
            return None
        # One call may have brought far more frames than an interval has.
        kept = self._sample[:: -(-len(self._sample) // room)] if self._sample else []
        sample = _stack(kept) if kept else None
        self._interval = min(4 * self._interval, self.LONGEST)
        self._n_frames = self._next_sample = 0
        self._sample = []
        return sample

    def __getstate__(self) -> dict[str, Any]:
        # A pickle is to be as large as the payloads: the sample is left out and collected anew.
        return {**self.__dict__, "_n_frames": 0, "_next_sample": 0, "_sample": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._interval = state["_interval"]
        self._trained_nbytes = state["_trained_nbytes" if "_trained_nbytes" in state else "_learned_nbytes"]  # of 0.1

    def to_data(self) -> dict[str, Any]:
        """Return its state for JSON, without the sample."""
        # "learned" is the name of version 0.1, kept for stored buffers.
        return {"interval": self._interval, "learned_nbytes": self._trained_nbytes}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`to_data` returned."""
        self._interval = min(max(int(data["interval"]), self.FIRST), self.LONGEST)
        self._trained_nbytes = float(data["learned_nbytes"])


def _stack(frames: list[NDArray[Any]]) -> NDArray[Any]:
    """Return frames as one array, with their axes in the order that those of the first have in memory."""
    axes = sorted(range(frames[0].ndim), key=lambda axis: -frames[0].strides[axis])
    stacked = np.stack([frame.transpose(axes) for frame in frames])
    return stacked.transpose(0, *(1 + axes.index(axis) for axis in range(len(axes))))


def _payload_nbytes(codec: TrainableCodec, frames: NDArray[Any]) -> float:
    """Return the mean size of the payloads of frames."""
    return sum(map(len, codec.encode(frames))) / max(len(frames), 1)

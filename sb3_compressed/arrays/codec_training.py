"""``CodecTrainer``: when a codec is trained, and on which frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.drift_detection import DriftDetector
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.memory_estimate import observation_nbytes
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.common.memory_warning import warn_of_payloads
from sb3_compressed.errors import old_pickle

__all__ = ["CodecTrainer"]

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class CodecTrainer:
    """Collects training samples from the frames that are encoded, and trains the codec from time to time.

    The codec is trained after 64 frames, so that few frames of a run are compressed badly, and whenever there are four
    times as many, up to :data:`LAST`. A sample is spread evenly over the frames since the last training. From then on,
    the codec is only trained again when a :class:`~.drift_detection.DriftDetector` finds that payloads are large: the
    next frames become a sample at once. If a codec that is trained on the first part of it is much better for the
    second part, it is used, and further trainings follow as after the first one. If not, as with noise, the previous
    codec stays, which will be good again for frames as before.

    All of this depends on the frames and their payloads alone, and is done in the call that encodes them. So what is
    stored is the same in each run.

    :ivar capacity: the number of observations in the full buffer; 0 where it takes no memory, or a warning was due
        already
    """

    #: New frames before the first training, and before the last one, which follows on four times as many each time.
    FIRST, LAST = 64, 16_384
    #: Frames in a sample, and the most bytes, unless there are fewer than :data:`MIN_FRAMES`.
    MAX_FRAMES, MAX_NBYTES = 192, 2_000_000
    #: Samples have at least so many frames, as long as these are not larger than so many bytes.
    MIN_FRAMES, MAX_LARGE_NBYTES = 8, 16_000_000
    #: Frames of a sample after a change.
    CHANGED = 96
    #: How much smaller payloads have to be after a change for a new codec to be used.
    GAIN = 0.7

    def __init__(self) -> None:
        self.capacity = 0
        self._next_training = self.FIRST  # number of frames, more than LAST if none is due
        self._n_frames = 0  # since the last training
        self._sample: list[NDArray[Any]] = []
        self._next_sample: float = 0  # value of _n_frames at which the next frame is copied
        self._next_event: float = 0  # or payloads are measured
        self._n_measured = 0  # value of _n_frames at the last measurement
        self._drift = DriftDetector()
        self._has_changed = False  # whether the sample is one after a change

    def observe(self, encoder: FrameEncoder, frames: NDArray[Any], payloads: Payloads) -> None:
        """Observe new frames, and give the encoder another codec if a training is due.

        :param encoder: what encoded the frames, with a trainable codec
        :param frames: ``(n, *frame_shape)``
        :param payloads: their payloads
        :raises Exception: what the training raised
        """
        n_passed = self._n_frames + len(frames)
        if n_passed <= self._next_event:  # as nearly always
            self._n_frames = n_passed
            return
        is_large = self._drift.observe(payloads, n_passed - self._n_measured, frames.nbytes // max(len(frames), 1))
        self._n_measured = n_passed
        # After the second training: the first frames of a game are alike, and smaller than later ones.
        if self.capacity and self._next_training > 4 * self.FIRST and self._drift.usual_nbytes:
            expected = self.capacity * observation_nbytes(self._drift.usual_nbytes, encoder.n_frames)
            self.capacity = 0  # once
            warn_of_payloads(expected, self._drift.usual_nbytes)
        if is_large and not self._has_changed and self._next_training > 4 * self.FIRST:
            self._has_changed = True
            self._discard_sample()
        sample = self.collect(frames)
        self._next_event = min(self._next_sample, self._n_frames + self._drift.next_measurement(len(frames)))
        if sample is not None:
            self._train(encoder, sample)

    def _train(self, encoder: FrameEncoder, sample: Sequence[NDArray[Any]]) -> None:
        """Train the codec of the encoder on the frames of a sample."""
        has_changed, self._has_changed = self._has_changed, False
        codec: TrainableCodec = encoder.codec  # type: ignore[assignment]
        trained = codec
        try:
            trained = _trained_after_change(codec, sample) if has_changed else _trained(codec, _stacked(sample))
        finally:
            if has_changed:
                self._drift.reacted(helped=trained is not codec)
        if trained is not codec:
            if has_changed:
                self._next_training = 4 * self.FIRST
            self._drift.restart()
            encoder.codec = trained
            codec.release_encoder()

    @property
    def _interval(self) -> float:
        """The number of frames from the last training to the next one."""
        if self._has_changed:
            return self.CHANGED
        if self._next_training > self.LAST:
            return math.inf
        return self.FIRST if self._next_training == self.FIRST else self._next_training - self._next_training // 4

    def collect(self, frames: NDArray[Any]) -> list[NDArray[Any]] | None:
        """Collect from new frames ``(n, *frame_shape)``; return the frames of a sample once it is complete."""
        if self._n_frames + len(frames) <= self._next_sample:  # none is due
            self._n_frames += len(frames)
            return None
        interval = self._interval
        if interval == math.inf:
            self._n_frames += len(frames)
            self._next_sample = math.inf
            return None
        frame_nbytes = frames.nbytes // max(len(frames), 1)
        if not frame_nbytes:
            return None
        if self._sample and self._sample[0].shape != frames.shape[1:]:  # the layout was found meanwhile
            self._discard_sample()
        fewest = min(self.MIN_FRAMES, self.MAX_LARGE_NBYTES // frame_nbytes)
        room = min(self.MAX_FRAMES, max(self.MAX_NBYTES // frame_nbytes, fewest, 1))
        stride = -(-max(int(interval), len(frames)) // room)
        due = _sampled_frames(self._n_frames, len(frames), stride)
        self._sample += [frames[index].copy(order="K") for index in due[:-1]]
        # The next frame to copy, or the last one of the interval.
        self._next_sample = min(self._n_frames + due[-1], interval - 1)
        self._n_frames += len(frames)
        if self._n_frames < interval:
            return None
        # One call may have brought far more frames than an interval has.
        sample = self._sample[:: -(-len(self._sample) // room)] if self._sample else None
        if not self._has_changed:
            self._next_training *= 4
        self._discard_sample()
        return sample

    def _discard_sample(self) -> None:
        self._sample = []
        self._n_frames = self._n_measured = 0
        self._next_sample = self._next_event = 0

    def state(self) -> dict[str, Any]:
        """Return its state for JSON, without the sample, with the names in stored buffers."""
        return {"interval": self._next_training, "usual_nbytes": self._drift.usual_nbytes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned, without a sample."""
        next_training, usual_nbytes = int(state["interval"]), float(state["usual_nbytes"])
        capacity = vars(self).get("capacity", 0)
        self.__init__()  # type: ignore[misc]
        self._next_training = min(max(next_training, self.FIRST), 4 * self.LAST)
        self._drift.restart(usual_nbytes)
        self.capacity = capacity

    # A pickle is to be as large as the payloads: the sample is left out and collected anew.
    __getstate__ = state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "interval" not in state:
            raise old_pickle()
        self.restore(state)


def _sampled_frames(n_passed: int, n_frames: int, stride: int) -> list[int]:
    """Return which new frames belong to a sample of one frame in each ``stride``, and the first one later.

    Where in a stride its frame lies follows the squares times the golden ratio, modulo 1, which are spread evenly
    without a period. At the same place of each stride, a sample could be of one of several environments only, or of one
    phase of a flicker.

    :param n_passed: the number of frames before the new ones
    :param n_frames: the number of new frames
    :return: indices of new frames, from 0, and as the last item one that is at least ``n_frames``
    """
    found: list[int] = []
    number, index = n_passed // stride, -1
    while index < n_frames:
        index = number * stride + int(number**2 * GOLDEN_RATIO % 1 * stride) - n_passed
        if index >= 0:
            found.append(index)
        number += 1
    return found


def _trained_after_change(codec: TrainableCodec, sample: Sequence[NDArray[Any]]) -> TrainableCodec:
    """Train a codec on the first part of a sample, and return it if it is better for the second part."""
    n_trained = -(-2 * len(sample) // 3)
    frames, later = _stacked(sample[:n_trained]), _stacked(sample[n_trained:] or sample)
    trained = _trained(codec, frames)
    before, after = (sum(map(len, each.encode(later))) for each in (codec, trained))
    return trained if after < CodecTrainer.GAIN * before else codec


def _trained(codec: TrainableCodec, frames: NDArray[Any]) -> TrainableCodec:
    """Return a codec after training.

    :raises TypeError: if it is of another class: its payloads could not be decoded with those of the other
    """
    trained = codec.train(frames)
    if type(trained) is not type(codec):
        raise TypeError(f"{type(codec).__name__}.train must return a codec of the same class, got {trained!r}")
    return trained


def _stacked(frames: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return frames as one array, with their axes in the order that those of the first have in memory."""
    axes = sorted(range(frames[0].ndim), key=lambda axis: -frames[0].strides[axis])
    stacked = np.stack([frame.transpose(axes) for frame in frames])
    return stacked.transpose(0, *(1 + axes.index(axis) for axis in range(len(axes))))

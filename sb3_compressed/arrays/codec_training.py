"""``CodecTrainer``: when a codec is trained, and on which frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.drift_detection import DriftDetector
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.common.threads import BackgroundTask

__all__ = ["CodecTrainer"]


class Training(NamedTuple):
    """The result of a training.

    :param codec: the codec to use, which is the previous one if another is not needed or not better
    :param nbytes: mean size of its payloads of the sample
    """

    codec: TrainableCodec
    nbytes: float


class CodecTrainer:
    """Collects training samples from the frames that are encoded, and trains the codec from time to time.

    The first training is early, so that few frames of a run are compressed badly; each later one after four times as
    many frames, up to :data:`LONGEST`. From then on the codec is only replaced if the sizes of payloads have changed:
    the policy changes what the frames show, and an old codec may fit them worse. One that still fits is kept, since its
    references stay in the CPU's cache. A sample is spread evenly over the frames since the last training.

    When a :class:`~.drift_detection.DriftDetector` finds that frames have changed, the next frames become a sample at
    once. If a codec that is trained on the first part of it is much better for the second part, it is used, and
    further trainings follow as after the first one. If not, as with noise, the previous codec stays, which will be good
    again for frames as before.

    From the payloads of recent frames, a codec can see that these take longer than those of its training sample, and
    adapt to them; see :meth:`.TrainableCodec.adapted_to`.

    A codec trains in another thread while the previous one encodes, unless the caller requests otherwise. An error in
    it is raised by the next :meth:`observe`.
    """

    #: New frames before the first training, and the most between two.
    FIRST, LONGEST = 64, 16_384
    #: Frames in a sample, and the most bytes, unless there are fewer than :data:`MIN_FRAMES`.
    MAX_FRAMES, MAX_NBYTES = 192, 2_000_000
    #: Samples have at least so many frames, as long as these are not larger than so many bytes.
    MIN_FRAMES, MAX_LARGE_NBYTES = 8, 16_000_000
    #: How much larger payloads have to be than after the last training for a new one, once trainings are rare. Training
    #: frames compress best, so new frames are always larger.
    DRIFT = 1.25
    #: How much smaller they have to be for a new one: the frames are simpler, so another coder may suit them.
    SIMPLER = 0.5
    #: Frames of a sample after a change.
    CHANGED = 96
    #: How much smaller payloads have to be after a change for a new codec to be used.
    GAIN = 0.7
    #: Measured payloads after which a codec may adapt to them: about 512 frames of a few environments.
    N_RECENT = 64

    def __init__(self) -> None:
        self._interval = self.FIRST
        self._n_frames = 0  # since the last training
        self._sample: list[NDArray[Any]] = []
        self._next_sample = 0  # value of _n_frames at which the next frame is copied
        self._next_event = 0  # or payloads are measured
        self._n_measured = 0  # value of _n_frames at the last measurement
        self._trained_nbytes = 0.0  # mean size of the payloads of the last sample that changed the codec
        self._drift = DriftDetector()
        self._recent: list[bytes] = []  # measured payloads of this codec
        self._after_adapting = 4 * self.FIRST  # frames until the training after the next adaptation
        self._has_changed = False  # whether the sample is one after a change
        self._training: BackgroundTask[Training] | None = None

    def observe(
        self,
        codec: TrainableCodec,
        frames: NDArray[Any],
        payloads: Sequence[bytes],
        *,
        in_background: bool = False,
    ) -> TrainableCodec:
        """Observe new frames; return the codec to use from now on, usually the same.

        :param frames: ``(n, *frame_shape)``
        :param payloads: their payloads
        :param in_background: whether the codec may train in another thread
        :raises Exception: what the training raised
        """
        n_frames = self._n_frames + len(frames)
        if n_frames <= self._next_event:  # as nearly always
            self._n_frames = n_frames
            return codec
        if self._training is not None:
            return self._finished(codec) if self._training.is_done else codec
        has_drifted = self._drift.observe(frames, payloads, n_frames - self._n_measured)
        self._recent += payloads
        self._n_measured = n_frames
        if len(self._recent) >= self.N_RECENT:
            codec = self._adapted(codec, frames)
        if has_drifted and not self._has_changed and self._interval > 4 * self.FIRST:
            self._has_changed = True
            self._discard_sample()
        is_early = self._interval < self.LONGEST
        sample = self.collect(frames)
        self._next_event = min(self._next_sample, self._n_frames + self._drift.next_measurement(len(frames)))
        if sample is None:
            return codec
        if self._has_changed:
            work = partial(_train_after_change, codec, sample, self._trained_nbytes)
        else:
            work = partial(_train, codec, sample, None if is_early else self._trained_nbytes)
        if in_background:
            self._training = BackgroundTask(work)
            return codec
        return self._use(codec, work)

    def _adapted(self, codec: TrainableCodec, frames: NDArray[Any]) -> TrainableCodec:
        """Return the codec that suits recent payloads."""
        recent, self._recent = self._recent, []
        adapted = _replacement(codec, codec.adapted_to(recent, frames), "adapted_to")
        if adapted is not codec:
            # Frames may soon be as before, but training must not undo each adaptation at once.
            self._interval = min(self._interval, self._after_adapting)
            self._after_adapting = min(4 * self._after_adapting, self.LONGEST)
            self._discard_sample()
            self._drift.restart()
            codec.release_encoder()
        return adapted

    def finish(self, codec: TrainableCodec) -> TrainableCodec:
        """Wait for the training in another thread; return the codec to use from now on.

        An error in it is left to the next :meth:`observe`.
        """
        if self._training is None:
            return codec
        self._training.wait()
        return codec if self._training.error is not None else self._finished(codec)

    def _finished(self, codec: TrainableCodec) -> TrainableCodec:
        """Return the codec to use after the training in another thread, and wait for it."""
        training, self._training = self._training, None
        return codec if training is None else self._use(codec, training.result)

    def _use(self, codec: TrainableCodec, train: Callable[[], Training]) -> TrainableCodec:
        """Return the codec to use from now on.

        :param codec: the previous one
        :param train: returns the result of a training
        """
        has_changed, self._has_changed = self._has_changed, False
        trained = codec
        try:
            trained, self._trained_nbytes = train()
        finally:
            if has_changed:
                self._drift.reacted(helped=trained is not codec)
        if trained is not codec:
            if has_changed:
                self._interval = 4 * self.FIRST
            self._drift.restart(self._trained_nbytes)
            codec.release_encoder()
        return trained

    def collect(self, frames: NDArray[Any]) -> list[NDArray[Any]] | None:
        """Collect from new frames ``(n, *frame_shape)``; return the frames of a sample once it is complete."""
        if self._n_frames + len(frames) <= self._next_sample:  # none is due
            self._n_frames += len(frames)
            return None
        frame_nbytes = frames.nbytes // max(len(frames), 1)
        if not frame_nbytes:
            return None
        if self._sample and self._sample[0].shape != frames.shape[1:]:  # the layout was found meanwhile
            self._discard_sample()
        interval = self.CHANGED if self._has_changed else self._interval
        fewest = min(self.MIN_FRAMES, self.MAX_LARGE_NBYTES // frame_nbytes)
        room = min(self.MAX_FRAMES, max(self.MAX_NBYTES // frame_nbytes, fewest, 1))
        stride = -(-max(interval, len(frames)) // room)
        first = -self._n_frames % stride
        self._sample += [frame.copy(order="K") for frame in frames[first::stride]]
        self._n_frames += len(frames)
        # The next frame to copy, or the last one of the interval.
        self._next_sample = min(self._n_frames + -self._n_frames % stride, interval - 1)
        if self._n_frames < interval:
            return None
        # One call may have brought far more frames than an interval has.
        sample = self._sample[:: -(-len(self._sample) // room)] if self._sample else None
        if not self._has_changed:
            self._interval = min(4 * self._interval, self.LONGEST)
        self._discard_sample()
        return sample

    def _discard_sample(self) -> None:
        self._sample, self._recent = [], []
        self._n_frames = self._next_sample = self._next_event = self._n_measured = 0

    def __getstate__(self) -> dict[str, Any]:
        # A pickle is to be as large as the payloads: the sample is left out and collected anew. A training has been
        # finished, see finish(), unless it failed.
        return {"_interval": self._interval, "_trained_nbytes": self._trained_nbytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._interval = state["_interval"]
        self._trained_nbytes = state["_trained_nbytes"]

    def to_data(self) -> dict[str, Any]:
        """Return its state for JSON, without the sample."""
        # "learned" is its name in stored buffers.
        return {"interval": self._interval, "learned_nbytes": self._trained_nbytes}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`to_data` returned, without a sample or training of before."""
        interval, trained_nbytes = int(data["interval"]), float(data["learned_nbytes"])
        self.__init__()  # type: ignore[misc]
        self._interval = min(max(interval, self.FIRST), self.LONGEST)
        self._trained_nbytes = trained_nbytes


def _stack(frames: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return frames as one array, with their axes in the order that those of the first have in memory."""
    axes = sorted(range(frames[0].ndim), key=lambda axis: -frames[0].strides[axis])
    stacked = np.stack([frame.transpose(axes) for frame in frames])
    return stacked.transpose(0, *(1 + axes.index(axis) for axis in range(len(axes))))


def _train(codec: TrainableCodec, sample: Sequence[NDArray[Any]], trained_nbytes: float | None) -> Training:
    """Train a codec.

    :param codec: the previous codec
    :param sample: frames
    :param trained_nbytes: mean size of its payloads after the last training, if it is to be kept as long as they are
        similar
    """
    frames = _stack(sample)
    if trained_nbytes is not None:
        nbytes = _payload_nbytes(codec, frames)
        if CodecTrainer.SIMPLER * trained_nbytes <= nbytes <= CodecTrainer.DRIFT * trained_nbytes:
            return Training(codec, trained_nbytes)
    trained = _trained(codec, frames)
    return Training(trained, _payload_nbytes(trained, frames))


def _train_after_change(codec: TrainableCodec, sample: Sequence[NDArray[Any]], trained_nbytes: float) -> Training:
    """Train a codec on the first part of a sample, and return it if it is better for the second part."""
    n_trained = -(-2 * len(sample) // 3)
    frames, later = _stack(sample[:n_trained]), _stack(sample[n_trained:] or sample)
    trained = _trained(codec, frames)
    before, after = _payload_nbytes(codec, later), _payload_nbytes(trained, later)
    if after < CodecTrainer.GAIN * before:
        return Training(trained, _payload_nbytes(trained, frames))
    return Training(codec, trained_nbytes)


def _trained(codec: TrainableCodec, frames: NDArray[Any]) -> TrainableCodec:
    return _replacement(codec, codec.train(frames), "train")


def _replacement(codec: TrainableCodec, other: TrainableCodec, method: str) -> TrainableCodec:
    """Return a codec that replaces another one.

    :param method: what returned it
    :raises TypeError: if it is of another class: its payloads could not be decoded with those of the other
    """
    if type(other) is not type(codec):
        raise TypeError(f"{type(codec).__name__}.{method} must return a codec of the same class, got {other!r}")
    return other


def _payload_nbytes(codec: TrainableCodec, frames: NDArray[Any]) -> float:
    """Return the mean size of the payloads of frames."""
    return sum(map(len, codec.encode(frames))) / max(len(frames), 1)

"""``CodecTrainer``: when a codec is trained, and on which frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from sb3_compressed.arrays.choice_trigger import ChoiceTrigger, stack_frames
from sb3_compressed.arrays.codec_choice import OBJECT_NBYTES, Choice
from sb3_compressed.arrays.drift_detection import DriftDetector
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.time_budget import TimeBudget
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.common.threads import BackgroundTask

__all__ = ["CodecTrainer"]


class Outcome(NamedTuple):
    """The outcome of a training, or of a choice between candidates.

    :param codec: the codec to use, which is the previous one if another is not needed or not better
    :param nbytes: mean size of its payloads of the sample
    :param choice: the choice, ``None`` after a training
    """

    codec: TrainableCodec
    nbytes: float
    choice: Choice | None = None


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

    While an agent trains, a :class:`~.choice_trigger.ChoiceTrigger` chooses among the candidates of a codec. As long as
    it has chosen to store frames uncompressed, nothing is trained.

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

    def __init__(self) -> None:
        self.trigger = ChoiceTrigger()
        self._interval = self.FIRST
        self._n_frames = 0  # since the last training
        self._sample: list[NDArray[Any]] = []
        self._next_sample = 0  # value of _n_frames at which the next frame is copied
        self._next_event = 0  # or payloads are measured
        self._n_measured = 0  # value of _n_frames at the last measurement
        self._trained_nbytes = 0.0  # mean size of the payloads of the last sample that changed the codec
        self._drift = DriftDetector()
        self._has_changed = False  # whether the sample is one after a change
        self._training: BackgroundTask[Outcome] | None = None

    def observe(
        self,
        encoder: FrameEncoder,
        frames: NDArray[Any],
        payloads: Sequence[bytes],
        *,
        in_background: bool,
        budget: TimeBudget | None,
    ) -> None:
        """Observe new frames, and give the encoder another codec if one is ready.

        :param encoder: what encoded the frames, with a trainable codec
        :param frames: ``(n, *frame_shape)``
        :param payloads: their payloads
        :param in_background: whether the codec may train in another thread
        :param budget: the time that coding may take; ``None`` for the codec as it is
        :raises Exception: what the training raised
        """
        n_passed = self._n_frames + len(frames)
        if n_passed <= self._next_event:  # as nearly always
            self._n_frames = n_passed
            return
        if (training := self._training) is not None:
            if training.is_done:
                self._training = None
                self._use(encoder, training.wait)
            return
        n_new = n_passed - self._n_measured
        self.trigger.count(n_new, payloads)
        codec: TrainableCodec = encoder.codec  # type: ignore[assignment]
        choice = self.trigger.choice
        if choice is not None and not choice.uses_training:
            self._discard_sample()
            self._next_event = self._drift.next_measurement(len(frames))
            self._choose(encoder, frames, budget if in_background else None)
            return
        has_drifted = self._drift.observe(frames, payloads, n_new)
        self._n_measured = n_passed
        if has_drifted and not self._has_changed and self._interval > 4 * self.FIRST:
            self._has_changed = True
            self._discard_sample()
        is_early = self._interval < self.LONGEST
        sample = self.collect(frames)
        self._next_event = min(self._next_sample, self._n_frames + self._drift.next_measurement(len(frames)))
        if sample is None:
            self._choose(encoder, frames, budget if in_background else None)
            return
        final = None if choice is None else choice.final.codec
        if self._has_changed:
            work = partial(_train_after_change, codec, sample, self._trained_nbytes, final)
        else:
            work = partial(_train, codec, sample, None if is_early else self._trained_nbytes, final)
        if in_background:
            self._training = BackgroundTask(work)
        else:
            self._use(encoder, work)

    def _choose(self, encoder: FrameEncoder, frames: NDArray[Any], budget: TimeBudget | None) -> None:
        """Let another thread choose among the candidates of the codec, if a choice is due."""
        codec: TrainableCodec = encoder.codec  # type: ignore[assignment]
        if budget is not None:
            choose = self.trigger.observe(codec, frames, budget, encoder.n_frames)
            if choose is not None:
                self._training = BackgroundTask(partial(_chosen, choose, codec, self._trained_nbytes))

    def finish(self, encoder: FrameEncoder) -> None:
        """Wait for the training, and give its codec to the encoder.

        An error in it is left to the next :meth:`observe`.
        """
        if (training := self._training) is not None:
            training.complete()
            if training.error is None:
                self._training = None
                self._use(encoder, training.wait)

    def _use(self, encoder: FrameEncoder, train: Callable[[], Outcome]) -> None:
        """Give the encoder the codec of a training.

        :param train: returns the result of the training
        """
        has_changed, self._has_changed = self._has_changed, False
        codec: TrainableCodec = encoder.codec  # type: ignore[assignment]
        trained = codec
        try:
            trained, nbytes, choice = train()
            self._trained_nbytes = nbytes
            if choice is not None:
                self.trigger.use(choice)
        finally:
            if has_changed:
                self._drift.reacted(helped=trained is not codec)
        if trained is not codec:
            if has_changed:
                self._interval = 4 * self.FIRST
            if choice is None:
                self.trigger.update_codec(trained)
            in_use = self.trigger.choice
            self._drift.restart(nbytes if in_use is None or in_use.later is None else math.inf)
            encoder.set_codec(trained)
            codec.release_encoder()

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
        self._sample = []
        self._n_frames = self._next_sample = self._next_event = self._n_measured = 0

    def __getstate__(self) -> dict[str, Any]:
        # A pickle is to be as large as the payloads: the sample is left out and collected anew. A training has been
        # finished, see finish(), unless it failed.
        return {"_interval": self._interval, "_trained_nbytes": self._trained_nbytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.restore({"interval": state["_interval"], "learned_nbytes": state["_trained_nbytes"]})

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


def _chosen(choose: Callable[[], Choice | None], codec: TrainableCodec, nbytes: float) -> Outcome:
    """Return the codec that was chosen.

    :param codec: the codec in use
    :param nbytes: mean size of its payloads
    """
    choice = choose()
    if choice is None:
        return Outcome(codec, nbytes)
    return Outcome(choice.new.codec, choice.final.nbytes - OBJECT_NBYTES, choice)


def _train(
    codec: TrainableCodec,
    sample: Sequence[NDArray[Any]],
    trained_nbytes: float | None,
    final: TrainableCodec | None = None,
) -> Outcome:
    """Train a codec.

    :param codec: the previous codec
    :param sample: frames
    :param trained_nbytes: mean size of payloads after the last training, if the codec is to be kept as long as they are
        similar
    :param final: the codec that encodes most frames, if it was chosen among candidates
    """
    frames = stack_frames(sample)
    if trained_nbytes is not None:
        nbytes = _payload_nbytes(codec, frames, final)
        if CodecTrainer.SIMPLER * trained_nbytes <= nbytes <= CodecTrainer.DRIFT * trained_nbytes:
            return Outcome(codec, trained_nbytes)
    trained = _trained(codec, frames, final)
    return Outcome(trained, _payload_nbytes(trained, frames, final))


def _train_after_change(
    codec: TrainableCodec,
    sample: Sequence[NDArray[Any]],
    trained_nbytes: float,
    final: TrainableCodec | None = None,
) -> Outcome:
    """Train a codec on the first part of a sample, and return it if it is better for the second part."""
    n_trained = -(-2 * len(sample) // 3)
    frames, later = stack_frames(sample[:n_trained]), stack_frames(sample[n_trained:] or sample)
    trained = _trained(codec, frames, final)
    before, after = _payload_nbytes(codec, later, final), _payload_nbytes(trained, later, final)
    if after < CodecTrainer.GAIN * before:
        return Outcome(trained, _payload_nbytes(trained, frames, final))
    return Outcome(codec, trained_nbytes)


def _trained(codec: TrainableCodec, frames: NDArray[Any], final: TrainableCodec | None) -> TrainableCodec:
    """Return a codec after training; if it was chosen among candidates, with the same settings.

    :raises TypeError: if it is of another class: its payloads could not be decoded with those of the other
    """
    trained = codec.train(frames)
    if type(trained) is not type(codec):
        raise TypeError(f"{type(codec).__name__}.train must return a codec of the same class, got {trained!r}")
    return trained if final is None else trained.like(codec)


def _payload_nbytes(codec: TrainableCodec, frames: NDArray[Any], final: TrainableCodec | None = None) -> float:
    """Return the mean size of the payloads of frames, with the settings of ``final`` if that is given."""
    payloads = (codec if final is None else codec.like(final)).encode(frames)
    return sum(map(len, payloads)) / max(len(frames), 1)

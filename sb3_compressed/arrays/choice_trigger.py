"""``ChoiceTrigger``: when a codec is chosen among candidates, and on which frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.codec_choice import OBJECT_NBYTES, Choice, choose, measured
from sb3_compressed.arrays.time_budget import Load, TimeBudget
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.common.warning import warn_user

__all__ = ["ChoiceTrigger", "stack_frames"]


class ChoiceTrigger:
    """Watches the load of a training and the available memory, and starts a choice if they require another codec.

    Candidates are compared on frames since the codec was trained, with gaps between them: frames next to each other may
    all be small deltas, and a coder that is slow for other frames would seem fast. A new choice also follows when
    ``add`` makes much larger payloads than those that were compared, unless these frames are encoded again later.
    Choices become rarer, unless memory is short.

    :ivar choice: the last choice, ``None`` before the first
    """

    #: Frames that candidates are compared on, at most and at least, and the most bytes of these above the least number.
    N_COMPARED, MIN_COMPARED, MAX_COMPARED_NBYTES = 16, 4, 4_000_000
    #: Frames from one of these to the next one, at first and at most.
    FIRST_SPACING, LAST_SPACING = 32, 512
    #: By which factor the load has to change for a new choice, and frames before one, at first and at most.
    OTHER_LOAD, FIRST_CHOICE, LAST_CHOICE = 1.5, 512, 65_536
    #: By which factor payloads have to be larger than those that were compared for a new choice. It then comes after a
    #: quarter of the usual number of frames.
    LARGER = 1.5
    #: Frames between two looks at the load and the available memory.
    CHECK = 512

    def __init__(self) -> None:
        self.choice: Choice | None = None
        self._load: Load | None = None  # for which the codec was chosen since it was trained
        self._may_encode_later = False  # at the last choice
        self._n_encoded = 0  # frames, in all
        self._mean_nbytes = 0.0  # of recent payloads since the last choice
        self._next_choice = self._next_check = 0  # values of _n_encoded
        self._until_choice = self.FIRST_CHOICE  # frames from the next choice to another one
        self._compared: list[NDArray[Any]] = []  # frames for a choice
        self._compared_are_enough = False
        self._spacing = self.FIRST_SPACING  # frames from one of them to the next one
        self._next_compared = 0  # value of _n_encoded at which the next one is copied
        self._is_warned = False

    def count(self, n_frames: int, payloads: Sequence[bytes]) -> None:
        """Count frames that were encoded.

        :param payloads: those of the last ones
        """
        self._n_encoded += n_frames
        mean = sum(map(len, payloads)) / len(payloads)
        self._mean_nbytes += (mean - self._mean_nbytes) / (16 if self._mean_nbytes else 1)

    def observe(
        self, codec: TrainableCodec, frames: NDArray[Any], budget: TimeBudget, n_frames: int
    ) -> Callable[[], Choice | None] | None:
        """Observe new frames; return a function that chooses a codec if one is due, for another thread.

        :param codec: the codec in use
        :param frames: ``(n, *frame_shape)``
        :param budget: the time that coding may take
        :param n_frames: frames of an observation
        """
        self._collect(frames)
        if self._n_encoded < self._next_check or not self._compared_are_enough:
            return None
        self._next_check = self._n_encoded + self.CHECK
        load = budget.load(n_frames)
        mean_nbytes = self.choice.final.nbytes if self.choice else self._mean_nbytes + OBJECT_NBYTES
        max_nbytes = budget.max_frame_nbytes(self._n_encoded, mean_nbytes)
        is_short = mean_nbytes > max_nbytes and not (self.choice is not None and self.choice.is_smallest)
        if not (is_short or self._needs_another(load, budget)):
            return None
        if load is None:  # the loop is not known: whatever is cheapest and fits
            load = Load(1.0, 1.0, 0.0, 0.0)
        self._load, self._may_encode_later = load, budget.may_encode_later
        self._until_choice = min(4 * self._until_choice, self.LAST_CHOICE)
        self._next_choice = self._n_encoded + self._until_choice
        compared = [*self._compared]  # while another thread reads them, new ones are collected
        present = self.choice.final.codec if self.choice else codec
        return partial(_choose, codec, compared, load, present, max_nbytes, may_encode_later=budget.may_encode_later)

    def use(self, choice: Choice) -> None:
        """Use a choice from now on; warn once if it exceeds the budget for lack of memory."""
        self.choice = choice
        self._mean_nbytes = 0.0  # other payloads follow
        if choice.is_forced and not self._is_warned:
            self._is_warned = True
            cost = f"{choice.share:.0%} of the training's time" if choice.load.share else "more time"
            warn_user(
                "the full buffer would not fit into the available memory, so frames are now compressed more, with "
                f"{choice.final.codec.coder_name}, which takes {cost}"
            )

    def update_codec(self, codec: TrainableCodec) -> None:
        """Replace the codec of the choice by one that was trained; other candidates follow."""
        self._discard_compared()
        if self.choice is not None:
            self._load = None
            self.choice = self.choice.trained(codec)

    def _needs_another(self, load: Load | None, budget: TimeBudget) -> bool:
        """Return whether the load, the sizes of payloads, or whether frames may be encoded later has changed."""
        choice = self.choice
        if choice is not None and choice.later is not None and not budget.may_encode_later:
            return True  # at once, since frames can no longer be encoded later
        is_larger = choice is not None and self._mean_nbytes + OBJECT_NBYTES > self.LARGER * choice.new.nbytes
        if is_larger and self._n_encoded >= self._next_choice - self._until_choice * 3 // 4:
            return True
        if self._n_encoded < self._next_choice:
            return False
        if load is not None and (self._load is None or not load.is_similar(self._load, self.OTHER_LOAD)):
            return True
        return choice is not None and budget.may_encode_later != self._may_encode_later

    def _collect(self, frames: NDArray[Any]) -> None:
        """Copy one of the new frames from time to time.

        Without room, drop every other one and double the spacing, or drop the oldest one at the largest spacing.
        """
        if self._compared and self._compared[0].shape != frames.shape[1:]:  # the layout was found meanwhile
            self._discard_compared()
        if self._n_encoded < self._next_compared:
            return
        most = self.MAX_COMPARED_NBYTES // max(frames[0].nbytes, 1)
        room = max(min(self.N_COMPARED, most), self.MIN_COMPARED)
        if len(self._compared) == room:
            if self._spacing < self.LAST_SPACING:
                self._spacing *= 2
                del self._compared[::2]
            else:
                del self._compared[0]
        self._compared.append(frames[self._n_encoded // self._spacing % len(frames)].copy(order="K"))
        self._compared_are_enough |= len(self._compared) == room
        self._next_compared = self._n_encoded + self._spacing

    def _discard_compared(self) -> None:
        self._compared = []
        self._compared_are_enough = False
        self._spacing = self.FIRST_SPACING
        self._next_compared = 0


def _choose(
    codec: TrainableCodec,
    frames: Sequence[NDArray[Any]],
    load: Load,
    present: TrainableCodec,
    max_nbytes: float,
    *,
    may_encode_later: bool,
) -> Choice | None:
    """Choose among the candidates of a codec, which are measured on some frames; ``None`` if it has none.

    :param present: the codec that most frames are encoded with so far
    """
    stacked = stack_frames(frames)
    codecs = codec.candidates(stacked)
    if any(type(other) is not type(codec) for other in codecs):
        raise TypeError(f"{type(codec).__name__}.candidates must return codecs of the same class, got {codecs!r}")
    candidates = measured(codecs, stacked)
    if not candidates:
        return None
    return choose(candidates, load, max_nbytes=max_nbytes, may_encode_later=may_encode_later, present=present)


def stack_frames(frames: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return frames as one array, with their axes in the order that those of the first have in memory."""
    axes = sorted(range(frames[0].ndim), key=lambda axis: -frames[0].strides[axis])
    stacked = np.stack([frame.transpose(axes) for frame in frames])
    return stacked.transpose(0, *(1 + axes.index(axis) for axis in range(len(axes))))

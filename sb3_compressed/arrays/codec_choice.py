"""The choice of a codec while a training runs: the smallest payloads that it has the time for.

Candidates are measured on frames of the training, on the machine it runs on. They are judged by what they take of the
time of the training beyond what storing frames uncompressed would take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.time_budget import Load
from sb3_compressed.codecs import TrainableCodec

__all__ = ["MAX_BACKGROUND", "OBJECT_NBYTES", "Candidate", "Choice", "choose", "measured"]

#: Caches are cold in a training: coding takes so many times as long there as when candidates are measured.
COLD_CACHES = 1.4
#: Calls that a candidate is timed with, and seconds after which there are no further ones.
N_CALLS, MAX_SECONDS = 3, 0.01
#: Other threads may take so many times the share of the budget of a core, to decode ahead and to encode again, beyond
#: what they would take with uncompressed frames; and at most this share.
BACKGROUND, MAX_BACKGROUND = 4, 0.15
#: Bytes of a payload besides its content: the header of a Python object, and a reference to it.
OBJECT_NBYTES = 48
#: The part of the budget from which on encoding is left to another thread, if the payloads are as small.
SLOW_ENCODING = 0.125
#: A candidate whose payloads are larger by at most this factor is chosen if it costs less time.
SIMILAR = 1.03
#: The codec in use stays if it exceeds the budget by at most the first factor, and no other is smaller by the second.
TOLERANCE, CLEARLY_SMALLER = 1.5, 0.9


class Candidate(NamedTuple):
    """A codec, and what one frame takes with it.

    :param codec: the codec
    :param nbytes: bytes of memory
    :param encoding: seconds of encoding
    :param decoding: seconds of decoding
    """

    codec: TrainableCodec
    nbytes: float
    encoding: float
    decoding: float


class Choice(NamedTuple):
    """The codecs that are used from now on, and why.

    :param new: encodes new frames
    :param later: encodes frames again that are no longer new, ``None`` if that does not pay
    :param share: the share of the training's time that both take beyond what uncompressed frames would take
    :param load: for which they were chosen
    :param ladder: the candidates that are worth their time: each needs less memory than every faster one; the fastest
        first
    """

    new: Candidate
    later: Candidate | None
    share: float
    load: Load
    ladder: tuple[Candidate, ...]

    @property
    def is_forced(self) -> bool:
        """Whether it exceeds the budget because the full buffer would not fit into memory otherwise."""
        return self.share > TOLERANCE * self.load.share

    def trained(self, codec: TrainableCodec) -> Choice:
        """Return the same choice after a training.

        :param codec: the codec after it
        """
        later = self.later and self.later._replace(codec=codec.like(self.later.codec))
        return self._replace(new=self.new._replace(codec=codec), later=later)

    def __str__(self) -> str:
        """Return what is used, what it costs, and what the neighbors on the ladder would take."""
        coders = self.new.codec.coder_name
        if self.later is not None:
            coders = f"{self.later.codec.coder_name}, new frames {coders}"
        cost = f"{self.share:.1%} of the time (budget {self.load.share:.1%})"
        smaller = [each for each in self.ladder if each.nbytes < self.final.nbytes]
        larger = [each for each in self.ladder if each.nbytes > self.final.nbytes]
        others = [f"; {each.codec.coder_name} {each.nbytes:,.0f} B" for each in (*larger[-1:], *smaller[:1])]
        return f"{coders}: {self.final.nbytes:,.0f} B a frame, {cost}{''.join(others)}"

    @property
    def is_smallest(self) -> bool:
        """Whether no candidate needs clearly less memory."""
        return CLEARLY_SMALLER * self.final.nbytes <= self.ladder[-1].nbytes

    @property
    def final(self) -> Candidate:
        """The candidate that encodes most of the frames in a full buffer."""
        return self.later or self.new


def measured(codecs: Sequence[TrainableCodec], frames: NDArray[np.generic]) -> list[Candidate]:
    """Estimate what frames take with codecs in a training: time of this thread's processor, and memory.

    :param frames: ``(n, *frame_shape)``, not those that the codecs were trained on
    """
    out = np.full(frames.shape, 0, frames.dtype)  # not np.zeros, whose memory is slow at first
    n = len(frames)
    candidates = []
    for codec in codecs:
        codec.decode_into(codec.encode(frames[:1]), out[:1])  # creates the contexts of libraries
        payloads, encoding = _timed(partial(codec.encode, frames))
        _, decoding = _timed(partial(codec.decode_into, payloads, out))
        nbytes = sum(map(len, payloads)) / n + OBJECT_NBYTES
        candidates.append(Candidate(codec, nbytes, *(COLD_CACHES * seconds / n for seconds in (encoding, decoding))))
    return candidates


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return a result and the least seconds of this thread's processor of a few calls.

    Once would not do: new memory makes the first call longer, and the first candidate is what all are compared with.
    """
    seconds: list[float] = []
    while not seconds or (len(seconds) < N_CALLS and sum(seconds) < MAX_SECONDS):
        begin = time.thread_time()
        result = function()
        seconds.append(time.thread_time() - begin)
    return result, min(seconds)


def choose(
    candidates: Sequence[Candidate],
    load: Load,
    *,
    max_nbytes: float = math.inf,
    may_encode_later: bool = False,
    present: TrainableCodec | None = None,
) -> Choice:
    """Choose the candidates with the smallest payloads that the budget allows.

    :param candidates: the first one stores frames uncompressed
    :param load: what the training requests
    :param max_nbytes: most bytes of a frame with which the full buffer fits into memory, which goes before the budget
    :param may_encode_later: whether frames may be encoded again when they are no longer new
    :param present: the codec that most frames are encoded with so far, which is kept if it is about as good
    """
    raw, ladder = candidates[0], _ladder(candidates)
    at_once = _cheapest_of_smallest(candidates, load, max_nbytes, present)
    choice = Choice(at_once, None, _share(at_once, raw, load), load, ladder)
    if not may_encode_later or not load.has_idle_core:
        return choice
    # Only few frames are new at any time, so decoding them does not count, nor does encoding the others.
    later_load = load._replace(encoded=0.0)
    later = _cheapest_of_smallest(candidates, later_load, max_nbytes, present, encoded_later=load.encoded)
    is_slow = load.encoded * (at_once.encoding - raw.encoding) > SLOW_ENCODING * load.share
    pays = later.nbytes < CLEARLY_SMALLER * at_once.nbytes or (is_slow and later.nbytes <= SIMILAR * at_once.nbytes)
    new = min(candidates, key=lambda candidate: candidate.encoding)
    if not pays or later.nbytes >= CLEARLY_SMALLER * new.nbytes:
        return choice
    return Choice(new, later, _share(later, raw, later_load), load, ladder)


def _share(candidate: Candidate, raw: Candidate, load: Load) -> float:
    """Return the share of the training's time that a candidate takes more than uncompressed frames."""
    waited = load.waited if load.has_idle_core else load.waited + load.ahead
    return load.encoded * (candidate.encoding - raw.encoding) + waited * (candidate.decoding - raw.decoding)


def _cheapest_of_smallest(
    candidates: Sequence[Candidate],
    load: Load,
    max_nbytes: float,
    present: TrainableCodec | None,
    encoded_later: float = 0.0,
) -> Candidate:
    """Return the candidate that takes least time of those with about the smallest payloads that the budget allows.

    :param encoded_later: frames that another thread encodes in a second
    """
    raw = candidates[0]

    def fits(candidate: Candidate, tolerance: float = 1.0) -> bool:
        background = encoded_later * candidate.encoding + load.ahead * (candidate.decoding - raw.decoding)
        return candidate is raw or (
            _share(candidate, raw, load) <= tolerance * load.share
            and background <= tolerance * min(BACKGROUND * load.share, MAX_BACKGROUND)
        )

    def share(candidate: Candidate) -> float:
        return _share(candidate, raw, load)

    affordable = [candidate for candidate in candidates if fits(candidate)]
    smallest = min(candidate.nbytes for candidate in affordable)
    if smallest > max_nbytes:  # a buffer that does not fit into memory would end the training
        least = min(candidate.nbytes for candidate in candidates)
        most = max_nbytes if least <= max_nbytes else least / CLEARLY_SMALLER
        return min((candidate for candidate in candidates if candidate.nbytes <= most), key=share)
    best = min((each for each in affordable if each.nbytes <= SIMILAR * smallest), key=share)
    for candidate in candidates:
        if candidate.codec == present and fits(candidate, TOLERANCE) and candidate.nbytes <= max_nbytes:
            return best if best.nbytes < CLEARLY_SMALLER * candidate.nbytes else candidate
    return best


def _ladder(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that need less memory than each one that is decoded faster, the fastest first."""
    ladder: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.decoding):
        if not ladder or candidate.nbytes < ladder[-1].nbytes:
            ladder.append(candidate)
    return tuple(ladder)

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
from sb3_compressed.codecs.payloads import Payloads

__all__ = ["MAX_BACKGROUND", "OBJECT_NBYTES", "Candidate", "Choice", "choose", "measured"]

#: Caches are cold in a training: coding takes so many times as long there as when candidates are measured.
COLD_CACHES = 1.4
#: Calls that a candidate is timed with, and seconds after which there are no further ones.
N_CALLS, MAX_SECONDS = 3, 0.01
#: Seconds that the training loses for each second of another thread while a core is idle: both share caches, memory and
#: often a physical core.
OTHER_THREAD = 0.25
#: Seconds that the training waits for Python's lock while another thread encodes a frame again.
WAIT_LATER = 25e-6
#: The largest share of a core that other threads may take to decode ahead and to encode again, beyond uncompressed
#: frames.
MAX_BACKGROUND = 0.15
#: Bytes of a payload besides its content: the header of a Python object, and a reference to it.
OBJECT_NBYTES = 48
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
        share = round(self.share, 3) + 0  # which is never -0.0
        cost = f"{share:.1%} of the time (budget {self.load.share:.1%})"
        smaller = [each for each in self.ladder if each.nbytes < self.final.nbytes]
        larger = [each for each in self.ladder if each.nbytes > self.final.nbytes]
        others = [f"; {each.codec.coder_name} {each.nbytes:,.0f} B" for each in (*larger[-1:], *smaller[:1])]
        return f"{coders}: {self.final.nbytes:,.0f} B a frame, {cost}{''.join(others)}"

    @property
    def uses_training(self) -> bool:
        """Whether payloads depend on what the codec was trained on."""
        return self.final.codec.uses_training

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
    n = len(frames)
    # A few frames may all be small deltas. Later ones may not be, and take much longer, so one without a delta counts.
    inverse = np.invert if frames.dtype.kind in "biu" else np.negative
    timed = np.concatenate([frames, inverse(frames[-1:])])
    out = np.full(timed.shape, 0, timed.dtype)  # not np.zeros, whose memory is slow at first
    candidates = []
    for codec in codecs:
        codec.decode_into(codec.encode(frames[:1]), out[:1])  # creates the contexts of libraries
        payloads, encoding = _timed(partial(codec.encode, timed))
        # Located before, as in a training: to copy payloads takes as long as to decode uncompressed ones.
        located = Payloads.of(payloads)
        _, decoding = _timed(partial(codec.decode_batch, [codec], located, out))
        nbytes = sum(map(len, payloads[:n])) / n + OBJECT_NBYTES
        times = (COLD_CACHES * seconds / len(timed) for seconds in (encoding, decoding))
        candidates.append(Candidate(codec, nbytes, *times))
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
    new = min(candidates, key=lambda candidate: candidate.encoding)
    ways = [_Way(candidate, is_later=False) for candidate in candidates]
    if may_encode_later and load.has_idle_core:
        ways += [_Way(each, is_later=True) for each in candidates if each.nbytes < CLEARLY_SMALLER * new.nbytes]
    chosen = _cheapest_of_smallest(ways, raw, load, max_nbytes, present)
    share = chosen.share(raw, load)
    if chosen.is_later:
        return Choice(new, chosen.candidate, share, load, ladder)
    return Choice(chosen.candidate, None, share, load, ladder)


class _Way(NamedTuple):
    """A way to store frames.

    :param candidate: encodes them
    :param is_later: whether another thread does so when they are no longer new
    """

    candidate: Candidate
    is_later: bool

    def background(self, raw: Candidate, load: Load) -> float:
        """Return what other threads take of a core beyond what they would take with uncompressed frames."""
        encoding = load.encoded * self.candidate.encoding if self.is_later else 0.0
        return encoding + load.ahead * (self.candidate.decoding - raw.decoding)

    def share(self, raw: Candidate, load: Load) -> float:
        """Return the share of the training's time that it takes more than uncompressed frames.

        Where frames are encoded again, new ones are stored at least as fast as uncompressed ones, and only few are new
        at any time, so neither encoding nor decoding these counts.
        """
        other_thread = OTHER_THREAD if load.has_idle_core else 1.0
        encoding = WAIT_LATER if self.is_later else self.candidate.encoding - raw.encoding
        waited = load.encoded * encoding + load.waited * (self.candidate.decoding - raw.decoding)
        return waited + other_thread * self.background(raw, load)


def _cheapest_of_smallest(
    ways: Sequence[_Way], raw: Candidate, load: Load, max_nbytes: float, present: TrainableCodec | None
) -> _Way:
    """Return the way that takes least time of those with about the smallest payloads that the budget allows."""

    def fits(way: _Way, tolerance: float = 1.0) -> bool:
        return way.candidate is raw or (
            way.share(raw, load) <= tolerance * load.share
            and (not load.has_idle_core or way.background(raw, load) <= tolerance * MAX_BACKGROUND)
        )

    def share(way: _Way) -> float:
        return way.share(raw, load)

    affordable = [way for way in ways if fits(way)]
    smallest = min(way.candidate.nbytes for way in affordable)
    if smallest > max_nbytes:  # a buffer that does not fit into memory would end the training
        least = min(way.candidate.nbytes for way in ways)
        most = max_nbytes if least <= max_nbytes else least / CLEARLY_SMALLER
        return min((way for way in ways if way.candidate.nbytes <= most), key=share)
    best = min((way for way in affordable if way.candidate.nbytes <= SIMILAR * smallest), key=share)
    most = min(max_nbytes, best.candidate.nbytes / CLEARLY_SMALLER)
    similar = (way for way in ways if way.candidate.codec == present and way.candidate.nbytes <= most)
    return min((way for way in similar if fits(way, TOLERANCE)), key=share, default=best)


def _ladder(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that need less memory than each one that is decoded faster, the fastest first."""
    ladder: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.decoding):
        if not ladder or candidate.nbytes < ladder[-1].nbytes:
            ladder.append(candidate)
    return tuple(ladder)

"""``PredictedBatch``: decodes the next batch before it is drawn, while the network trains and environments step.

SB3 draws a batch from NumPy's global random numbers. What is consumed of these between two batches follows a pattern,
such as one number for each step of an environment. So the next batch can be predicted: after a batch, a copy of the
generator continues, skips what will be consumed, and draws; another thread decodes. Then SB3 draws as always, and
receives that batch if it has drawn the same, see :mod:`.batch_ahead`. Where a training takes less time without it, no
batch is decoded ahead, see :mod:`.alternation`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from threading import RLock
from typing import NamedTuple

import numpy as np

from sb3_compressed.buffers.alternation import Alternation
from sb3_compressed.buffers.batch_ahead import BatchAhead
from sb3_compressed.buffers.observation_batch import ObservationBatch
from sb3_compressed.common.random_words import STATE_IS_READABLE, MersenneTwister, State, global_state

__all__ = ["Between", "PredictedBatch"]

#: Batches after which predictions are judged, and the share of them that must have been ready in time.
N_JUDGED, MIN_READY = 128, 0.9
#: Batches without predictions after too many failed, at first and at most.
SHORTEST_REST, LONGEST_REST = 256, 16_384
Draw = Callable[[np.random.RandomState, int], ObservationBatch]
"""Draws a batch from a generator, as it will be after so many further rows were added; does not locate it."""

#: The most batches after which consumption repeats, as with ``gradient_steps=4``: 0, 0, 0, n.
LONGEST_PERIOD = 8


class Between(NamedTuple):
    """What happens between two batches.

    :param n_words: words of random numbers that are consumed
    :param n_rows: rows that are added
    """

    n_words: int
    n_rows: int


class PredictedBatch(BatchAhead):
    """The batch that is decoded ahead, and what predicts it.

    :ivar alternation: whether batches are decoded ahead at present: not where the training takes less time without it
    """

    def __init__(self) -> None:
        super().__init__()
        self._twister = MersenneTwister()
        self._state: State | None = None  # after the last batch
        self._position = 0  # likewise
        self._history: deque[Between] = deque(maxlen=2 * LONGEST_PERIOD)
        self._n_batches = self._n_ready_before = 0  # since and until predictions were judged
        self._rest = SHORTEST_REST
        self._n_resting = 0
        self.alternation = Alternation()

    @staticmethod
    def is_possible(num_threads: int) -> bool:
        """Return whether random numbers can be predicted, and another thread and core can decode.

        :param num_threads: number of threads that the buffer may use
        """
        return STATE_IS_READABLE and BatchAhead.is_possible(num_threads)

    def observe(self, position: int, n_rows: int) -> None:
        """Observe what has happened since the last batch, before another one is drawn.

        :param position: of the ring, which has ``n_rows`` rows
        """
        before = self._state
        if before is None:
            return
        after = global_state()
        n_words = None if after is None else self._twister.words_between(before, after)
        if n_words is None:
            self._history.clear()
        else:
            self._history.append(Between(n_words, (position - self._position) % n_rows))

    def predict(self, position: int, draw: Draw, lock: RLock | None = None) -> None:
        """Predict the next batch after one was sampled, and decode it in another thread.

        :param position: of the ring
        :param draw: draws the next batch
        :param lock: of a buffer in a folder, with which the other thread locates the payloads
        """
        self.discard()
        self._state, self._position = None, position
        if self._n_resting:
            self._n_resting -= 1
            return
        self.alternation.begin_round()
        if not self.alternation.is_on:
            return
        self._n_batches += 1
        if self._n_batches == N_JUDGED:
            is_good = self.n_decoded_ahead - self._n_ready_before >= MIN_READY * N_JUDGED
            self._n_batches, self._n_ready_before = 0, self.n_decoded_ahead
            self._rest = SHORTEST_REST if is_good else min(2 * self._rest, LONGEST_REST)
            self._n_resting = 0 if is_good else self._rest
        self._state = state = global_state()
        if state is not None and self._history:
            expected = _expected([*self._history])
            self._twister.continue_after(state, expected.n_words)
            self.start(draw(self._twister.random, expected.n_rows), lock)


def _expected(history: list[Between]) -> Between:
    """Return what will happen until the next batch: what the period says that has fitted for longest, or what is usual.

    A period counts once it has repeated. Otherwise, something that happened once, such as an evaluation, would be
    expected again after each number of batches in turn.
    """
    latest = history[::-1]
    best, longest = 0, 0
    for period in range(1, LONGEST_PERIOD + 1):
        pairs = enumerate(zip(latest, latest[period:], strict=False))
        fitted = next((n for n, (now, before) in pairs if now != before), len(latest) - period)
        if fitted >= period and fitted > longest:
            best, longest = period, fitted
    return latest[best - 1] if best else Counter(latest).most_common(1)[0][0]

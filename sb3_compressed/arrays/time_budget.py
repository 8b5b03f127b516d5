"""``TimeBudget``: the share of a training's time that coding the frames of one stream of observations may take."""

from __future__ import annotations

from typing import NamedTuple

from sb3_compressed.arrays.loop_timing import LoopTiming
from sb3_compressed.common.memory import available_memory

__all__ = ["SHARES", "Load", "TimeBudget"]

#: The share of the time of a training that storing frames may take more than storing them uncompressed.
SHARES = {"fast": 0.005, "balanced": 0.02, "small": 0.1}
#: The share of the available memory that a buffer may fill.
USABLE_MEMORY = 0.85


class Load(NamedTuple):
    """What a training requests of the codec of a stream of frames, and what this may cost.

    :param encoded: frames that are encoded in a second of the training
    :param waited: frames that are decoded in a second while the training waits for them
    :param ahead: frames that another thread decodes in a second meanwhile
    :param share: the share of the training's time that encoding and decoding may take more than they would take with
        uncompressed frames
    :param has_idle_core: whether a core is idle, so that other threads take only a part of their time from the training
    """

    encoded: float
    waited: float
    ahead: float
    share: float
    has_idle_core: bool = True

    def is_similar(self, other: Load, factor: float) -> bool:
        """Return whether no rate differs by more than a factor from that of another load."""
        pairs = [(self.encoded, other.encoded), (self.waited, other.waited), (self.ahead, other.ahead)]
        # Rates far below the largest one do not matter.
        least = 0.1 * max(map(max, pairs))
        return self.has_idle_core == other.has_idle_core and all(
            1 / factor <= max(one, least, 1e-9) / max(another, least, 1e-9) <= factor for one, another in pairs
        )


class TimeBudget(NamedTuple):
    """The time and the memory that the frames of one stream of observations may take.

    :param timing: of the loop around the buffer
    :param share: the share of the training's time
    :param memory_share: the share of the available memory
    :param items_per_sample: observations of a sampled transition: 2 with the next observation, which shares frames
    :param n_items: observations that are stored in the full buffer
    :param n_stored: observations that the buffer contained when this budget was set
    :param may_encode_later: whether frames may be encoded again when they are no longer new
    """

    timing: LoopTiming
    share: float
    memory_share: float = 1.0
    items_per_sample: int = 1
    n_items: int = 1
    n_stored: int = 0
    may_encode_later: bool = False

    def load(self, n_frames: int) -> Load | None:
        """Return the load of the stream, ``None`` if the loop is not known yet.

        :param n_frames: frames of an observation
        """
        rates = self.timing.rates
        if rates is None:
            return None
        n = n_frames + self.items_per_sample - 1  # different ones of a sampled transition
        return Load(rates.added, n * rates.waited, n * rates.ahead, self.share, rates.has_idle_core)

    def max_frame_nbytes(self, n_encoded: int, mean_nbytes: float) -> float:
        """Return the most bytes that a frame may take so that the full buffer fits into memory.

        :param n_encoded: the number of frames that were encoded since then
        :param mean_nbytes: the bytes of each
        """
        available = USABLE_MEMORY * self.memory_share * available_memory()
        return (available + min(self.n_stored + n_encoded, self.n_items) * mean_nbytes) / max(self.n_items, 1)

"""Which steps the sequences of a batch consist of, drawn uniformly or by priorities.

A sequence has one *anchor*, the transition that is drawn: its first one after the burn-in. Anchors are drawn from all
transitions, and those are rejected at which no sequence is possible. Only if nearly all are rejected, because few
episodes are long enough or the priorities of others are larger, the valid anchors are listed.

Transitions have flat indices, ``row * n_envs + env``. Rows are addressed by age, of which 0 is the oldest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.sequence_reading import SequenceSteps
from sb3_compressed.errors import BufferNotReady
from sb3_compressed.samplers.prioritized import PrioritizedSampler
from sb3_compressed.samplers.sampler import Draw

__all__ = ["EpisodeRing", "Pad", "SequenceDraw", "SequenceShape", "draw_sequences"]

Pad = Literal["none", "end"]
"""Where sequences are padded that are longer than the rest of their episode."""

#: The most transitions that are drawn for each valid anchor at first.
MAX_STRIDE = 64


@dataclass(frozen=True)
class SequenceShape:
    """What sequences are requested; see :meth:`.CompressedReplay.sample_sequences`."""

    length: int
    burn_in: int = 0
    stride: int = 1
    pad: Pad = "none"

    def __post_init__(self) -> None:
        if self.pad not in get_args(Pad):
            raise ValueError(f"pad must be one of {get_args(Pad)}, got {self.pad!r}")

    @property
    def n_steps(self) -> int:
        """Length of the time axis."""
        return self.burn_in + self.length


@dataclass(frozen=True)
class EpisodeRing:
    """The transitions of a ring buffer, and where episodes end.

    :param dones: nonzero where an episode ends, ``(n_rows, n_envs)``
    :param timeouts: nonzero where it ends by a time limit, of the same shape
    :param oldest: the row of age 0
    :param n_ages: number of rows that contain transitions
    :param starts_at_row_0: whether row 0 is the first one ever written, so that episodes begin there
    """

    dones: NDArray[np.float32]
    timeouts: NDArray[np.float32]
    oldest: int
    n_ages: int
    starts_at_row_0: bool

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return int(self.dones.shape[1])

    def rows(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of these ages."""
        return (ages + self.oldest) % len(self.dones)

    def ages_and_envs(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ages and environments of flat indices."""
        rows, envs = np.divmod(indices, self.n_envs)
        return (rows - self.oldest) % len(self.dones), envs

    def ends(self, ages: NDArray[np.int64], envs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return where an episode ends with the transition of an age."""
        index = self.rows(ages), envs
        ends: NDArray[np.bool_] = (self.dones[index] != 0) | (self.timeouts[index] != 0)
        return ends

    def is_last(self, ages: NDArray[np.int64], envs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return where no transition of the same episode follows an age in the ring; -1 is before the oldest."""
        return (ages < 0) | (ages >= self.n_ages - 1) | self.ends(ages, envs)

    def count(self, ages: NDArray[np.int64], envs: NDArray[np.int64], step: int, most: int) -> NDArray[np.int64]:
        """Return how many transitions of its episode follow each (``step=1``) or precede it (-1), at most ``most``."""
        most = min(most, self.n_ages)
        before = ages if step > 0 else ages - 1
        is_last = np.ones((len(ages), most + 1), dtype=np.bool_)
        is_last[:, :most] = self.is_last(before[:, None] + step * np.arange(most), envs[:, None])
        counts: NDArray[np.int64] = is_last.argmax(axis=1)
        return counts


class SequenceDraw(NamedTuple):
    """The steps of a batch of sequences, and how they were drawn.

    :param steps: the steps
    :param episode_starts: 1 where an episode begins, or its part that is in the ring after padding; ``(batch, time)``
    :param indices: flat indices of the anchors, ``(batch,)``
    :param weights: importance weights ``(batch,)``, ``None`` if all are 1
    """

    steps: SequenceSteps
    episode_starts: NDArray[np.float32]
    indices: NDArray[np.int64]
    weights: NDArray[np.float32] | None = None


def draw_sequences(
    ring: EpisodeRing, shape: SequenceShape, batch_size: int, sampler: PrioritizedSampler | None = None
) -> SequenceDraw:
    """Draw sequences, each possible one with the same probability, or in proportion to the priority of its anchor.

    :param sampler: the sampler of the buffer, ``None`` for equal probabilities
    :raises BufferNotReady: if there is no sequence
    :raises ValueError: if the priorities of all anchors are zero
    """
    if not ring.n_ages:
        raise BufferNotReady("cannot sample from an empty buffer: add transitions first")
    indices = _draw_anchors(ring, shape, batch_size, sampler)
    return _sequences_at(ring, shape, Draw(indices) if sampler is None else sampler.weighted(indices))


def _draw_anchors(
    ring: EpisodeRing, shape: SequenceShape, batch_size: int, sampler: PrioritizedSampler | None
) -> NDArray[np.int64]:
    """Return the flat indices of anchors, which are independent of each other."""
    n = 2 * batch_size * min(shape.stride, MAX_STRIDE)
    most = max(n, ring.n_ages * ring.n_envs // shape.length)  # to examine more takes longer than to list all
    while n <= most:
        if sampler is None:
            # SB3's generator; without a dtype, it draws 32 bits on Windows.
            rows = ring.rows(np.random.randint(0, ring.n_ages, n, dtype=np.int64))  # noqa: NPY002
            drawn = rows * ring.n_envs + np.random.randint(0, ring.n_envs, n, dtype=np.int64)  # noqa: NPY002
        else:
            drawn = sampler.draw_independently(n)
        anchors = drawn[_is_anchor(ring, shape, *ring.ages_and_envs(drawn))]
        if len(anchors) >= batch_size:
            return anchors[:batch_size]
        n *= 2
    anchors = _all_anchors(ring, shape)
    if sampler is None:
        return anchors[np.random.randint(0, len(anchors), batch_size, dtype=np.int64)]  # noqa: NPY002
    return sampler.draw_among(anchors, batch_size)


def _is_anchor(
    ring: EpisodeRing, shape: SequenceShape, ages: NDArray[np.int64], envs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which transitions are anchors of sequences."""
    is_anchor = _is_on_stride(ring, shape, ages, envs)
    if shape.pad == "none":
        [found] = np.nonzero(is_anchor)
        is_anchor[found] = ring.count(ages[found], envs[found], 1, shape.length - 1) == shape.length - 1
    return is_anchor


def _is_on_stride(
    ring: EpisodeRing, shape: SequenceShape, ages: NDArray[np.int64], envs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which transitions the stride selects: also the first and the last ones at which sequences can begin."""
    is_selected: NDArray[np.bool_] = (ring.rows(ages) % shape.stride == 0) | ring.is_last(ages - 1, envs)
    if shape.pad == "none":
        last = ages + shape.length - 1
        is_selected |= (last < ring.n_ages) & ring.ends(last, envs)
    return is_selected


def _all_anchors(ring: EpisodeRing, shape: SequenceShape) -> NDArray[np.int64]:
    """Return the flat indices of all valid anchors.

    :raises BufferNotReady: if there are none
    """
    ages, envs = np.arange(ring.n_ages)[:, None], np.arange(ring.n_envs)
    is_anchor = _is_on_stride(ring, shape, ages, envs)
    if shape.pad == "none":
        last = np.where(ring.is_last(ages, envs), ages, ring.n_ages)
        last = np.minimum.accumulate(last[::-1])[::-1]  # of the episode of each transition
        is_anchor &= last - ages >= shape.length - 1
    found, envs = np.nonzero(is_anchor)
    if len(found):
        return ring.rows(found) * ring.n_envs + envs
    every = f", at every {shape.stride}th row," if shape.stride > 1 else ""
    raise BufferNotReady(
        f"no episode has {shape.length} consecutive transitions{every} in this buffer, which contains {ring.n_ages} "
        "rows; add transitions first, request a smaller length, or pad='end' for shorter sequences"
    )


def _sequences_at(ring: EpisodeRing, shape: SequenceShape, draw: Draw) -> SequenceDraw:
    """Return the sequences with the anchors that were drawn."""
    ages, envs = ring.ages_and_envs(draw.indices)
    first = shape.burn_in - ring.count(ages, envs, -1, shape.burn_in)
    stop = shape.burn_in + 1 + ring.count(ages, envs, 1, shape.length - 1)
    begins = ages - shape.burn_in + first
    starts = np.zeros((len(ages), shape.n_steps), dtype=np.float32)
    is_start = (first > 0) | np.where(begins == 0, ring.starts_at_row_0, ring.count(begins, envs, -1, 1) == 0)
    starts[np.arange(len(ages)), first] = is_start
    positions = np.clip(np.arange(shape.n_steps), first[:, None], stop[:, None] - 1)
    rows = ring.rows((ages - shape.burn_in)[:, None] + positions)
    return SequenceDraw(SequenceSteps(rows, envs, first, stop), starts, draw.indices, draw.weights)

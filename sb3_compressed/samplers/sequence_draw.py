"""Which steps the sequences of a batch consist of: uniformly drawn, or by a sampler, in time independent of capacity.

A sequence has one *anchor*, the transition that is drawn: its first one after the burn-in. Anchors are drawn from all
transitions, and those are rejected at which no sequence is possible. Only if nearly all are rejected, because few
episodes are long enough, the valid anchors are listed.

Transitions have flat indices, ``row * n_envs + env``. Kernels address rows by age, of which 0 is the oldest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.sequence_reading import Steps
from sb3_compressed.errors import BufferNotReady
from sb3_compressed.samplers.bound_sampler import BoundSampler, SamplerBuffer
from sb3_compressed.samplers.sampler import Draw

__all__ = [
    "EpisodeRing",
    "Pad",
    "SequenceDraw",
    "SequenceShape",
    "draw_by_sampler",
    "draw_uniformly",
]

Pad = Literal["none", "end"]
"""Where sequences are padded that are longer than the rest of their episode."""

#: Testing an anchor takes about as long as examining this many transitions for the list of valid anchors.
TEST_COST = 32
#: Anchors that are tested at once.
MAX_TESTED = 8192
#: Anchors drawn by a sampler, for each requested one and step of the stride, after which it is an error.
MAX_DRAWS = 256


@cache
def kernels() -> ModuleType:
    """Import the kernels on first use: importing numba is slow."""
    from sb3_compressed.samplers import sequence_draw_kernels

    return sequence_draw_kernels


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
    def for_kernels(self) -> tuple[int, int, int]:
        """Arguments of kernels."""
        return self.length, self.stride, int(self.pad == "none")

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

    def __post_init__(self) -> None:
        # Kernels do not check the bounds again.
        if self.dones.shape != self.timeouts.shape or not 0 <= self.n_ages <= len(self.dones) > self.oldest >= 0:
            raise ValueError(
                f"there must be dones and timeouts of {self.n_ages} rows, the oldest of them {self.oldest}, got shapes "
                f"{self.dones.shape} and {self.timeouts.shape}"
            )

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return int(self.dones.shape[1])

    def rows(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of these ages."""
        return (ages + self.oldest) % len(self.dones)

    def ages_and_envs(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ages and environments of flat indices; ages that are too large have no transition."""
        rows, envs = np.divmod(indices.astype(np.int64, copy=False), self.n_envs)
        return (rows - self.oldest) % len(self.dones), envs

    @cached_property
    def for_kernels(self) -> tuple[NDArray[np.float32], NDArray[np.float32], int, int]:
        """The first arguments of every kernel."""
        dones, timeouts = (np.ascontiguousarray(each, dtype=np.float32) for each in (self.dones, self.timeouts))
        return dones, timeouts, self.oldest, self.n_ages

    def count(self, ages: NDArray[np.int64], envs: NDArray[np.int64], step: int, most: int) -> NDArray[np.int64]:
        """Return how many transitions of its episode follow each (``step=1``) or precede it (-1), at most ``most``."""
        counts = np.empty(len(ages), dtype=np.int64)
        kernels().count_steps(*self.for_kernels, ages, envs, step, most, counts)
        return counts


class SequenceDraw(NamedTuple):
    """The steps of a batch of sequences, and how they were drawn.

    :param steps: the steps
    :param episode_starts: 1 where an episode begins, or its part that is in the ring after padding; ``(batch, time)``
    :param indices: flat indices of the anchors, ``(batch,)``
    :param weights: importance weights ``(batch,)``, ``None`` if all are 1
    """

    steps: Steps
    episode_starts: NDArray[np.float32]
    indices: NDArray[np.int64]
    weights: NDArray[np.float32] | None = None


def draw_uniformly(ring: EpisodeRing, shape: SequenceShape, batch_size: int) -> SequenceDraw:
    """Draw sequences, each possible one with the same probability.

    :raises BufferNotReady: if there is none
    """
    n_ages = ring.n_ages - (shape.length - 1 if shape.pad == "none" else 0)
    n_anchors = max(n_ages, 0) * ring.n_envs
    indices = np.empty(0, dtype=np.int64)
    n_tested, max_tested = 0, max(8 * batch_size, n_anchors // TEST_COST)
    while (missing := batch_size - len(indices)) > 0 and n_tested < max_tested and n_anchors:
        n = _n_to_draw(missing, shape)
        n_tested += n
        rows = ring.rows(np.random.randint(0, n_ages, n))  # noqa: NPY002  # as SB3 does
        drawn = rows * ring.n_envs + np.random.randint(0, ring.n_envs, n)  # noqa: NPY002
        indices = np.append(indices, drawn[_anchors_among(ring, shape, drawn, missing)])
    if missing > 0:
        anchors = _all_anchors(ring, shape)
        indices = np.append(indices, anchors[np.random.randint(0, len(anchors), missing)])  # noqa: NPY002
    return _sequences_at(ring, shape, indices, None)


def draw_by_sampler(
    bound: BoundSampler, buffer: SamplerBuffer, ring: EpisodeRing, shape: SequenceShape, batch_size: int
) -> SequenceDraw:
    """Draw sequences with the probabilities of their anchors.

    If hardly any anchors are valid, they are listed and drawn from, where the sampler can do that. With priorities,
    that is common: only those of valid anchors are updated, and all others keep the priority of new transitions.

    :param bound: the sampler of the buffer
    :param buffer: the buffer
    :param ring: its transitions
    :raises BufferNotReady: if there is no sequence, or the sampler draws none
    """
    each_once = bound.sampler.is_without_replacement
    max_drawn = max_next = MAX_DRAWS * batch_size * shape.stride
    if bound.can_draw_among:
        max_next = max(4 * batch_size * shape.stride, ring.n_ages * ring.n_envs // TEST_COST)
    n = batch_size if each_once else _n_to_draw(batch_size, shape)
    drawn = bound.draw(buffer, n)
    kept, n_drawn = _taken(drawn, _anchors_among(ring, shape, drawn.indices, n)), n
    while (missing := batch_size - len(kept.indices)) > 0:
        is_weighted = drawn.weights is not None  # relative to those of the same draw, so that only one draw is kept
        n = 2 * n if is_weighted else missing if each_once else _n_to_draw(missing, shape)
        if n_drawn > max_drawn or n > max_next:
            anchors = _all_anchors(ring, shape)
            if not bound.can_draw_among:
                n_kept = len(kept.indices)
                raise BufferNotReady(
                    f"the sampler drew {n_drawn} transitions, and at {n_kept} of them a sequence begins"
                )
            drawn = valid = bound.draw_among(anchors, batch_size if is_weighted else missing)
        else:
            drawn = bound.draw_again(n)
            valid = _taken(drawn, _anchors_among(ring, shape, drawn.indices, n))
            n_drawn += n
        kept = valid if is_weighted else Draw(np.append(kept.indices, valid.indices))
    if len(kept.indices) > batch_size:  # at random, since samplers may order what they draw
        kept = _taken(kept, np.random.permutation(len(kept.indices))[:batch_size])  # noqa: NPY002
    weights = kept.weights
    if weights is not None and drawn.weights is not None and drawn.weights.max() == 1:
        weights = weights / weights.max()  # relative to the largest of a batch
    return _sequences_at(ring, shape, kept.indices, weights)


def _taken(draw: Draw, positions: NDArray[np.int64]) -> Draw:
    """Return those at some positions."""
    return Draw(draw.indices[positions], None if draw.weights is None else draw.weights[positions])


def _n_to_draw(n: int, shape: SequenceShape) -> int:
    """Return how many anchors to draw for ``n`` valid ones: enough if half of them are valid."""
    return min(2 * n * shape.stride, MAX_TESTED)


def _anchors_among(ring: EpisodeRing, shape: SequenceShape, indices: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the positions of the first valid ones among possible anchors, at most ``most``."""
    selected = np.empty(most, dtype=np.int64)
    n = kernels().select_anchors(*ring.for_kernels, *ring.ages_and_envs(indices), *shape.for_kernels, selected)
    return selected[:n]


def _all_anchors(ring: EpisodeRing, shape: SequenceShape) -> NDArray[np.int64]:
    """Return the flat indices of all valid anchors.

    :raises BufferNotReady: if there are none
    """
    is_anchor = np.empty((ring.n_envs, ring.n_ages), dtype=np.uint8)
    for env in range(ring.n_envs):
        kernels().mark_anchors(*ring.for_kernels, env, *shape.for_kernels, is_anchor[env])
    envs, ages = np.nonzero(is_anchor)
    if len(ages):
        return ring.rows(ages) * ring.n_envs + envs
    if not ring.n_ages:
        raise BufferNotReady("cannot sample from an empty buffer: add transitions first")
    every = f", at every {shape.stride}th row," if shape.stride > 1 else ""
    raise BufferNotReady(
        f"no episode has {shape.length} consecutive transitions{every} in this buffer, which contains {ring.n_ages} "
        "rows; add transitions first, request a smaller length, or pad='end' for shorter sequences"
    )


def _sequences_at(
    ring: EpisodeRing, shape: SequenceShape, indices: NDArray[np.int64], weights: NDArray[np.float32] | None
) -> SequenceDraw:
    """Return the sequences with these anchors."""
    ages, envs = ring.ages_and_envs(indices)
    first = shape.burn_in - ring.count(ages, envs, -1, shape.burn_in)
    stop = shape.burn_in + 1 + ring.count(ages, envs, 1, shape.length - 1)
    begins = ages - shape.burn_in + first
    starts = np.zeros((len(ages), shape.n_steps), dtype=np.float32)
    is_start = (first > 0) | np.where(begins == 0, ring.starts_at_row_0, ring.count(begins, envs, -1, 1) == 0)
    starts[np.arange(len(ages)), first] = is_start
    positions = np.clip(np.arange(shape.n_steps), first[:, None], stop[:, None] - 1)
    rows = ring.rows((ages - shape.burn_in)[:, None] + positions)
    return SequenceDraw(Steps(rows, envs, first, stop), starts, indices, weights)

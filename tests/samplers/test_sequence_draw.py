"""Drawing sequences: every possible one with the same probability, none across the end of an episode or of the ring."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from chi_square import assert_frequencies
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_samplers import ValidSampler

from sb3_compressed import BufferNotReady
from sb3_compressed.samplers import Draw, Sampler, WithoutReplacementSampler
from sb3_compressed.samplers.bound_sampler import BoundSampler
from sb3_compressed.samplers.sequence_draw import (
    EpisodeRing,
    Pad,
    SequenceDraw,
    SequenceShape,
    draw_by_sampler,
    draw_uniformly,
)

PADS = get_args(Pad)


def ring_of(dones: NDArray[np.bool_], pos: int, *, full: bool) -> EpisodeRing:
    """Return the ring of a buffer with these rows; episodes end by time limits in odd environments."""
    flags = dones.astype(np.float32)
    timeouts = flags * (np.arange(dones.shape[1]) % 2)
    return EpisodeRing(flags, timeouts.astype(np.float32), pos if full else 0, len(dones) if full else pos, not full)


def episodes(ring: EpisodeRing, env: int) -> list[list[int]]:
    """Return the rows of each episode of an environment in the ring, the oldest episode first."""
    found: list[list[int]] = [[]]
    for age in range(ring.n_ages):
        row = (ring.oldest + age) % len(ring.dones)
        found[-1].append(row)
        if ring.dones[row, env] or ring.timeouts[row, env]:
            found.append([])
    return [rows for rows in found if rows]


def expected_sequences(ring: EpisodeRing, shape: SequenceShape) -> dict[int, list[int | None]]:
    """Return all sequences by the flat indices of their anchors: their rows, ``None`` for padding."""
    expected: dict[int, list[int | None]] = {}
    for env in range(ring.n_envs):
        for rows in episodes(ring, env):
            has_ended = bool(ring.dones[rows[-1], env] or ring.timeouts[rows[-1], env])
            for position, row in enumerate(rows):
                window = range(position - shape.burn_in, position + shape.length)
                is_complete = position + shape.length <= len(rows)
                reaches_end = shape.pad == "none" and has_ended and position + shape.length == len(rows)
                is_on_stride = row % shape.stride == 0 or position == 0 or reaches_end
                if is_on_stride and (is_complete or shape.pad != "none"):
                    steps = [rows[at] if 0 <= at < len(rows) else None for at in window]
                    expected[row * ring.n_envs + env] = steps
    return expected


def drawn_sequences(drawn: SequenceDraw) -> list[list[int | None]]:
    """Return the rows of the sequences that were drawn, ``None`` for padding."""
    return [
        [int(row) if first <= at < stop else None for at, row in enumerate(rows)]
        for rows, first, stop in zip(drawn.steps.rows, drawn.steps.first, drawn.steps.stop, strict=True)
    ]


@st.composite
def rings(draw: st.DrawFn) -> EpisodeRing:
    """Return a ring with episodes of any lengths, partly filled or full."""
    n_rows, n_envs = draw(st.integers(1, 24)), draw(st.integers(1, 3))
    ends = draw(st.lists(st.integers(0, n_rows * n_envs - 1), max_size=12))
    dones = np.zeros(n_rows * n_envs, np.bool_)
    dones[ends] = True
    full = draw(st.booleans())
    pos = draw(st.integers(0 if full else 1, n_rows - 1 if full else n_rows))
    return ring_of(dones.reshape(n_rows, n_envs), pos, full=full)


shapes = st.builds(SequenceShape, st.integers(1, 7), st.integers(0, 4), st.integers(1, 5), st.sampled_from(PADS))


@given(rings(), shapes, st.integers(0, 2**32 - 1))
@examples(160)
def test_only_possible_sequences_are_drawn_and_all_of_them(ring: EpisodeRing, shape: SequenceShape, seed: int) -> None:
    expected = expected_sequences(ring, shape)
    np.random.seed(seed)  # noqa: NPY002  # what is drawn from
    if not expected:
        with pytest.raises(BufferNotReady, match="consecutive transitions"):
            draw_uniformly(ring, shape, 4)
        return
    drawn = draw_uniformly(ring, shape, 40 * len(expected))  # misses one with a probability of exp(-40)
    assert {*drawn.indices.tolist()} == expected.keys()
    assert drawn_sequences(drawn) == [expected[index] for index in drawn.indices.tolist()]
    assert drawn.steps.envs.tolist() == [index % ring.n_envs for index in drawn.indices.tolist()]


@given(rings(), shapes)
@examples(100)
def test_states_are_reset_where_episodes_begin_and_after_padding(ring: EpisodeRing, shape: SequenceShape) -> None:
    if not expected_sequences(ring, shape):
        return
    begins = {
        (rows[0], env)
        for env in range(ring.n_envs)
        for number, rows in enumerate(episodes(ring, env))
        if number > 0 or ring.starts_at_row_0
    }
    drawn = draw_uniformly(ring, shape, 20)
    for steps, env, starts in zip(drawn_sequences(drawn), drawn.steps.envs.tolist(), drawn.episode_starts, strict=True):
        first = next(position for position, row in enumerate(steps) if row is not None)
        assert starts[first] == ((steps[first], env) in begins or first > 0)
        assert starts.sum() == starts[first]


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("stride", [1, 3])
def test_sequences_are_equally_likely(pad: Pad, stride: int) -> None:
    dones = np.zeros((60, 2), np.bool_)
    dones[[4, 5, 17, 40, 59], 0] = dones[[9, 30, 31, 52], 1] = True
    ring, shape = ring_of(dones, 25, full=True), SequenceShape(6, 2, stride, pad)
    expected = expected_sequences(ring, shape)
    np.random.seed(0)  # noqa: NPY002
    indices = np.concatenate([draw_uniformly(ring, shape, 64).indices for _ in range(400)])
    counts = np.array([np.count_nonzero(indices == index) for index in expected])
    assert counts.sum() == len(indices)
    assert_frequencies(counts)


def test_only_long_episode_among_many_short_ones_is_found() -> None:
    dones = np.ones((50_000, 2), np.bool_)
    dones[30_000:30_049, 1] = False
    ring = ring_of(dones, 7, full=True)
    drawn = draw_uniformly(ring, SequenceShape(50), 5)
    assert drawn.steps.rows.tolist() == [[*range(30_000, 30_050)]] * 5
    assert drawn.steps.envs.tolist() == [1] * 5
    with pytest.raises(BufferNotReady, match="no episode has 51 consecutive transitions"):
        draw_uniformly(ring, SequenceShape(51), 5)


def test_empty_ring_has_no_sequences() -> None:
    ring = ring_of(np.zeros((5, 1), np.bool_), 0, full=False)
    with pytest.raises(BufferNotReady, match="empty"):
        draw_uniformly(ring, SequenceShape(1, pad="end"), 1)


def test_flags_of_other_shapes_are_an_error() -> None:
    flags = np.zeros((5, 2), np.float32)
    for dones, timeouts, oldest, n_ages in ((flags, flags[:4], 0, 5), (flags, flags, 5, 5), (flags, flags, 0, 6)):
        with pytest.raises(ValueError, match="dones and timeouts"):
            EpisodeRing(dones, timeouts, oldest, n_ages, False)


def test_unknown_padding_is_an_error() -> None:
    with pytest.raises(ValueError, match="got 'zeros'"):
        SequenceShape(4, pad="zeros")  # type: ignore[arg-type]


class Drawer(BoundSampler):
    """Draws transitions in a fixed order."""

    def __init__(self, ring: EpisodeRing, order: list[int], sampler: Sampler) -> None:
        super().__init__(sampler, len(ring.dones), ring.n_envs)
        self.order, self.n_drawn = order, 0

    def draw(self, buffer: Any, batch_size: int) -> Draw:
        """Return the next ones, again from the beginning after the last one."""
        flat = [self.order[(self.n_drawn + k) % len(self.order)] for k in range(batch_size)]
        self.n_drawn += batch_size
        return Draw(np.array(flat))

    def draw_again(self, batch_size: int) -> Draw:
        """Return the next ones."""
        return self.draw(None, batch_size)


class WeightedDrawer(Drawer):
    """Draws them with weights, which are relative to the largest of a batch or to something else."""

    is_normalized = False

    def draw(self, buffer: Any, batch_size: int) -> Draw:
        """Return the next ones."""
        [indices, _] = super().draw(buffer, batch_size)
        scale = indices.max() + 1000 if self.is_normalized else self.n_drawn
        self.last = Draw(indices, ((indices + 1000) / scale).astype(np.float32))
        return self.last


def sequences_of(drawer: Drawer, ring: EpisodeRing, shape: SequenceShape, batch_size: int) -> SequenceDraw:
    """Return the sequences that are drawn; a drawer reads no buffer."""
    buffer: Any = None
    return draw_by_sampler(drawer, buffer, ring, shape, batch_size)


def test_transitions_drawn_without_replacement_are_kept_in_order() -> None:
    dones = np.zeros((20, 2), np.bool_)
    dones[[6, 13], 0] = True
    ring, shape = ring_of(dones, 5, full=True), SequenceShape(4)
    expected = expected_sequences(ring, shape)
    order = [8, 10, 12, 1, 39, 3, 30, 22, 17, 9]
    possible = [index for index in order if index in expected]
    assert 0 < len(possible) < len(order)
    drawer = Drawer(ring, order, WithoutReplacementSampler())
    batches = [sequences_of(drawer, ring, shape, 2) for _ in range(len(possible) // 2)]
    indices = np.concatenate([batch.indices for batch in batches])
    assert indices.tolist() == possible[: len(indices)]
    assert drawn_sequences(batches[0]) == [expected[index] for index in possible[:2]]


@pytest.mark.parametrize("is_normalized", [False, True])
def test_weights_are_those_of_one_draw(is_normalized: bool) -> None:
    ring, shape = ring_of(np.zeros((40, 1), np.bool_), 40, full=False), SequenceShape(30)
    drawer = WeightedDrawer(ring, [*range(11, 40), *range(11)], ValidSampler())
    drawer.is_normalized = is_normalized
    batch = sequences_of(drawer, ring, shape, 9)
    assert drawer.n_drawn > len(drawer.last.indices), "several draws"
    assert batch.weights is not None
    assert drawer.last.weights is not None
    of_index = dict(zip(drawer.last.indices.tolist(), drawer.last.weights, strict=True))
    weights = np.array([of_index[index] for index in batch.indices.tolist()])
    np.testing.assert_allclose(batch.weights, weights / weights.max() if is_normalized else weights, rtol=1e-6)


def test_sampler_that_draws_no_possible_sequence_is_an_error() -> None:
    ring = ring_of(np.zeros((20, 1), np.bool_), 12, full=False)
    for length, message in ((4, "at 0 of them"), (13, "13 consecutive")):
        with pytest.raises(BufferNotReady, match=message):
            sequences_of(Drawer(ring, [10, 11], ValidSampler()), ring, SequenceShape(length), 3)

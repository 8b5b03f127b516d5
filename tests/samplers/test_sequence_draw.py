"""Drawing sequences: every possible one with the same probability, none across the end of an episode or of the ring."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from chi_square import assert_frequencies
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sb3_compressed import BufferNotReady
from sb3_compressed.samplers import PrioritizedSampler
from sb3_compressed.samplers.sequence_draw import (
    EpisodeRing,
    Pad,
    SequenceDraw,
    SequenceShape,
    draw_sequences,
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
            draw_sequences(ring, shape, 4)
        return
    drawn = draw_sequences(ring, shape, 40 * len(expected))  # misses one with a probability of exp(-40)
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
    drawn = draw_sequences(ring, shape, 20)
    for steps, env, starts in zip(drawn_sequences(drawn), drawn.steps.envs.tolist(), drawn.episode_starts, strict=True):
        first = next(position for position, row in enumerate(steps) if row is not None)
        assert starts[first] == ((steps[first], env) in begins or first > 0)
        assert starts.sum() == starts[first]


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize(("stride", "is_prioritized"), [(1, False), (3, False), (1, True), (3, True)])
def test_sequences_are_drawn_in_proportion_to_the_priorities_of_their_anchors(
    pad: Pad, stride: int, is_prioritized: bool
) -> None:
    dones = np.zeros((60, 2), np.bool_)
    dones[[4, 5, 17, 40, 59], 0] = dones[[9, 30, 31, 52], 1] = True
    ring, shape = ring_of(dones, 25, full=True), SequenceShape(6, 2, stride, pad)
    expected = expected_sequences(ring, shape)
    sampler, priorities = None, np.ones(dones.size)
    if is_prioritized:
        sampler = PrioritizedSampler(alpha=1.0, epsilon=0.0, beta=1.0)
        sampler.bind(*dones.shape)
        sampler.add(np.arange(dones.size))
        priorities = np.random.default_rng(0).uniform(0.2, 1, dones.size)
        sampler.update(np.arange(dones.size), priorities)
    np.random.seed(0)  # noqa: NPY002
    draws = [draw_sequences(ring, shape, 64, sampler) for _ in range(400)]
    indices = np.concatenate([draw.indices for draw in draws])
    counts = np.array([np.count_nonzero(indices == index) for index in expected])
    assert counts.sum() == len(indices)
    assert_frequencies(counts, priorities[[*expected]])
    for draw in draws:
        drawn = priorities[draw.indices]
        assert (draw.weights is None) == (not is_prioritized)
        np.testing.assert_allclose(1 if draw.weights is None else draw.weights, drawn.min() / drawn, rtol=1e-6)


def test_only_long_episode_among_many_short_ones_is_found() -> None:
    dones = np.ones((50_000, 2), np.bool_)
    dones[30_000:30_049, 1] = False
    ring = ring_of(dones, 7, full=True)
    drawn = draw_sequences(ring, SequenceShape(50), 5)
    assert drawn.steps.rows.tolist() == [[*range(30_000, 30_050)]] * 5
    assert drawn.steps.envs.tolist() == [1] * 5
    with pytest.raises(BufferNotReady, match="no episode has 51 consecutive transitions"):
        draw_sequences(ring, SequenceShape(51), 5)


def test_empty_ring_has_no_sequences() -> None:
    ring = ring_of(np.zeros((5, 1), np.bool_), 0, full=False)
    with pytest.raises(BufferNotReady, match="empty"):
        draw_sequences(ring, SequenceShape(1, pad="end"), 1)


def test_unknown_padding_is_an_error() -> None:
    with pytest.raises(ValueError, match="got 'zeros'"):
        SequenceShape(4, pad="zeros")  # type: ignore[arg-type]

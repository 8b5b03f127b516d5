"""Frame layouts: cutting observations into frames, and finding out how."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_layout import (
    FrameLayout,
    FrameStackDetector,
    explicit_layout,
    layout_from_state,
    layout_to_state,
)


@pytest.mark.parametrize(
    ("item_shape", "n_frames", "message"),
    [
        ((4, 84, 84), 5, r"frame_stack=5 divides neither .* shape \(4, 84, 84\); pass the number of stacked frames"),
        ((5, 4, 5), 4, "divides neither the first nor the last axis"),
        ((), 2, r"shape \(\)"),
        ((0, 3), 2, "divides neither"),
        ((4,), 0, "positive int, got 0"),
        ((4,), True, "positive int, got True"),
        ((4,), "4", "positive int, got '4'"),
    ],
)
def test_an_impossible_number_of_frames_raises(item_shape: tuple[int, ...], n_frames: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explicit_layout(item_shape, n_frames)


def stack(film: NDArray[np.uint8], start: int, axis: Literal[0, -1], n_frames: int = 4) -> NDArray[np.uint8]:
    """Return the bytes of one observation made of consecutive frames, as the search takes them."""
    return np.concatenate(list(film[start : start + n_frames]), axis)[np.newaxis, ..., np.newaxis]


@pytest.fixture
def film() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (200, 3, 10, 3), dtype=np.uint8)


def test_a_coincidence_that_fits_every_layout_is_outvoted(film: NDArray[np.uint8]) -> None:
    """A screen that is all black until its last pixel lights up."""
    film[:5] = 0
    film[4, -1, -1, -1] = 255
    detector = FrameStackDetector((12, 10, 3))
    found = [detector.observe(stack(film, start, 0), stack(film, start + 1, 0)) for start in range(3)]
    assert found == [None, None, FrameLayout((12, 10, 3), 0, 4)]


def test_detection_ends_after_the_patience(film: NDArray[np.uint8]) -> None:
    detector = FrameStackDetector((12, 10, 3))
    for start in range(FrameStackDetector.PATIENCE):
        assert not detector.is_done
        assert detector.observe(stack(film, start, 0), stack(film, start + 100, 0)) is None
    assert detector.is_done
    for start in range(FrameStackDetector.EVIDENCE):
        assert detector.observe(stack(film, start, 0), stack(film, start + 1, 0)) is None


@pytest.mark.parametrize("n_envs", [1, 4, 8])
def test_a_dark_screen_on_which_something_enters_is_no_evidence_for_strips(n_envs: int) -> None:
    # Many screens that fit a wrong layout by coincidence, in every environment at once: nothing but the edge changes.
    rng = np.random.default_rng(0)
    frames = np.zeros((12, n_envs, 84, 84), np.uint8)
    frames[3:8, :, 40:44, 82:] = rng.integers(1, 256, (5, n_envs, 4, 2))
    frames[8:] = rng.integers(0, 256, (4, n_envs, 84, 84))
    detector = FrameStackDetector((4, 84, 84))
    layout = None
    for step in range(8):
        before, after = (frames[i : i + 4].swapaxes(0, 1)[..., np.newaxis] for i in (step, step + 1))
        layout = layout or detector.observe(before, after)
    assert layout == FrameLayout((4, 84, 84), 0, 4)


#: Images ``(*item_shape)`` with their vertical and their horizontal axis.
IMAGES: dict[tuple[int, ...], tuple[int, int]] = {
    (64, 64, 3): (0, 1),
    (3, 64, 64): (1, 2),
    (1, 64, 64): (1, 2),
    (64, 48, 1): (0, 1),
    (32, 64, 4): (0, 1),
    (64, 64): (0, 1),
    (36, 20): (0, 1),
    (64, 1, 3): (0, 0),
}


@pytest.mark.parametrize("pixels", [1, -1])
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("shape", IMAGES)
def test_a_scrolling_image_is_no_stack(shape: tuple[int, ...], direction: int, pixels: int) -> None:
    axis = IMAGES[shape][direction]
    n_steps = FrameStackDetector.PATIENCE + 1
    world = list(shape)
    world[axis] += n_steps
    picture = np.moveaxis(np.random.default_rng(0).integers(0, 256, world, np.uint8), axis, 0)
    begins = range(n_steps) if pixels > 0 else range(n_steps, 0, -1)
    views = [
        np.moveaxis(picture[begin : begin + shape[axis]], 0, axis)[np.newaxis, ..., np.newaxis] for begin in begins
    ]
    detector = FrameStackDetector(shape)
    assert [detector.observe(before, after) for before, after in pairwise(views)] == [None] * (n_steps - 1)
    assert detector.strided_stack is None


@pytest.mark.parametrize(
    ("shape", "axis", "n_frames"),
    [
        ((64, 48, 48), 0, 64),
        ((48, 48, 64), -1, 64),
        ((84, 84, 60), -1, 20),  # RGB
        ((60, 7, 7), 0, 20),
        ((40, 84, 84, 3), 0, 40),
        ((84, 84, 20, 3), 2, 20),
        ((32, 1, 84), 0, 32),  # of images with one line
        ((24, 3, 7), 0, 24),  # of several vectors
        ((640,), 0, 32),
    ],
)
@pytest.mark.parametrize("n_envs", [1, 4])
def test_a_long_stack_is_found_as_soon_as_others(shape: tuple[int, ...], axis: int, n_frames: int, n_envs: int) -> None:
    expected = FrameLayout(shape, axis, n_frames)
    n_channels = expected.channels
    film = np.random.default_rng(0).integers(0, 256, (n_envs, *shape), np.uint8)
    film = np.concatenate([np.moveaxis(film, axis + (axis >= 0), 0)] * 2)
    film[len(film) // 2 :] ^= 1
    items = [np.moveaxis(film[step * n_channels :][: shape[axis]], 0, axis + (axis >= 0)) for step in range(4)]
    detector = FrameStackDetector(shape)
    pairs = pairwise(np.ascontiguousarray(each)[..., np.newaxis] for each in items)
    assert [detector.observe(*pair) for pair in pairs] == [None, None, expected]


def test_vectors_of_numbers_may_be_a_long_stack_where_bytes_may_be_an_image() -> None:
    film = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    items = [film[begin : begin + 20][np.newaxis, ..., np.newaxis].view(np.uint8) for begin in range(4)]
    detector = FrameStackDetector((20, 5), 4)
    assert [detector.observe(*pair) for pair in pairwise(items)] == [None, None, FrameLayout((20, 5), 0, 20)]


def test_a_short_stack_is_found_while_its_images_scroll() -> None:
    """Each column of the stacked images passes for a frame then, too."""
    picture = np.random.default_rng(0).integers(0, 256, (64, 80, 3), np.uint8)
    views = [picture[:, begin : begin + 64] for begin in range(8)]
    stacks = [np.concatenate(views[i : i + 4], -1)[np.newaxis, ..., np.newaxis] for i in range(4)]
    detector = FrameStackDetector((64, 64, 12))
    found = [detector.observe(*pair) for pair in pairwise(stacks)]
    assert found == [None, None, FrameLayout((64, 64, 12), -1, 4)]


def test_scalars_are_no_frames_of_a_long_stack() -> None:
    """A reference to each would take as much as the whole vector."""
    history = np.random.default_rng(0).integers(0, 256, 50, np.uint8)
    items = [history[begin : begin + 24][np.newaxis, :, np.newaxis] for begin in range(20)]
    detector = FrameStackDetector((24,))
    assert [detector.observe(*pair) for pair in pairwise(items)] == [None] * 19
    assert detector.strided_stack is None


@pytest.mark.parametrize("n_frames", [4, 20, 100])  # and more than are detected
def test_a_stored_layout_is_restored(n_frames: int) -> None:
    layout = explicit_layout((n_frames, 84, 84), n_frames)
    state = layout_to_state(layout)
    assert state is not None
    assert layout_from_state((n_frames, 84, 84), *state) == layout


@pytest.mark.parametrize(("axis", "n_frames"), [(1, 2), (-1, 12)])
def test_a_stored_layout_of_other_items_raises(axis: int, n_frames: int) -> None:
    with pytest.raises(ValueError, match=rf"shape \(12, 10, 3\) are not {n_frames} frames along axis {axis}"):
        layout_from_state((12, 10, 3), axis, n_frames, 0)

"""Frame layouts: cutting observations into frames, and finding out how."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_layout import FrameLayout, FrameStackDetector, explicit_layout, layout_from_state


@pytest.mark.parametrize(
    ("item_shape", "n_frames", "axis", "frame_shape"),
    [
        ((4, 84, 84), 4, 0, (1, 84, 84)),
        ((84, 84, 4), 4, -1, (84, 84, 1)),
        ((12, 84, 84), 4, 0, (3, 84, 84)),
        ((84, 84, 12), 4, -1, (84, 84, 3)),
        ((84, 84, 12), np.int64(2), -1, (84, 84, 6)),
        ((28,), 4, 0, (7,)),
        ((4, 7), 4, 0, (1, 7)),
        ((7, 4), 4, -1, (7, 1)),
        ((4, 4), 4, 0, (1, 4)),
        ((4, 0, 5), 4, 0, (1, 0, 5)),
        ((8, 6, 9), 3, -1, (8, 6, 3)),
    ],
)
def test_the_shorter_of_the_fitting_axes_is_stacked(
    item_shape: tuple[int, ...], n_frames: int, axis: int, frame_shape: tuple[int, ...]
) -> None:
    layout = explicit_layout(item_shape, n_frames)
    assert layout is not None
    assert (layout.axis, layout.n_frames, layout.frame_shape) == (axis, n_frames, frame_shape)


@pytest.mark.parametrize("item_shape", [(4, 84, 84), (7,), ()])
def test_one_frame_is_not_a_stack(item_shape: tuple[int, ...]) -> None:
    assert explicit_layout(item_shape, 1) is None


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


@pytest.mark.parametrize(
    ("layout", "frames"),
    [
        (FrameLayout((4, 3), 0, 2), [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]),
        (FrameLayout((3, 4), -1, 2), [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]),
        (FrameLayout((12,), 0, 3), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
    ],
)
def test_split_returns_a_view_of_the_frames_in_order(layout: FrameLayout, frames: list[Any]) -> None:
    items = np.arange(12).reshape(1, *layout.item_shape)
    split = layout.split(items)
    assert split.tolist() == [frames]
    assert split.shape == (1, layout.n_frames, *layout.frame_shape)
    assert np.shares_memory(split, items)


def stack(film: NDArray[np.uint8], start: int, axis: Literal[0, -1], n_frames: int = 4) -> NDArray[np.uint8]:
    """Return the bytes of one observation made of consecutive frames, as the search takes them."""
    return np.concatenate(list(film[start : start + n_frames]), axis)[np.newaxis, ..., np.newaxis]


@pytest.fixture
def film() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (200, 3, 10, 3), dtype=np.uint8)


@pytest.mark.parametrize("axis", [0, -1])
def test_a_layout_is_detected_once_it_is_ahead_by_the_evidence(film: NDArray[np.uint8], axis: Literal[0, -1]) -> None:
    layout = FrameLayout(np.concatenate(list(film[:4]), axis).shape, axis, 4)
    detector = FrameStackDetector(layout.item_shape)
    for start in range(FrameStackDetector.EVIDENCE - 1):
        assert detector.observe(stack(film, start, axis), stack(film, start + 1, axis)) is None
    assert detector.observe(stack(film, 50, axis), stack(film, 90, axis)) is None  # an episode's end: two behind now
    assert detector.observe(stack(film, 50, axis), stack(film, 51, axis)) is None
    assert detector.observe(stack(film, 51, axis), stack(film, 52, axis)) == layout


def test_equal_observations_are_no_evidence(film: NDArray[np.uint8]) -> None:
    detector = FrameStackDetector((12, 10, 3))
    black = np.zeros((5, 12, 10, 3, 1), np.uint8)
    assert detector.observe(black, black) is None
    assert (detector.n_steps, detector.is_done) == (0, False)


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


@pytest.mark.parametrize("item_shape", [(), (1,), (0, 4), (7, 0), (17,), (1, 1), (23, 5, 19)])
def test_detection_is_done_at_once_where_no_layout_is_possible(item_shape: tuple[int, ...]) -> None:
    assert FrameStackDetector(item_shape).is_done


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


@pytest.mark.parametrize(("axis", "n_frames"), [(0, 4), (0, 12), (-1, 3)])
def test_a_stored_layout_is_restored(axis: int, n_frames: int) -> None:
    layout = layout_from_state((12, 10, 3), axis, n_frames)
    assert (layout.axis, layout.n_frames) == (axis, n_frames)


@pytest.mark.parametrize(("axis", "n_frames"), [(1, 2), (-1, 12)])
def test_a_stored_layout_of_other_items_raises(axis: int, n_frames: int) -> None:
    with pytest.raises(ValueError, match=rf"shape \(12, 10, 3\) are not {n_frames} frames along axis {axis}"):
        layout_from_state((12, 10, 3), axis, n_frames)

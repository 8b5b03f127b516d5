"""``PictureLayout``: which axes of a frame are channels, lines and pixels."""

from __future__ import annotations

import pytest

from sb3_compressed.codecs.picture_layout import PictureLayout


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((), PictureLayout(1, 1, 1, 1)),
        ((7,), PictureLayout(1, 1, 1, 7)),
        ((5, 7), PictureLayout(1, 1, 5, 7)),
        ((3, 5, 7), PictureLayout(1, 3, 5, 7)),
        ((5, 7, 3), PictureLayout(1, 3, 5, 7, is_channel_last=True)),
        ((3, 3, 3), PictureLayout(1, 3, 3, 3)),
        ((2, 4, 3, 5, 7), PictureLayout(8, 3, 5, 7)),
        ((2, 4, 5, 7, 3), PictureLayout(8, 3, 5, 7, is_channel_last=True)),
        ((0, 5, 7), PictureLayout(1, 0, 5, 7)),
    ],
)
def test_the_smaller_of_the_first_and_the_last_axis_counts_channels(
    shape: tuple[int, ...], layout: PictureLayout
) -> None:
    assert PictureLayout.of(shape, 1) == layout


@pytest.mark.parametrize(
    ("shape", "itemsize", "numbers", "transposed"),
    [
        ((3, 5, 7), 1, [3, 5, 7, 1, 1], [3, 5, 7, 3, 1]),
        ((5, 7, 3), 1, [3, 5, 7, 3, 1], [3, 5, 7, 1, 1]),
        ((4, 5, 7), 1, [4, 5, 7, 1, 0], [4, 5, 7, 4, 0]),
        ((12, 20, 20), 1, [12, 20, 20, 1, 1], [12, 20, 20, 12, 1]),
        ((5, 7), 2, [2, 5, 7, 2, 0], [2, 5, 7, 2, 0]),
        ((3, 5, 7), 2, [6, 5, 7, 2, 0], [6, 5, 7, 6, 0]),
        ((2, 5, 7, 3), 4, [24, 5, 7, 12, 0], [24, 5, 7, 4, 0]),
    ],
)
def test_numbers_for_kernels(shape: tuple[int, ...], itemsize: int, numbers: list[int], transposed: list[int]) -> None:
    layout = PictureLayout.of(shape, itemsize)
    assert layout.numbers.tolist() == numbers
    assert layout.transposed_numbers.tolist() == transposed

"""``FrameLayout``: how observations are divided into frames, chosen by the user or detected from data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FrameLayout",
    "FrameStack",
    "FrameStackDetector",
    "explicit_layout",
    "layout_from_state",
    "possible_layouts",
    "validate_n_frames",
]

FrameStack = int | Literal["auto"] | None
"""The user's choice of frame stacking: detected from the data, a number of frames, or none."""


@dataclass(frozen=True)
class FrameLayout:
    """A stack of equal frames along one axis of an item, the oldest first.

    >>> FrameLayout((84, 84, 12), axis=-1, n_frames=4).frame_shape  # four RGB frames, channel-last
    (84, 84, 3)

    :param item_shape: shape of one observation
    :param axis: the axis that holds the frames: 0 (channel-first, vectors) or -1 (channel-last)
    :param n_frames: number of frames; it divides the length of the axis
    """

    item_shape: tuple[int, ...]
    axis: Literal[0, -1]
    n_frames: int

    @property
    def length(self) -> int:
        """Length of the axis."""
        return self.item_shape[self.axis]

    @property
    def channels(self) -> int:
        """Length of one frame along the axis."""
        return self.length // self.n_frames

    @cached_property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame."""
        shape = list(self.item_shape)
        shape[self.axis] = self.channels
        return tuple(shape)

    def split(self, items: NDArray[Any]) -> NDArray[Any]:
        """View items ``(n, *item_shape)`` as frames ``(n, n_frames, *frame_shape)``."""
        if self.axis == 0:
            return items.reshape(len(items), self.n_frames, *self.frame_shape)
        stacked = items.reshape(*items.shape[:-1], self.n_frames, self.channels)
        return np.moveaxis(stacked, -2, 1)


def layout_to_state(layout: FrameLayout | None) -> list[int] | None:
    """Return a layout for JSON."""
    return None if layout is None else [layout.axis, layout.n_frames]


def layout_from_state(item_shape: tuple[int, ...], axis: int, n_frames: int) -> FrameLayout:
    """Return the layout of which :func:`layout_to_state` returned these numbers.

    :raises ValueError: if items of this shape cannot have it
    """
    for layout in (explicit_layout(item_shape, n_frames), *possible_layouts(item_shape)):
        if layout is not None and (layout.axis, layout.n_frames) == (axis, n_frames):
            return layout
    raise ValueError(f"items of shape {item_shape} are not {n_frames} frames along axis {axis}")


def explicit_layout(item_shape: tuple[int, ...], n_frames: int) -> FrameLayout | None:
    """Return the layout of a stack with a number of frames that the user chose; ``None`` for one frame.

    Of the first and the last axis, it is the shorter one that ``n_frames`` divides: the channels of an image are
    fewer than its rows and columns.

    :raises ValueError: if ``n_frames`` divides neither
    """
    validate_n_frames(n_frames)
    if n_frames == 1:
        return None
    axes: list[Literal[0, -1]] = [0, -1]
    fitting = [axis for axis in axes if item_shape and item_shape[axis] and item_shape[axis] % n_frames == 0]
    if not fitting:
        raise ValueError(
            f"frame_stack={n_frames} divides neither the first nor the last axis of observations of shape "
            f"{item_shape}; pass the number of stacked frames, or 'auto', or None"
        )
    return FrameLayout(item_shape, min(fitting, key=lambda axis: item_shape[axis]), int(n_frames))


def validate_n_frames(n_frames: Any) -> None:
    """Raise if this cannot be the number of frames of any stack."""
    if isinstance(n_frames, bool) or not isinstance(n_frames, int | np.integer) or n_frames < 1:
        raise ValueError(f"frame_stack must be 'auto', None or a positive int, got {n_frames!r}")


class FrameStackDetector:
    """Detects the layout of a frame stack from consecutive observations, or that there is none.

    At each step at which observations change, each possible layout either explains all the new ones (their older frames
    are the newer ones of those before) or does not. A layout is chosen once it has explained :data:`EVIDENCE` more
    steps than it failed to, and more than any other. A step counts once for all environments, since a coincidence in
    one, as on a dark screen, is likely in the others. After :data:`PATIENCE` steps the best one with enough evidence is
    chosen, otherwise none. Episode ends are failures for all and are few. A wrong result costs bytes, never
    correctness.
    """

    #: Number of steps by which a layout must be ahead.
    EVIDENCE = 3
    #: Steps with changes after which detection ends.
    PATIENCE = 64
    #: More frames than in practice. Without a limit, each row of a scrolling image would pass for a frame.
    MAX_FRAMES = 16

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        self.n_steps = 0
        self.candidates = list(possible_layouts(item_shape, self.MAX_FRAMES))
        self._score: Counter[FrameLayout] = Counter()

    @property
    def is_done(self) -> bool:
        """Whether no layout can be found any more."""
        return not self.candidates or self.n_steps >= self.PATIENCE

    def observe(self, before: NDArray[np.uint8], after: NDArray[np.uint8]) -> FrameLayout | None:
        """Update the scores with observations and the ones that followed them.

        :param before: bytes of observations, ``(n_envs, *item_shape, itemsize)``
        :param after: bytes of the observations that came next, of the same shape
        :return: the layout, once it is detected
        """
        changed = [(old, new) for old, new in zip(before, after, strict=True) if not np.array_equal(old, new)]
        if self.is_done or not changed:
            return None
        self.n_steps += 1
        for layout in self.candidates:
            self._score[layout] += 1 if all(_follows(layout, old, new) for old, new in changed) else -1
        # Ties go to the shorter axis, then to smaller frames.
        ranking = sorted(self.candidates, key=lambda layout: (-self._score[layout], layout.length, -layout.n_frames))
        best, *others = ranking
        is_ahead = not others or self._score[best] > self._score[others[0]]
        return best if self._score[best] >= self.EVIDENCE and (is_ahead or self.is_done) else None

    def explains(self, layout: FrameLayout) -> bool:
        """Return whether a layout has explained more steps than it failed to."""
        return self._score[layout] > 0


def possible_layouts(
    item_shape: tuple[int, ...], max_frames: int = FrameStackDetector.MAX_FRAMES
) -> Iterator[FrameLayout]:
    """Yield every layout of such items."""
    axes: tuple[Literal[0, -1], ...] = (0, -1) if len(item_shape) > 1 else (0,) if item_shape else ()
    for axis in axes if math.prod(item_shape) else ():
        for n_frames in range(2, max_frames + 1):
            if item_shape[axis] % n_frames == 0:
                yield FrameLayout(item_shape, axis, n_frames)


def _follows(layout: FrameLayout, old: NDArray[np.uint8], new: NDArray[np.uint8]) -> bool:
    """Return whether ``new`` is ``old`` without its oldest frame and with one added, both with a byte axis."""
    axis = 0 if layout.axis == 0 else -2  # the last axis holds the bytes
    old, new = np.moveaxis(old, axis, 0), np.moveaxis(new, axis, 0)
    return np.array_equal(old[layout.channels :], new[: -layout.channels])

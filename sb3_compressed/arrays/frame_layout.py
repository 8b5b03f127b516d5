"""``FrameLayout``: how observations are divided into frames, chosen by the user or detected from data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.slot_format import OFFSET_NBYTES

__all__ = [
    "FrameLayout",
    "FrameStack",
    "FrameStackDetector",
    "explicit_layout",
    "follows",
    "layout_from_state",
    "likely_n_frames",
    "possible_layouts",
    "validate_n_frames",
]

FrameStack = int | Literal["auto"] | None
"""The user's choice of frame stacking: detected from the data, a number of frames, or none."""


@dataclass(frozen=True)
class FrameLayout:
    """A stack of equal frames along one axis of an item.

    >>> FrameLayout((84, 84, 12), axis=-1, n_frames=4).frame_shape  # four RGB frames, channel-last
    (84, 84, 3)

    :param item_shape: shape of one observation
    :param axis: the axis that holds the frames: 0 (channel-first, vectors), -1 (channel-last), or one in between
    :param n_frames: number of frames; it divides the length of the axis
    :param newest_first: whether the newest frame is the first one of a stack, not the last one. It matters only for
        which frames of an observation are new: slots have the payloads of all frames in the order of the axis
    """

    item_shape: tuple[int, ...]
    axis: int
    n_frames: int
    newest_first: bool = False

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

    @property
    def piece(self) -> int:
        """Contiguous elements of one frame in an item; those of the other frames follow."""
        return self.channels * math.prod(self.item_shape[self.axis :][1:])

    def split(self, items: NDArray[Any]) -> NDArray[Any]:
        """View items ``(n, *item_shape)`` as frames ``(n, n_frames, *frame_shape)``."""
        axis = 1 + self.axis % len(self.item_shape)
        stacked = items.reshape(*items.shape[:axis], self.n_frames, self.channels, *items.shape[axis + 1 :])
        return np.moveaxis(stacked, axis, 1)


def layout_to_state(layout: FrameLayout | None) -> list[int] | None:
    """Return a layout for JSON: the axis of the frames, their number, and whether the newest is the first."""
    return None if layout is None else [layout.axis, layout.n_frames, int(layout.newest_first)]


def layout_from_state(item_shape: tuple[int, ...], axis: int, n_frames: int, newest_first: int) -> FrameLayout:
    """Return the layout of which :func:`layout_to_state` returned these numbers.

    :raises ValueError: if items of this shape cannot have it
    """
    layouts = [*possible_layouts(item_shape)]
    if not any(layout.n_frames == n_frames for layout in layouts):  # of more frames than are detected
        layouts = [layout for layout in [explicit_layout(item_shape, n_frames)] if layout is not None]
    for layout in layouts:
        if (layout.axis, layout.n_frames) == (axis, n_frames):
            return replace(layout, newest_first=bool(newest_first))
    raise ValueError(f"items of shape {item_shape} are not {n_frames} frames along axis {axis}")


def explicit_layout(item_shape: tuple[int, ...], n_frames: int) -> FrameLayout | None:
    """Return the layout of a stack with a number of frames that the user chose; ``None`` for one frame.

    Of the first and the last axis, and of those in between that have this length, it is the shortest one that
    ``n_frames`` divides: the channels of an image are fewer than its rows and columns.

    :raises ValueError: if ``n_frames`` divides neither
    """
    validate_n_frames(n_frames)
    if n_frames == 1:
        return None
    # A stack of images may have an axis of its own.
    inner = [axis for axis in range(1, len(item_shape) - 1) if len(item_shape) > 3 and item_shape[axis] == n_frames]
    fitting = [axis for axis in (0, -1, *inner) if item_shape and item_shape[axis] and item_shape[axis] % n_frames == 0]
    if not fitting:
        raise ValueError(
            f"frame_stack={n_frames} divides neither the first nor the last axis of observations of shape "
            f"{item_shape}; pass the number of stacked frames, or 'auto', or None"
        )
    return FrameLayout(item_shape, min(fitting, key=lambda axis: item_shape[axis]), int(n_frames))


def likely_n_frames(item_shape: tuple[int, ...]) -> int:
    """Return of how many frames observations probably consist, judging by their shape alone.

    >>> [likely_n_frames(shape) for shape in [(4, 84, 84), (84, 84, 12), (210, 160, 3), (17,)]]
    [4, 4, 1, 1]
    """
    if len(item_shape) != 3:
        return 1
    axis = 0 if item_shape[0] < item_shape[-1] else -1
    length, others = item_shape[axis], item_shape[1:] if axis == 0 else item_shape[:-1]
    if not 0 < length < min(*others, FrameStackDetector.FEW_FRAMES + 1):
        return 1
    return length // 3 if length % 3 == 0 else length  # of colors or of one channel


def validate_n_frames(n_frames: Any) -> None:
    """Raise if this cannot be the number of frames of any stack."""
    if isinstance(n_frames, bool) or not isinstance(n_frames, int | np.integer) or n_frames < 1:
        raise ValueError(f"frame_stack must be 'auto', None or a positive int, got {n_frames!r}")


class FrameStackDetector:
    """Detects the layout of a frame stack from consecutive observations, or that there is none.

    At each step at which observations change, each possible layout either explains all the new ones (their older frames
    are the newer ones of those before) or does not. Stacks may have the newest frame last or first. A layout is chosen
    once it has explained :data:`EVIDENCE` more steps than it failed to, and more than any other. A step counts once for
    all environments, since a coincidence in one, as on a dark screen, is likely in the others. After :data:`PATIENCE`
    steps the best one with enough evidence is chosen, otherwise none. Episode ends are failures for all and are few. A
    wrong result costs bytes, never correctness.

    An image that scrolls is no stack, though its rows pass for frames. So the layouts of long stacks, of more than
    :data:`FEW_FRAMES` frames, are considered only where frames cannot be rows; see :func:`may_be_long_stack`.

    :param item_shape: shape of one observation
    :param itemsize: bytes of one of its values
    """

    #: Number of steps by which a layout must be ahead.
    EVIDENCE = 3
    #: Steps with changes after which detection ends.
    PATIENCE = 64
    #: The most frames of a stack, and of one that is not long.
    MAX_FRAMES, FEW_FRAMES = 64, 16
    #: Stacks of every second frame, every third, ..., up to this one, are recognized, for a warning.
    MAX_LAG = 4
    #: The most channels and frames of such stacks.
    MAX_CHANNELS, MAX_STRIDED_FRAMES = 4, 8

    def __init__(self, item_shape: tuple[int, ...], itemsize: int = 1) -> None:
        self.n_steps = 0
        self.candidates = [
            layout
            for layout in possible_layouts(item_shape, self.MAX_FRAMES)
            if not self._is_long(layout) or may_be_long_stack(layout, itemsize)
        ]
        self._score: Counter[FrameLayout] = Counter()
        #: Observations before the last ones, and the scores of layouts that would explain these by them.
        self._older: list[NDArray[np.uint8]] = []
        self._lag_score: Counter[tuple[FrameLayout, int]] = Counter()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_older", "_lag_score")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _older=[], _lag_score=Counter())

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
            self._score[layout] += 1 if all(follows(layout, old, new) for old, new in changed) else -1
        if max(self._score.values()) <= 0:
            self._compare_with_older(before, after)
        # Ties go to the shorter axis, then to stacks that are not long, then to smaller frames.
        best, *others = sorted(
            self.candidates,
            key=lambda layout: (-self._score[layout], layout.length, self._is_long(layout), -layout.n_frames),
        )
        is_ahead = not any(
            self._score[other] == self._score[best]
            for other in others
            # Few stacks are long: the one of fewer frames need not wait until it is ahead of them.
            if self._is_long(best) or not self._is_long(other)
        )
        return best if self._score[best] >= self.EVIDENCE and (is_ahead or self.is_done) else None

    def _is_long(self, layout: FrameLayout) -> bool:
        return layout.n_frames > self.FEW_FRAMES

    def _compare_with_older(self, before: NDArray[np.uint8], after: NDArray[np.uint8]) -> None:
        self._older = [earlier for earlier in self._older if len(earlier) == len(after)]  # the same environments
        for layout in self.candidates:
            # Strips of a scrolling image would pass for more and larger frames, and where consecutive ones are no
            # candidates, nothing shows that frames are not consecutive.
            if (
                layout.channels > self.MAX_CHANNELS
                or layout.n_frames > self.MAX_STRIDED_FRAMES
                or replace(layout, n_frames=layout.length) not in self.candidates
            ):
                continue
            for lag, earlier in enumerate(self._older, 2):
                explains = all(follows(layout, old, new) for old, new in zip(earlier, after, strict=True))
                self._lag_score[layout, lag] += 1 if explains else -1
        self._older = [before.copy(), *self._older][: self.MAX_LAG - 1]

    @property
    def strided_stack(self) -> tuple[FrameLayout, int] | None:
        """A layout of every second frame, or third, ..., and that number; ``None`` if none was found."""
        for (layout, lag), score in self._lag_score.most_common(1):
            if score >= self.EVIDENCE:
                return layout, lag
        return None

    def explains(self, layout: FrameLayout) -> bool:
        """Return whether a layout has explained more steps than it failed to."""
        return self._score[layout] > 0


def may_be_long_stack(layout: FrameLayout, itemsize: int) -> bool:
    """Return whether many frames are worth storing each once, and cannot be rows or columns of one image instead.

    :param itemsize: bytes of one value
    """
    shape, n_axes = layout.item_shape, len(layout.item_shape)
    if math.prod(layout.frame_shape) * itemsize <= OFFSET_NBYTES:
        return False
    if n_axes < 3:  # images are bytes; numbers are vectors
        return n_axes == 1 or itemsize > 1
    axis = layout.axis % n_axes
    others = [length > FrameStackDetector.MAX_CHANNELS for length in shape[:axis] + shape[axis + 1 :]]
    if sum(others) > 1:  # height and width
        return True
    # Rows of an image are at the end that its channels are not at.
    return axis in (0, n_axes - 1) and others[-1 if axis == 0 else 0]


def possible_layouts(
    item_shape: tuple[int, ...], max_frames: int = FrameStackDetector.MAX_FRAMES
) -> Iterator[FrameLayout]:
    """Yield every layout of such items."""
    n_axes = len(item_shape)
    axes = (0, -1) if n_axes > 1 else (0,) if n_axes else ()
    layouts = [(axis, n_frames) for axis in axes for n_frames in range(2, max_frames + 1)]
    if n_axes > 3:  # stacks of whole images, in an axis of their own
        layouts += [(axis, item_shape[axis]) for axis in range(1, n_axes - 1) if 1 < item_shape[axis] <= max_frames]
    for axis, n_frames in layouts if math.prod(item_shape) else ():
        if item_shape[axis] % n_frames == 0:
            yield FrameLayout(item_shape, axis, n_frames)
            yield FrameLayout(item_shape, axis, n_frames, newest_first=True)


def follows(layout: FrameLayout, old: NDArray[np.uint8], new: NDArray[np.uint8]) -> bool:
    """Return whether ``new`` is ``old`` without its oldest frame and with one added, both with a byte axis."""
    axis = layout.axis % len(layout.item_shape)  # the last axis holds the bytes
    old, new = np.moveaxis(old, axis, 0), np.moveaxis(new, axis, 0)
    if layout.newest_first:
        old, new = new, old
    older, newer = old[layout.channels :], new[: -layout.channels]
    return np.array_equal(older[0], newer[0]) and np.array_equal(older, newer)  # mostly, the first part differs

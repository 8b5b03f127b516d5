"""``FrameDeduplicator``: appends rows of observations that continue each other; each repeated frame is stored once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.codec_training import CodecTrainer
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.slot_log import SlotLog
from sb3_compressed.codecs.codec import UINT8

__all__ = ["FrameDeduplicator"]


class FrameDeduplicator:
    """Appends rows of observations, one of each environment, that follow each other.

    A stacked observation at time t+1 repeats all but one frame of the one at t, and ``next_obs`` at t is ``obs`` at
    t+1 except at the end of an episode. So this keeps the last row of every environment, and references to its slots:
    an observation that continues the last one needs one new payload, an equal one none. Episode ends need no ``done``:
    they simply do not match.

    :param encoder: encodes what is new
    :param trainer: trains its codec
    :param log: what slots are appended to
    :ivar last: references to the slots of the last row, ``(n_envs,)``, in a table that keeps them
    """

    def __init__(self, encoder: FrameEncoder, trainer: CodecTrainer, log: SlotLog) -> None:
        self._encoder, self._trainer, self._log = encoder, trainer, log
        self.last: NDArray[np.int64] | None = None
        self._previous: PreviousRow | None = None  # its observations

    def append(self, rows: Sequence[NDArray[Any]], n_steps: int = 1) -> NDArray[np.int64]:
        """Append the next rows; see :meth:`.ObservationStream.append`.

        :param rows: one or two, ``(n_steps * n_envs, *item_shape)``
        :param n_steps: more than 1 for two rows only
        """
        first, encoder = rows[0], self._encoder
        previous = self._previous
        shape = first.shape if n_steps == 1 else (len(first) // n_steps, *first.shape[1:])
        if (
            previous is None
            or shape != previous.shape
            or encoder.layout is not previous.layout
            or (first.strides != previous.strides and rows[-1].strides != previous.strides)
        ):
            previous = self._new_previous_row(first[: shape[0]])
        last = self.last if previous.is_valid else None
        n_new, frames = previous.take_new_frames(rows, n_steps)  # from here on there is no previous row
        if not len(frames) and last is not None:  # the rows are the previous one
            previous.is_valid = True
            return np.tile(last, (len(n_new), 1))
        payloads = encoder.codec.encode_batch(frames)
        references = self._log.append(last, n_new, payloads, encoder)
        if last is None:
            self.continue_from(references[-1])
        else:
            last[...] = references[-1]
        previous.is_valid = True  # only now: whatever interrupts this, no row is valid without its payloads
        if encoder.is_trainable:
            self._trainer.observe(encoder, frames, payloads)
        return references

    def continue_from(self, references: NDArray[np.int64]) -> None:
        """Continue a row.

        :param references: references to its slots, ``(n_envs,)``
        """
        if self.last is not None and self.last.shape == references.shape:
            self.last[...] = references
        else:
            last = self._log.new_table(references.shape)  # which keeps the slots that it refers to
            last[...] = references
            self.last = last  # only now, whatever interrupts this

    def forget(self) -> None:
        """Store the next row in full."""
        # In this order, whatever interrupts it: no row is valid without slots.
        self._previous = None
        self.last = None

    def previous_items(self) -> NDArray[Any] | None:
        """Return the observations of the last row, ``None`` if there is none."""
        if self._previous is not None and self._previous.is_valid:
            return self._previous.items
        if self.last is None:
            return None
        items: NDArray[Any] = self._log.read(self.last, self._encoder, self._encoder.dtype)
        return items

    def _new_previous_row(self, items: NDArray[Any]) -> PreviousRow:
        """Take the previous row over into the memory layout of ``items``."""
        before = self.previous_items()
        self._previous = PreviousRow(items, self._encoder.layout)
        if before is not None and before.shape == items.shape:
            self._previous.items[...] = before
            self._previous.is_valid = True
        return self._previous


class PreviousRow:
    """A copy of the last row of observations, in the memory layout in which rows arrive.

    Environments that stack frames return channel-last memory, as a transposed view. Frames are compared and extracted
    in place: making observations contiguous first would take longer than both.

    :param items: a row ``(n_envs, *item_shape)`` in this layout; it is not copied, so the row is not valid yet
    :param layout: how items are divided into frames; ``None`` if they are not
    """

    def __init__(self, items: NDArray[Any], layout: FrameLayout | None) -> None:
        # On first use, since importing numba takes long.
        from sb3_compressed.arrays.frame_dedup_kernels import PREVIOUS_ROW, masks_of_older_frames, take_new_frames

        self._take_new_frames = take_new_frames
        self.is_valid = False
        self.shape, self.strides, self.layout = items.shape, items.strides, layout
        self._dtype = items.dtype
        n_frames = 1 if layout is None else layout.n_frames
        n_envs, item_nbytes = len(items), items.itemsize * math.prod(items.shape[1:])
        # Frames are contiguous, or interleaved pixel by pixel as ``VecFrameStack`` stacks them.
        piece, axes = max(item_nbytes // n_frames, 1), tuple(range(items.ndim))
        frame_axes = axes
        if layout is None:  # any order of axes that is contiguous
            by_stride = (0, *sorted(range(1, items.ndim), key=lambda axis: -items.strides[axis]))
            if items.transpose(by_stride).flags.c_contiguous:
                axes = frame_axes = by_stride
        elif layout.axis == 0:
            last = (0, *range(2, items.ndim), 1)
            if items.transpose(last).flags.c_contiguous and not items.flags.c_contiguous:
                piece, axes = layout.channels * items.itemsize, last
                frame_axes = axes if layout.channels > 1 else frame_axes
        else:
            piece = layout.piece * items.itemsize
        self._n_frames, self._axes, self._frame_axes = n_frames, axes, frame_axes
        self._is_contiguous = items.transpose(axes).flags.c_contiguous
        self.items = _empty_in_order(items.shape, items.dtype, axes)
        self._masks = masks = masks_of_older_frames(n_frames, piece)
        newest_first = layout is not None and layout.newest_first
        # The kernel reads and writes at the addresses of these two arrays.
        row = self.items.ctypes.data, n_envs, item_nbytes, n_frames, piece, newest_first
        self._record = np.array([(*row, masks.ctypes.data, masks.shape[1])], PREVIOUS_ROW)
        self._n_new = np.empty((2, n_envs), dtype=np.int64)
        self._frames, self._frame_rows = self._new_frames(2)

    def take_new_frames(self, rows: Sequence[NDArray[Any]], n_steps: int = 1) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Extract the new frames of one row or two, and copy the last row, which is not valid yet.

        :param rows: ``(n_steps * n_envs, *item_shape)`` each; those with other strides than this one are copied
        :param n_steps: steps that follow each other; more than 1 for two rows only
        :return: the number of new frames of each observation, ``(n_rows * n_steps, n_envs)``, and these frames, those
            of an environment together, in the order of the stack, ``(n, *frame_shape)``; the memory of both is reused
        """
        n_rows = len(rows) * n_steps
        if n_steps == 1:
            n_new, frames, frame_rows = self._n_new, self._frames, self._frame_rows
        else:
            n_new = np.empty((n_rows, self.shape[0]), dtype=np.int64)
            frames, frame_rows = self._new_frames(n_rows)
        was_valid, self.is_valid = self.is_valid, False
        views = []  # of the rows as bytes ``(n_envs * item_nbytes,)``, in the order of this one
        for items in rows:
            if (
                items.shape == self.shape
                and items.strides == self.strides
                and items.dtype == self._dtype == UINT8
                and self._is_contiguous
                and n_steps == 1
            ):
                views.append(items.ravel("K"))
                continue
            # The kernel reads and writes at addresses, so rows of another dtype with equal strides must end here.
            if items.shape[1:] != self.shape[1:] or len(items) != n_steps * self.shape[0] or items.dtype != self._dtype:
                raise ValueError(
                    f"{n_steps} rows must be of shape {self.shape} and dtype {self._dtype}, got {items.shape} and "
                    f"{items.dtype}"
                )
            views.append(items.transpose(self._axes).ravel().view(UINT8))  # the axis of steps may lie anywhere
        n_frames = self._take_new_frames(n_rows, views[0], views[-1], self._record, was_valid, n_new, frame_rows)
        return n_new[:n_rows], frames[:n_frames]

    def _new_frames(self, n_rows: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Return memory for the frames of so many rows, and the same memory as rows of bytes."""
        frame_shape = self.shape[1:] if self.layout is None else self.layout.frame_shape
        frames = _empty_in_order((n_rows * self.shape[0] * self._n_frames, *frame_shape), self._dtype, self._frame_axes)
        frame_rows = frames.transpose(self._frame_axes).reshape(len(frames), math.prod(frame_shape))
        return frames, frame_rows.view(UINT8)


def _empty_in_order(shape: tuple[int, ...], dtype: np.dtype[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Return an uninitialized array whose axes lie in memory in the order of ``axes``."""
    return np.empty([shape[axis] for axis in axes], dtype=dtype).transpose(np.argsort(axes))

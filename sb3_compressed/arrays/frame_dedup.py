"""Frame sharing: what an observation repeats of the one before it is stored once and referred to."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.codec_training import CodecTrainer
from sb3_compressed.arrays.frame_layout import FrameLayout, FrameStackDetector, layout_from_state
from sb3_compressed.arrays.slots import Slot, SlotCoder, slot_n_frames
from sb3_compressed.codecs import Codec, TrainableCodec

__all__ = ["FrameDeduplicator"]


class FrameDeduplicator:
    """Encodes rows of observations, one for each environment, and remembers the last row.

    A stacked observation at time t+1 repeats all but one frame of the one at t, and ``next_obs`` at t is ``obs`` at
    t+1 except where an episode ends. So the frames of the last row written are remembered for every environment,
    together with their payloads: a new observation that continues the remembered one needs one new payload, an
    equal one needs none, and every other reference is a Python reference to a payload that exists. Ring buffers
    overwrite slots without any bookkeeping, and episode ends need no ``done``: they simply do not match.

    Arrays that receive the same stream of observations, ``observations`` and ``next_observations``, have one
    ``FrameDeduplicator`` between them.

    :param coder: encodes what is new
    :param search: finds the coder's layout from the rows, where it is neither stated nor switched off
    """

    def __init__(self, coder: SlotCoder, search: FrameStackDetector | None) -> None:
        self.coder = coder
        self._search = search
        self._trainer = CodecTrainer()
        self._slots: list[Slot] = []  # the last row's, one for each environment
        self._known: PreviousRow | None = None  # and its observations

    def encode_rows(self, first: NDArray[Any], second: NDArray[Any] | None = None) -> list[list[Slot]]:
        """Encode the next observation of every environment, or the next two, as ``obs`` and ``next_obs`` come.

        :param first: array ``(n_envs, *item_shape)`` of the coder's dtype; it is not kept
        :param second: what comes next, of the same shape
        :return: for each of these rows, ``n_envs`` slots
        """
        if second is not None and (self._search is not None or second.strides != first.strides):
            return [*self.encode_rows(first), *self.encode_rows(second)]
        if self._search is not None:
            self._find_layout(self._search, first)
        known = self._previous_row_like(first)
        n_new, fresh = known.take_new_frames(first, second)  # from here on nothing is known
        rows = [self._slots] * len(n_new)
        if len(fresh):  # else it is all what was the next observation before
            rows = self._join(n_new, self.coder.encode_frames(fresh))
            self._slots = rows[-1]
        known.is_known = True  # only now: whatever interrupts this, no row is known without its payloads
        if len(fresh) and isinstance(self.coder.codec, TrainableCodec):
            self.coder.codec = self._trainer.teach(self.coder.codec, fresh)
        return rows

    def _join(self, n_new: NDArray[np.int64], payloads: list[bytes]) -> list[list[Slot]]:
        """Return the slots of rows of which these are the payloads of the new frames."""
        *others, newest = n_new.tolist()
        n_envs = len(newest)
        if len(payloads) == len(self._slots) == newest.count(1):  # nearly always: one each, in the last row
            return [self._slots] * len(others) + [self.coder.continue_each(self._slots, payloads)]
        fresh = iter(payloads)
        rows: list[list[Slot]] = [[] for _ in n_new]
        for env, slot in enumerate(self._slots or [None] * n_envs):
            for row, counts in zip(rows, [*others, newest], strict=True):
                if counts[env]:
                    slot = self.coder.join(list(islice(fresh, counts[env])), slot)
                row.append(slot)
        return rows

    def _previous_row_like(self, items: NDArray[Any]) -> PreviousRow:
        """Return what is known of the row before, in the memory layout of ``items``."""
        known = self._known
        if known is not None and known.is_like(items, self.coder.layout):
            return known
        before = self._previous_items()
        self._known = PreviousRow(items, self.coder.layout)
        if before is not None and before.shape == items.shape:
            self._known.remember(before)
        return self._known

    def _previous_items(self) -> NDArray[Any] | None:
        if self._known is not None and self._known.is_known:
            return self._known.items
        if not self._slots:
            return None
        items = np.empty((len(self._slots), *self.coder.item_shape), dtype=self.coder.dtype)  # after unpickling
        self.coder.decode_into(self._slots, items)
        return items

    def _find_layout(self, search: FrameStackDetector, items: NDArray[Any]) -> None:
        known = self._previous_items()
        if known is not None and known.shape == items.shape:
            before, after = (np.ascontiguousarray(array)[..., np.newaxis].view(np.uint8) for array in (known, items))
            layout = search.observe(before, after)  # [n_envs, *item_shape, itemsize]
            if layout is not None:
                # The last row was stored as whole items, so there are no payloads of its frames to refer to. In this
                # order, whatever interrupts it: no row is known without slots, nor the layout with slots of items.
                self._known = None
                self._slots = []
                self.coder.layout = layout
        if search.over or self.coder.layout is not None:
            self._search = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}  # the payloads say the same

    def to_data(self) -> dict[str, Any]:
        """Return, for JSON, what it has found out; the codec is not part of it."""
        layout = self.coder.layout
        return {
            "layout": None if layout is None else [layout.axis, layout.n_frames],
            "searches": self._search is not None,
            "lessons": self._trainer.to_data(),
        }

    def restore(self, data: Mapping[str, Any], codec: Codec, slots: list[Slot]) -> None:
        """Go on where another one was when it gave this data.

        :param codec: the codec that it used
        :param slots: the last row it encoded, nothing if there was none
        :raises ValueError: if the data does not fit
        """
        layout = data["layout"]
        if layout is not None:
            self.coder.layout = layout_from_state(self.coder.item_shape, *layout)
        if not data["searches"]:
            self._search = None
        self._trainer.restore(data["lessons"])
        self.coder.codec = codec
        self._known = None
        # Of a row that was written before the layout was found, nothing is the continuation.
        self._slots = slots if all(slot_n_frames(slot) == self.coder.n_frames for slot in slots) else []


class PreviousRow:
    """One row of observations, remembered in the memory layout in which rows come.

    Environments that stack frames give channel-last memory, seen through a transposed view. Frames are compared and
    taken out where they are: making observations contiguous first would take longer than both.

    :param items: a row ``(n_envs, *item_shape)`` in such a layout; it is not kept, nor known yet
    :param layout: how items are cut into frames; ``None`` for not at all
    """

    def __init__(self, items: NDArray[Any], layout: FrameLayout | None) -> None:
        from sb3_compressed.arrays.frame_dedup_kernels import (
            take_new_frames,  # not before it is needed: numba takes long
        )

        self._take_new_frames = take_new_frames
        self.is_known = False
        self._strides, self._layout = items.strides, layout
        n_frames = 1 if layout is None else layout.n_frames
        item_nbytes = items.nbytes // max(len(items), 1)
        # Frames are one after the other, or interleaved pixel by pixel as ``VecFrameStack`` stacks them.
        self._n_frames, self._piece, self._axes = n_frames, item_nbytes // n_frames, tuple(range(items.ndim))
        frame_axes = self._axes
        if layout is None:  # whatever is in memory as a whole
            by_stride = (0, *sorted(range(1, items.ndim), key=lambda axis: -items.strides[axis]))
            if items.transpose(by_stride).flags.c_contiguous:
                self._axes = frame_axes = by_stride
        elif layout.axis == 0 and layout.channels == 1:
            last = (0, *range(2, items.ndim), 1)
            if items.transpose(last).flags.c_contiguous and not items.flags.c_contiguous:
                self._piece, self._axes = items.itemsize, last
        elif layout.axis == -1:
            self._piece = layout.channels * items.itemsize
        self.items = _empty_in_order(items.shape, items.dtype, self._axes)
        self._rows = self._bytes(self.items)
        self._n_new = np.empty((2, len(items)), dtype=np.int64)
        frame_shape = items.shape[1:] if layout is None else layout.frame_shape
        self._frames = _empty_in_order((2 * len(items) * n_frames, *frame_shape), items.dtype, frame_axes)
        in_memory = self._frames.transpose(frame_axes)
        self._frame_rows = in_memory.reshape(len(in_memory), -1).view(np.uint8) if items.size else None

    def is_like(self, items: NDArray[Any], layout: FrameLayout | None) -> bool:
        """Return whether rows like this one are of the same shape and layout in memory."""
        return items.strides == self._strides and items.shape == self.items.shape and layout is self._layout

    def remember(self, items: NDArray[Any]) -> None:
        """Know this row from now on, whatever layout it comes in."""
        self.items[...] = items
        self.is_known = True

    def take_new_frames(
        self, first: NDArray[Any], second: NDArray[Any] | None
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Tell what is new in one row or two, and remember the last instead of the one before, but not as known.

        :return: how many frames of each observation are new, ``(n_rows, n_envs)``, and these frames, those of an
            environment together, the oldest first, ``(n, *frame_shape)``; the memory of both is used again
        """
        was_known, self.is_known = self.is_known, False
        n_new = self._n_new if second is not None else self._n_new[:1]
        if self._frame_rows is None:  # observations of no bytes
            n_new[:] = 0
            n_new[0] = 0 if was_known else self._n_frames
            return n_new, self._frames[: int(n_new.sum())]
        rows = self._bytes(first)
        next_rows = self._bytes(second) if second is not None else self._rows[:0]
        # The kernel reads and writes at addresses: whatever has strides as these but another dtype ends here.
        if rows.shape != self._rows.shape or (second is not None and next_rows.shape != self._rows.shape):
            shapes = [items.shape for items in (first, second) if items is not None]
            raise ValueError(f"rows must be of shape {self.items.shape} and dtype {self.items.dtype}, got {shapes}")
        n_fresh = self._take_new_frames(
            rows,
            next_rows,
            self._rows,
            self._n_frames,
            self._piece,
            was_known,
            self._n_new,
            self._frame_rows,
        )
        return n_new, self._frames[:n_fresh]

    def _bytes(self, items: NDArray[Any]) -> NDArray[np.uint8]:
        """Return a row as bytes ``(n_envs, item_nbytes)``, a view where memory allows it."""
        rows = np.ascontiguousarray(items.transpose(self._axes)).reshape(len(items), -1) if items.size else items
        return rows if rows.dtype == np.uint8 else rows.view(np.uint8)


def _empty_in_order(shape: tuple[int, ...], dtype: np.dtype[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Return an uninitialised array whose axes lie in memory in the order of ``axes``."""
    return np.empty([shape[axis] for axis in axes], dtype=dtype).transpose(np.argsort(axes))

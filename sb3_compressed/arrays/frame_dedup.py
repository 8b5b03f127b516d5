"""``FrameDeduplicator``: encodes rows of observations; each repeated frame is encoded only once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.codec_training import CodecTrainer
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout, FrameStackDetector, layout_from_state, layout_to_state
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore
from sb3_compressed.arrays.slot_store import Slot, slot_n_frames, with_handles
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.codec import UINT8
from sb3_compressed.common.warning import warn_user

__all__ = ["FrameDeduplicator"]

#: Attributes that copies and pickles do not share.
NOT_COPIED = {"arrays", "last_assigned"}


class FrameDeduplicator:
    """Encodes rows of observations, one of each environment, that follow each other.

    A stacked observation at time t+1 repeats all but one frame of the one at t, and ``next_obs`` at t is ``obs`` at
    t+1 except at the end of an episode. So this keeps the frames of the last row of every environment and their
    payloads: an observation that continues the last one needs one new payload, an equal one none, and all other
    references are Python references to existing payloads. Ring buffers overwrite slots without any bookkeeping, and
    episode ends need no ``done``: they simply do not match.

    The arrays of one stream of observations, ``observations`` and ``next_observations``, share a deduplicator. With it,
    they share the codec, which is trained on the frames that are encoded here.

    :param encoder: encodes what is new
    :param detector: detects the layout from the rows, for the encoder if it has none, otherwise to warn once if another
        one fits and the user's does not; ``None`` for neither
    """

    def __init__(self, encoder: FrameEncoder, detector: FrameStackDetector | None) -> None:
        self.encoder = encoder
        self._detector = detector
        self._trainer = CodecTrainer()
        self._last_slots: list[Slot] = []  # of the last row, one of each environment
        self._previous: PreviousRow | None = None  # its observations
        #: The arrays of the stream by their ids. It does not keep them alive: they refer to this object.
        self.arrays: WeakValueDictionary[int, Any] = WeakValueDictionary()
        #: The array to which a row was assigned last, by its id, and the row.
        self.last_assigned = (0, 0)

    def encode_rows(self, *rows: NDArray[Any], n_steps: int = 1) -> list[list[Slot]]:
        """Encode the next observation of every environment, or the next two, such as ``obs`` and ``next_obs``.

        :param rows: arrays ``(n_steps * n_envs, *item_shape)`` of the encoder's dtype, one or two; they are not kept
        :param n_steps: steps that follow each other; more than 1 for two rows only
        :return: for each row of each step the slots of its environments
        :raises Exception: what the codec's training raised, once; these rows can be encoded again
        """
        first, encoder = rows[0], self.encoder
        if self._detector is not None:
            if len(rows) > 1:
                n_envs = len(first) // n_steps
                each = [row[begin : begin + n_envs] for begin in range(0, len(first), n_envs) for row in rows]
                return [slots for row in each for slots in self.encode_rows(row)]
            self._detect_layout(self._detector, first)
        previous = self._previous
        shape = first.shape if n_steps == 1 else (len(first) // n_steps, *first.shape[1:])
        if (
            previous is None
            or shape != previous.shape
            or encoder.layout is not previous.layout
            or (first.strides != previous.strides and rows[-1].strides != previous.strides)
        ):
            previous = self._new_previous_row(first[: shape[0]])
        n_new, frames = previous.take_new_frames(rows, n_steps)  # from here on there is no previous row
        if not len(frames):  # the rows are the previous one
            previous.is_valid = True
            return [self._last_slots] * len(rows) * n_steps
        payloads = encoder.encode_frames(frames)
        slots = self._join(n_new, payloads)
        self._last_slots = slots[-1]
        previous.is_valid = True  # only now: whatever interrupts this, no row is valid without its payloads
        if encoder.handle is not None:  # the codec is trainable
            self._trainer.observe(encoder, frames, payloads)
        return slots

    def encode_assigned_steps(self, steps: NDArray[Any], previous: list[Slot]) -> list[list[Slot]]:
        """Encode observations that are assigned to rows of an array; the next :meth:`encode_rows` continues as before.

        :param steps: observations that follow each other, ``(n_steps, n, *item_shape)``
        :param previous: the slots of the row before them, ``n`` or none
        :return: for each step its slots
        :raises Exception: what the codec's training raised, once
        """
        n_steps, width, *item_shape = steps.shape
        before = self._last_slots, self._previous, self.encoder.layout
        is_continued = all(slot_n_frames(slot) == self.encoder.n_frames for slot in previous)
        self._last_slots, self._previous = previous if is_continued else [], None
        n_pairs = n_steps // 2
        slots: list[list[Slot]] = []
        try:
            if n_pairs:
                pairs = [steps[row : 2 * n_pairs : 2].reshape(n_pairs * width, *item_shape) for row in (0, 1)]
                slots += self.encode_rows(*pairs, n_steps=n_pairs)
            if n_steps % 2:
                slots += self.encode_rows(steps[-1])
        finally:
            last_slots, last_row, layout = before
            is_unchanged = layout is self.encoder.layout  # otherwise they are those of whole items
            self._last_slots, self._previous = (last_slots, last_row) if is_unchanged else ([], None)
        return slots

    def set_capacity(self, n_frames: int) -> None:
        """Set how many new frames the full buffer has, 0 where they take no memory."""
        self._trainer.capacity = n_frames

    def set_layout(self, layout: FrameLayout) -> None:
        """Set the encoder's layout, which is not known yet."""
        # The last row was stored as whole items, so there are no payloads of its frames to refer to. In this order,
        # whatever interrupts it: no row is valid without slots, and no slots of whole items are joined.
        self._previous = None
        self._last_slots = []
        self.encoder.layout = layout
        self._detector = None

    def _join(self, n_new: NDArray[np.int64], payloads: list[bytes]) -> list[list[Slot]]:
        """Return the slots of rows from the payloads of their new frames.

        :param n_new: the number of new frames of each observation, ``(n_rows, n_envs)``
        """
        counts = n_new.tolist()
        encoder, last = self.encoder, self._last_slots
        layout = encoder.layout
        # With the newest frame first, slots are joined by the encoder alone: such stacks are rare.
        handle = None if layout is not None and layout.newest_first else encoder.handle
        size = 1 + (1 if layout is None else layout.n_frames)
        if len(payloads) == len(last) == counts[-1].count(1):  # nearly always: one each, in the last row
            newest: list[Slot] = []
            for slot, payload in zip(last, payloads):  # they are of one length
                if handle is not None and slot[0] is handle and len(slot) == size:  # type: ignore[index, arg-type]
                    newest.append((handle, *slot[2:], payload))  # type: ignore[index]
                else:
                    newest.append(encoder.join((payload,), slot))
            return [*[last] * (len(counts) - 1), newest]
        new = iter(payloads)
        rows: list[list[Slot]] = [[] for _ in counts]
        for env, slot in enumerate(last or [None] * len(counts[0])):
            for row, of_row in zip(rows, counts):
                if (count := of_row[env]) == 1 and type(slot) is tuple and slot[0] is handle and len(slot) == size:
                    slot = (handle, *slot[2:], next(new))
                elif count:
                    slot = encoder.join(list(islice(new, count)), slot)
                row.append(slot)
        return rows

    def _new_previous_row(self, items: NDArray[Any]) -> PreviousRow:
        """Take the previous row over into the memory layout of ``items``."""
        before = self._previous_items()
        self._previous = PreviousRow(items, self.encoder.layout)
        if before is not None and before.shape == items.shape:
            self._previous.items[...] = before
            self._previous.is_valid = True
        return self._previous

    def _previous_items(self) -> NDArray[Any] | None:
        if self._previous is not None and self._previous.is_valid:
            return self._previous.items
        if not self._last_slots:
            return None
        encoder, store = self.encoder, MemorySlotStore(self.encoder.codec)  # after unpickling
        items = np.empty((len(self._last_slots), *encoder.item_shape), dtype=encoder.dtype)
        store.read(store.write(self._last_slots), encoder.layout, items)
        return items

    def _detect_layout(self, detector: FrameStackDetector, items: NDArray[Any]) -> None:
        previous = self._previous_items()
        if previous is not None and previous.shape == items.shape:
            before, after = (np.ascontiguousarray(each)[..., np.newaxis].view(np.uint8) for each in (previous, items))
            layout = detector.observe(before, after)  # [n_envs, *item_shape, itemsize]
            if layout is not None:
                explicit = self.encoder.layout
                if explicit is None:
                    self.set_layout(layout)
                    return
                self._detector = None
                if layout == replace(explicit, newest_first=True):
                    self.set_layout(layout)  # which decodes in the same way
                elif not detector.explains(explicit):
                    warn_user(
                        f"frames do not repeat with frame_stack={explicit.n_frames}, so each observation is stored "
                        f"whole: these observations are stacks of {layout.n_frames} frames along axis {layout.axis}. "
                        "Leave out frame_stack to detect that"
                    )
        if detector.is_done:
            self._detector = None
            if (found := detector.strided_stack) is not None:
                layout, lag = found
                warn_user(
                    f"each frame is stored {layout.n_frames} times, since these observations are stacks of frames that "
                    f"are {lag} steps apart: stack consecutive ones to store each frame once"
                )

    def __getstate__(self) -> dict[str, Any]:
        # The payloads contain the same as the previous row.
        return {name: value for name, value in {**self.__dict__, "_previous": None}.items() if name not in NOT_COPIED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        of_03 = {"_unchosen", "budget", "was_chosen"}
        self.__dict__.update({name: value for name, value in state.items() if name not in of_03})
        self.__dict__.update(arrays=WeakValueDictionary(), last_assigned=(0, 0))
        self._last_slots = [*map(with_handles, self._last_slots)]
        codec: Any = self.encoder.codec
        if state.get("was_chosen") and codec.name == "delta":  # it has the coder that 0.3.0 had chosen
            self.encoder.set_codec(replace(codec, coder="lz4", tries_delta=True, tries_zstd=True))

    def to_data(self) -> dict[str, Any]:
        """Return its state for JSON, without the codec."""
        # "searches" and "lessons" are the names in stored buffers.
        return {
            "layout": layout_to_state(self.encoder.layout),
            "searches": self._detector is not None,
            "lessons": self._trainer.to_data(),
        }

    def restore(self, data: Mapping[str, Any], codec: Codec, slots: list[Slot]) -> None:
        """Restore the state that :meth:`to_data` returned.

        :param codec: its codec at that time
        :param slots: the last row that was encoded, empty if there was none
        :raises ValueError: if the data does not fit
        """
        layout = data["layout"]
        if layout is not None:
            self.encoder.layout = layout_from_state(self.encoder.item_shape, *layout)
        if not data["searches"]:
            self._detector = None
        self._trainer.restore(data["lessons"])
        self.encoder.set_codec(codec)
        self._previous = None
        # A row that was written before the layout was found cannot be continued.
        self._last_slots = slots if all(slot_n_frames(slot) == self.encoder.n_frames for slot in slots) else []


class PreviousRow:
    """A copy of the last row of observations, in the memory layout in which rows arrive.

    Environments that stack frames return channel-last memory, as a transposed view. Frames are compared and extracted
    in place: making observations contiguous first would take longer than both.

    :param items: a row ``(n_envs, *item_shape)`` in this layout; it is not copied, so the row is not valid yet
    :param layout: how items are divided into frames; ``None`` if they are not
    """

    def __init__(self, items: NDArray[Any], layout: FrameLayout | None) -> None:
        # On first use, since importing numba takes long.
        from sb3_compressed.arrays.frame_dedup_kernels import masks_of_older_frames, take_new_frames

        self._take_new_frames = take_new_frames
        self.is_valid = False
        self.shape, self.strides, self.layout = items.shape, items.strides, layout
        self._dtype = items.dtype
        n_frames = 1 if layout is None else layout.n_frames
        item_nbytes = items.nbytes // max(len(items), 1)
        # Frames are contiguous, or interleaved pixel by pixel as ``VecFrameStack`` stacks them.
        self._n_frames, self._piece, self._axes = n_frames, max(item_nbytes // n_frames, 1), tuple(range(items.ndim))
        frame_axes = self._axes
        if layout is None:  # any order of axes that is contiguous
            by_stride = (0, *sorted(range(1, items.ndim), key=lambda axis: -items.strides[axis]))
            if items.transpose(by_stride).flags.c_contiguous:
                self._axes = frame_axes = by_stride
        elif layout.axis == 0:
            last = (0, *range(2, items.ndim), 1)
            if items.transpose(last).flags.c_contiguous and not items.flags.c_contiguous:
                self._piece, self._axes = layout.channels * items.itemsize, last
                frame_axes = self._axes if layout.channels > 1 else frame_axes
        else:
            self._piece = layout.piece * items.itemsize
        self._newest_first = layout is not None and layout.newest_first
        self._is_contiguous = items.transpose(self._axes).flags.c_contiguous
        self._masks = masks_of_older_frames(n_frames, self._piece)
        self.items = _empty_in_order(items.shape, items.dtype, self._axes)
        flat = self.items.transpose(self._axes).reshape(len(items), math.prod(items.shape[1:]))  # a view
        self._rows = flat.view(UINT8)
        self._frame_axes = frame_axes
        self._n_new = np.empty((2, len(items)), dtype=np.int64)
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
            # The kernel reads and writes at addresses, so rows of another dtype with equal strides must end here.
            if items.shape[1:] != self.shape[1:] or len(items) != n_steps * self.shape[0] or items.dtype != self._dtype:
                raise ValueError(
                    f"{n_steps} rows must be of shape {self.shape} and dtype {self._dtype}, got {items.shape} and "
                    f"{items.dtype}"
                )
            # The axis of steps may lie anywhere.
            is_in_order = self._is_contiguous and n_steps == 1 and items.strides == self.strides
            flat = items.ravel("K") if is_in_order else items.transpose(self._axes).ravel()
            views.append(flat if self._dtype == UINT8 else flat.view(UINT8))
        n_frames = self._take_new_frames(
            n_rows, views[0], views[-1], self._rows, self._n_frames, self._piece, self._masks,
            self._newest_first, was_valid, n_new, frame_rows,
        )  # fmt: skip
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

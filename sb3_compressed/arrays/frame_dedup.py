"""``FrameDeduplicator``: encodes rows of observations; each repeated frame is encoded only once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.codec_training import CodecTrainer
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout, FrameStackDetector, layout_from_state, layout_to_state
from sb3_compressed.arrays.slot_store import SlotStore
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.codec import UINT8
from sb3_compressed.common.warning import warn_user

__all__ = ["FrameDeduplicator"]

#: Attributes that copies and pickles do not share.
NOT_COPIED = {"arrays", "last_assigned", "_of_envs", "_n_deletions"}


class FrameDeduplicator:
    """Encodes rows of observations, one of each environment, that follow each other.

    A stacked observation at time t+1 repeats all but one frame of the one at t, and ``next_obs`` at t is ``obs`` at
    t+1 except at the end of an episode. So this keeps the last row of every environment, and references to its slots:
    an observation that continues the last one needs one new payload, an equal one none. Episode ends need no ``done``:
    they simply do not match.

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
        #: References to the slots of the last row, one of each environment, and the writer of the log that they are in.
        self._last: NDArray[Any] | None = None
        self._last_writer: object = None
        #: :attr:`.SlotLog.n_deletions` when the segments of these slots were there.
        self._n_deletions = 0
        self._previous: PreviousRow | None = None  # its observations
        #: The arrays of the stream by their ids. It does not keep them alive: they refer to this object.
        self.arrays: WeakValueDictionary[int, Any] = WeakValueDictionary()
        #: The array to which a row was assigned last, by its id, and the row; by the environment, if it was alone.
        self.last_assigned: dict[int | None, tuple[int, int]] = {}
        #: What encodes the items that are assigned to single environments.
        self._of_envs: dict[int, FrameDeduplicator] = {}

    def encode_rows(self, store: SlotStore, *rows: NDArray[Any], n_steps: int = 1) -> NDArray[Any]:
        """Encode the next observation of every environment, or the next two, such as ``obs`` and ``next_obs``.

        :param store: what they are written to
        :param rows: arrays ``(n_steps * n_envs, *item_shape)`` of the encoder's dtype, one or two; they are not kept
        :param n_steps: steps that follow each other; more than 1 for two rows only
        :return: references to slots, ``(n_steps * len(rows), n_envs)``: those of the first step, then those of the next
        :raises Exception: what the codec's training raised, once; these rows can be encoded again
        """
        first, encoder = rows[0], self.encoder
        if self._last_writer is not store.writer or self._n_deletions != store.log.n_deletions:
            self._require_last_row(store)
        if self._detector is not None:
            if len(rows) > 1:
                n_envs = len(first) // n_steps
                each = [row[begin : begin + n_envs] for begin in range(0, len(first), n_envs) for row in rows]
                references = store.new_table((len(each), n_envs))
                for number, row in enumerate(each):
                    references[number] = self.encode_rows(store, row)
                return references
            self._detect_layout(store, self._detector, first)
        previous = self._previous
        shape = first.shape if n_steps == 1 else (len(first) // n_steps, *first.shape[1:])
        if (
            previous is None
            or shape != previous.shape
            or encoder.layout is not previous.layout
            or (first.strides != previous.strides and rows[-1].strides != previous.strides)
        ):
            previous = self._new_previous_row(store, first[: shape[0]])
        last = self._last if previous.is_valid else None
        n_new, frames = previous.take_new_frames(rows, n_steps)  # from here on there is no previous row
        if not len(frames) and last is not None:  # the rows are the previous one
            previous.is_valid = True
            return np.tile(last, (len(n_new), 1))
        payloads = encoder.codec.encode_batch(frames)
        references = store.writer.append(last, n_new, payloads, encoder)
        if last is None:
            self._set_last(store, references[-1])
        else:
            last[...] = references[-1]
        previous.is_valid = True  # only now: whatever interrupts this, no row is valid without its payloads
        if encoder.is_trainable:
            self._trainer.observe(encoder, frames, payloads)
        return references

    def encode_item(self, store: SlotStore, env: int, item: NDArray[Any]) -> NDArray[Any] | None:
        """Encode the next observation of one environment, as of code that writes those of a row one after the other.

        :param store: what it is written to
        :param item: of the encoder's dtype, ``item_shape``
        :return: a reference to its slot, ``(1,)``; ``None`` if nothing is known that it may continue
        :raises Exception: what the codec's training raised, once
        """
        of_env = self._of_envs.get(env)
        return None if of_env is None else of_env.encode_rows(store, item[np.newaxis])[0]

    def begin_items(self, store: SlotStore, env: int, references: NDArray[Any]) -> None:
        """Let the next call of :meth:`encode_item` continue an item that was assigned otherwise.

        :param references: a reference to its slot, ``(1,)``
        """
        if self._detector is None and store.gather(references, self.encoder.n_frames).is_uniform:
            of_env = FrameDeduplicator(self.encoder, None)
            of_env._trainer = self._trainer
            of_env._set_last(store, references)
            self._of_envs[env] = of_env

    def forget_items(self) -> None:
        """Continue no items of single environments, since a whole row follows."""
        if self._of_envs:
            self._of_envs = {}

    def encode_assigned_steps(
        self, store: SlotStore, steps: NDArray[Any], previous: NDArray[Any] | None
    ) -> NDArray[Any]:
        """Encode observations that are assigned to rows of an array; the next :meth:`encode_rows` continues as before.

        :param store: what they are written to
        :param steps: observations that follow each other, ``(n_steps, n, *item_shape)``
        :param previous: references to the slots of the row before them, ``(n,)``, if they continue one
        :return: references to slots, ``(n_steps, n)``
        :raises Exception: what the codec's training raised, once
        """
        n_steps, width, *item_shape = steps.shape
        layout = self.encoder.layout
        before = {name: vars(self)[name] for name in ("_last", "_last_writer", "_previous", "_of_envs")}
        self.forget_last_row()
        if previous is not None and store.gather(previous, self.encoder.n_frames).is_uniform:
            self._set_last(store, previous)
        n_pairs = n_steps // 2
        references = store.new_table((n_steps, width))
        try:
            if n_pairs:
                pairs = [steps[row : 2 * n_pairs : 2].reshape(n_pairs * width, *item_shape) for row in (0, 1)]
                references[: 2 * n_pairs] = self.encode_rows(store, *pairs, n_steps=n_pairs)
            if n_steps % 2:
                references[-1:] = self.encode_rows(store, steps[-1])
        finally:
            if layout is self.encoder.layout:
                vars(self).update(before)  # in one call, whatever interrupts this
            else:  # they are those of whole items
                self.forget_last_row()
        return references

    def _require_last_row(self, store: SlotStore) -> None:
        """Forget the last row if it is in another store, or in a segment that was deleted since."""
        is_there = self._last is not None and self._last_writer is store.writer and store.log.has_segments(self._last)
        if not is_there:
            self.forget_last_row()
        self._n_deletions = store.log.n_deletions

    def forget_last_row(self) -> None:
        """Store the next row in full."""
        # In this order, whatever interrupts it: no row is valid without slots.
        self._of_envs = {}
        self._previous = None
        self._last = self._last_writer = None

    def _set_last(self, store: SlotStore, references: NDArray[Any]) -> None:
        if self._last is not None and self._last.shape == references.shape:
            self._last[...] = references
        else:
            last = store.new_table(references.shape)  # which keeps the slots that it refers to
            last[...] = references
            self._last = last  # only now, whatever interrupts this
        self._last_writer = store.writer

    def adopt(self, store: SlotStore) -> None:
        """Keep the slots of the last row in a copy of the store, after copying or unpickling."""
        if self._last is not None:
            last, self._last = self._last, None
            self._set_last(store, last)

    def set_capacity(self, n_frames: int) -> None:
        """Set how many new frames the full buffer has, 0 where they take no memory."""
        self._trainer.capacity = n_frames

    def set_layout(self, layout: FrameLayout) -> None:
        """Set the encoder's layout, which is not known yet."""
        # The last row was stored as whole items, so there are no payloads of its frames to refer to.
        self.forget_last_row()
        self.encoder.set_layout(layout)
        self._detector = None

    def _new_previous_row(self, store: SlotStore, items: NDArray[Any]) -> PreviousRow:
        """Take the previous row over into the memory layout of ``items``."""
        before = self._previous_items(store)
        self._previous = PreviousRow(items, self.encoder.layout)
        if before is not None and before.shape == items.shape:
            self._previous.items[...] = before
            self._previous.is_valid = True
        return self._previous

    def _previous_items(self, store: SlotStore) -> NDArray[Any] | None:
        if self._previous is not None and self._previous.is_valid:
            return self._previous.items
        if self._last is None:
            return None
        items = np.empty((len(self._last), *self.encoder.item_shape), dtype=self.encoder.dtype)  # after unpickling
        store.read_into(items, self._last, self.encoder)
        return items

    def _detect_layout(self, store: SlotStore, detector: FrameStackDetector, items: NDArray[Any]) -> None:
        previous = self._previous_items(store)
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
        # The payloads contain the same as the previous row. In memory, :meth:`adopt` sets the writer again.
        state = {**self.__dict__, "_previous": None, "_last_writer": None}
        return {name: value for name, value in state.items() if name not in NOT_COPIED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        of_03 = {"_unchosen", "budget", "was_chosen", "_last_slots"}
        self.__dict__.update(arrays=WeakValueDictionary(), last_assigned={}, _of_envs={}, _n_deletions=0)
        self.__dict__.update(_last=None, _last_writer=None)
        self.__dict__.update({name: value for name, value in state.items() if name not in of_03})
        codec: Any = self.encoder.codec
        if state.get("was_chosen") and codec.name == "delta":  # it has the coder that 0.3.0 had chosen
            self.encoder.codec = replace(codec, coder="lz4", tries_delta=True, tries_zstd=True)

    def to_data(self) -> dict[str, Any]:
        """Return its state for JSON, without the codec."""
        # "searches" and "lessons" are the names in stored buffers.
        return {
            "layout": layout_to_state(self.encoder.layout),
            "searches": self._detector is not None,
            "lessons": self._trainer.to_data(),
        }

    def restore(self, data: Mapping[str, Any], codec: Codec, store: SlotStore, last: NDArray[Any]) -> None:
        """Restore the state that :meth:`to_data` returned.

        :param codec: its codec at that time
        :param last: references to the slots of the last row in a store, some of which may not be written
        :raises ValueError: if the data does not fit
        """
        layout = data["layout"]
        if layout is not None:
            self.encoder.set_layout(layout_from_state(self.encoder.item_shape, *layout))
        if not data["searches"]:
            self._detector = None
        self._trainer.restore(data["lessons"])
        self.encoder.codec = codec
        self.forget_last_row()
        # A row that was written before the layout was found cannot be continued.
        if store.gather(last, self.encoder.n_frames).is_uniform:
            self._set_last(store, last)


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

"""``ObservationStream``: the observations of one key of a buffer, with all that encodes, keeps and decodes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import Empty, checked_empty
from sb3_compressed.arrays.codec_training import CodecTrainer
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_dedup import FrameDeduplicator
from sb3_compressed.arrays.frame_layout import FrameLayout, FrameStackDetector, layout_from_state, layout_to_state
from sb3_compressed.arrays.memory_estimate import MemoryEstimate, estimate_memory, tables_nbytes
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_copying import SlotCopier
from sb3_compressed.arrays.slot_log import SlotLog, SlotOf
from sb3_compressed.codecs import Codec
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import CorruptPayload, old_pickle

__all__ = ["ObservationStream"]

#: Slots from which the memory of slots on a device is estimated, since each segment that is read is copied from there.
MAX_ESTIMATED_ON_DEVICE = 512
#: Rows whose slots are copied in one call.
ROWS_PER_COPY = 1024


class ObservationStream:
    """The codec and the layout of observations, what of them is new, and the log that they are written to.

    Its arrays, such as ``observations`` and ``next_observations``, are tables of references to slots in the log. They
    share slots and payloads, since a row mostly continues the one before.

    :param encoder: encodes what is new
    :param detector: detects the layout from the rows, for the encoder if it has none, otherwise to warn once if another
        one fits and the user's does not; ``None`` for neither
    :param log: where slots are
    :ivar arrays: its arrays by their ids, without views. It does not keep them alive: they refer to this object
    """

    def __init__(self, encoder: FrameEncoder, detector: FrameStackDetector | None, log: SlotLog) -> None:
        self.encoder = encoder
        self._detector = detector
        self._trainer = CodecTrainer()
        self._use(log)

    def _use(self, log: SlotLog) -> None:
        """Set everything that copies and pickles do not share."""
        self.log = log
        self.arrays: WeakValueDictionary[int, Any] = WeakValueDictionary()
        #: The array to which a row was assigned last, by its id, and the row; by the environment, if it was alone.
        self._last_assigned: dict[int | None, tuple[int, int]] = {}
        #: What the next row continues, and what the next item of single environments does, where these are written one
        #: after the other.
        self._deduplicator = FrameDeduplicator(self.encoder, self._trainer, log)
        self._of_envs: dict[int, FrameDeduplicator] = {}
        #: Tables of its arrays that an unpickled stream contains, by the ids that they had.
        self._unpickled: dict[int, NDArray[np.int64]] = {}

    @property
    def layout(self) -> FrameLayout | None:
        """How items are divided into frames; ``None`` if they are not, or as long as that is not known."""
        return self.encoder.layout

    # -- writing -----------------------------------------------------------------------------------------------

    def append(self, *rows: NDArray[Any], n_steps: int = 1) -> NDArray[np.int64]:
        """Encode the next observation of every environment, or the next two, such as ``obs`` and ``next_obs``.

        :param rows: arrays ``(n_steps * n_envs, *item_shape)`` of the encoder's dtype, one or two; they are not kept
        :param n_steps: steps that follow each other; one call for all of them takes less time
        :return: references to slots, ``(n_steps * len(rows), n_envs)``: those of the first step, then those of the
            next; they are valid as long as they live
        :raises Exception: what the codec's training raised, once; these rows can be encoded again
        """
        log = self.log
        log.count_overwritten(len(rows) * len(rows[0]))
        kept = log.keep_slots()
        try:
            if self._of_envs:
                self._of_envs = {}
            if self._detector is None:
                references = self._deduplicator.append(rows, n_steps)
            else:
                references = self._append_and_detect(self._deduplicator, rows, n_steps)
            log.watch(references)
        finally:
            del kept  # not with the frame of a traceback
        return references

    def _append_and_detect(
        self, continued: FrameDeduplicator, rows: Sequence[NDArray[Any]], n_steps: int
    ) -> NDArray[np.int64]:
        """Append rows one by one, each after a step of the detection of stacks."""
        n_envs = len(rows[0]) // n_steps
        references = self.log.new_table((n_steps * len(rows), n_envs))
        for number in range(len(references)):
            step, which = divmod(number, len(rows))
            row = rows[which][step * n_envs : (step + 1) * n_envs]
            self._detect_layout(continued, row)
            references[number] = continued.append((row,))
        return references

    def append_item(self, env: int, item: NDArray[Any]) -> NDArray[np.int64] | None:
        """Encode the next observation of one environment, as of code that writes those of a row one after the other.

        :param item: of the encoder's dtype, ``item_shape``
        :return: a reference to its slot, ``(1,)``; ``None`` if nothing is known that it may continue
        :raises Exception: what the codec's training raised, once
        """
        of_env = self._of_envs.get(env)
        return None if of_env is None else of_env.append((item[np.newaxis],))[0]

    def continue_item(self, env: int, references: NDArray[np.int64]) -> None:
        """Let the next call of :meth:`append_item` continue an item that was assigned otherwise.

        :param references: a reference to its slot, ``(1,)``
        """
        if self._detector is None and self._can_continue(references):
            self._of_envs[env] = of_env = FrameDeduplicator(self.encoder, self._trainer, self.log)
            of_env.continue_from(references)

    def append_steps(self, steps: NDArray[Any], previous: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Encode observations that are assigned to rows of an array; the next :meth:`append` continues as before.

        :param steps: observations that follow each other, ``(n_steps, n, *item_shape)``
        :param previous: references to the slots of the row before them, ``(n,)``, if they continue one
        :return: references to slots, ``(n_steps, n)``, in a table that keeps them
        :raises Exception: what the codec's training raised, once
        """
        n_steps, width, *item_shape = steps.shape
        continued = FrameDeduplicator(self.encoder, self._trainer, self.log)
        if previous is not None and self._can_continue(previous):
            continued.continue_from(previous)
        references = self.log.new_table((n_steps, width))
        first = 0
        while self._detector is not None and first < n_steps:
            references[first] = self._append_and_detect(continued, [steps[first]], 1)[0]
            first += 1
        n_pairs = (n_steps - first) // 2
        if n_pairs:
            last = first + 2 * n_pairs
            pairs = [steps[row:last:2].reshape(n_pairs * width, *item_shape) for row in (first, first + 1)]
            references[first:last] = continued.append(pairs, n_pairs)
            first = last
        if first < n_steps:
            references[first:] = continued.append([steps[first]])
        return references

    def append_apart(self, items: NDArray[Any]) -> NDArray[np.int64]:
        """Encode items ``(n, *item_shape)`` that continue nothing, and return references to slots, ``(n,)``."""
        frames = self.encoder.split(items)
        n_items, n_frames, *frame_shape = frames.shape
        payloads = self.encoder.codec.encode_batch(frames.reshape(n_items * n_frames, *frame_shape))
        n_new = np.full((1, n_items), n_frames)
        references: NDArray[np.int64] = self.log.append(None, n_new, payloads, self.encoder)[0]
        return references

    def append_encoded(
        self, batch: PayloadBatch, items: NDArray[np.int64], previous: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Store items that another encoder has encoded by a codec and a layout of this stream.

        :param batch: the items
        :param items: their numbers in the batch, ``(n,)``
        :param previous: references to slots that the first items may repeat, ``(n_envs,)``
        :return: references to slots, ``(n,)``
        :raises OSError: if they cannot be written
        """
        return self.log.append_items(batch, items, previous)

    def copier_from(self, source: SlotLog) -> SlotCopier:
        """Return what copies slots of another log to that of this stream, which accepts only those of its codec."""
        return self.log.copier_from(source, self.encoder.accepted)

    def _can_continue(self, references: NDArray[np.int64]) -> bool:
        """Return whether slots have the frames that items of the present layout have."""
        return self.gather(references).is_uniform

    # -- reading -----------------------------------------------------------------------------------------------

    def read(
        self,
        references: NDArray[np.int64],
        dtype: np.dtype[Any] | None = None,
        slot_of: SlotOf | None = None,
        *,
        empty: Empty = checked_empty,
        num_threads: int = 1,
        to_host: bool = True,
    ) -> Any:
        """Decode slots to items ``(n, *item_shape)``; see :meth:`.SlotLog.read`.

        :param dtype: dtype of the result, ``None`` for the one that they are stored in
        """
        return self.log.read(
            references, self.encoder, self.encoder.dtype if dtype is None else dtype, slot_of,
            empty=empty, num_threads=num_threads, to_host=to_host,
        )  # fmt: skip

    def gather(self, references: NDArray[np.int64], slot_of: SlotOf | None = None) -> PayloadBatch:
        """Return the payloads of slots, to be decoded elsewhere or compared; see :meth:`.SlotLog.gather`."""
        try:
            return self.log.gather(references, self.encoder.n_frames, self.encoder.accepted)
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, error.index, slot_of and slot_of(error.index)) from error

    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory of tables and of all slots, in bytes."""
        self.log.free_unused()
        return self.log.memory_nbytes + tables_nbytes(tables)

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Estimate the memory of tables from some of their rows, see :func:`~.memory_estimate.estimate_memory`."""
        log = self.log
        gather = partial(log.gather, n_frames=0, accepted=self.encoder.accepted)
        if log.is_on_device:
            max_slots = min(max_slots, MAX_ESTIMATED_ON_DEVICE)
        estimate = estimate_memory(gather, tables, begin, n_rows, max_slots)
        nbytes = log.memory_nbytes + tables_nbytes(tables)  # without freeing what is unused: a call takes constant time
        if log.is_in_memory:
            estimate = replace(estimate, loaded_nbytes=nbytes, codecs=tuple(log.trained_codecs()))
        return replace(estimate, nbytes=nbytes)

    # -- the arrays ----------------------------------------------------------------------------------------------

    def join(self, array: Any) -> None:
        """Add one of its arrays."""
        self.arrays[id(array)] = array

    def other_tables(self, table: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the tables of its other arrays of the same shape that were written to."""
        tables = [array.references for array in [*self.arrays.values()]]
        return [each for each in tables if each is not table and each.shape == table.shape and each.flags.writeable]

    def is_filled_alone(self, array: Any, row: int, env: int | None = None) -> bool:
        """Return whether rows are assigned to one array after the other, and not in turn with ``next_observations``.

        An overridden ``add`` fills both in turn, so that each observation continues the one assigned last. Only where
        one is filled on its own may the other contain the observation already, which :func:`.encode_assigned` searches.

        :param array: that to which a row is assigned now, which is recorded
        :param row: the row
        :param env: the environment whose item is assigned alone
        """
        before, self._last_assigned[env] = self._last_assigned.get(env), (id(array), row)
        return before == (id(array), row - 1) and bool(self.other_tables(array.references))

    def move_to(self, log: SlotLog) -> None:
        """Use another log from now on, to which the tables of all arrays must refer."""
        if self.log is not log:
            self.forget_last_row()
            self.log = log
            self._deduplicator = FrameDeduplicator(self.encoder, self._trainer, log)
        if not log.is_in_memory:
            self.set_capacity(0)

    # -- layout, training and state ------------------------------------------------------------------------------

    def set_layout(self, layout: FrameLayout) -> None:
        """Set how items are divided into frames, which is not known yet."""
        # The last row was stored as whole items, so there are no payloads of its frames to refer to.
        self.forget_last_row()
        self.encoder.set_layout(layout)
        self._detector = None

    def set_capacity(self, n_items: int) -> None:
        """Set how many observations the full buffer has, 0 where they take no memory."""
        self._trainer.capacity = n_items

    def forget_last_row(self) -> None:
        """Store the next row in full."""
        self._of_envs = {}
        self._deduplicator.forget()

    def _detect_layout(self, continued: FrameDeduplicator, items: NDArray[Any]) -> None:
        """Observe how a row continues the one before, and set the layout once it is detected."""
        detector = self._detector
        if detector is None:
            return
        previous = continued.previous_items()
        if previous is not None and previous.shape == items.shape:
            before, after = (np.ascontiguousarray(each)[..., np.newaxis].view(np.uint8) for each in (previous, items))
            layout = detector.observe(before, after)  # [n_envs, *item_shape, itemsize]
            if layout is not None:
                explicit = self.encoder.layout
                if explicit in (None, replace(layout, newest_first=False)) and layout != explicit:
                    self.set_layout(layout)  # instead of an explicit one, it decodes in the same way
                    continued.forget()
                    return
                self._detector = None
                if explicit is not None and not detector.explains(explicit):
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

    def state(self) -> dict[str, Any]:
        """Return its state for JSON, without the codec."""
        return {
            "layout": layout_to_state(self.encoder.layout),
            "detects": self._detector is not None,
            "training": self._trainer.state(),
        }

    def restore(self, state: Mapping[str, Any], codec: Codec, last: NDArray[np.int64]) -> None:
        """Restore what :meth:`state` returned.

        :param codec: its codec at that time
        :param last: references to the slots of the last row, some of which may not be written
        :raises ValueError: if the state does not fit
        """
        layout = state["layout"]
        if layout is not None:
            self.encoder.set_layout(layout_from_state(self.encoder.item_shape, *layout))
        if not state["detects"]:
            self._detector = None
        self._trainer.restore(state["training"])
        self.encoder.codec = codec
        self.forget_last_row()
        if self._can_continue(last):  # not a row that was written before the layout was found
            self._deduplicator.continue_from(last)

    def __getstate__(self) -> dict[str, Any]:
        # The slots contain the same as the previous row.
        state = {"encoder": self.encoder, "detector": self._detector, "trainer": self._trainer}
        if self.log.is_in_memory:
            return {**state, "log": self.log, "last": self._deduplicator.last, "tables": {}}
        # Copies and pickles are in memory: of a folder, they contain its slots, each payload once.
        log = MemoryLog()
        tables = self._copy_tables_to(log, {key: array.written_references() for key, array in [*self.arrays.items()]})
        return {**state, "log": log, "last": None, "tables": tables}

    def in_memory(self, table: NDArray[np.int64]) -> tuple[ObservationStream, NDArray[np.int64]]:
        """Return a stream in memory with the slots of a table alone, and references to them."""
        log = MemoryLog()
        copies = self._copy_tables_to(log, {0: table})[0]
        return ObservationStream(copy.copy(self.encoder), None, log), copies

    def _copy_tables_to(self, log: MemoryLog, tables: Mapping[int, NDArray[np.int64]]) -> dict[int, NDArray[np.int64]]:
        """Copy the slots of tables to another log; return the references to the copies by the same keys.

        :raises CorruptPayload: if one is damaged; the error names its slot
        """
        copies = {key: log.new_table(table.shape) for key, table in tables.items()}
        with log.copier_from(self.log, self.encoder.accepted) as copier:
            for first in range(0, max(map(len, tables.values()), default=0), ROWS_PER_COPY):
                rows = slice(first, first + ROWS_PER_COPY)
                # Together, since they share slots.
                parts = {key: table[rows] for key, table in tables.items() if len(table) > first}
                try:
                    copied = copier.copy(np.concatenate([part.reshape(-1) for part in parts.values()]))
                except CorruptPayload as error:
                    index = error.index
                    for part in parts.values():
                        if index < part.size:
                            row, *envs = (int(i) for i in np.unravel_index(index, part.shape))
                            raise CorruptPayload(error.reason, error.index, (first + row, *envs)) from error
                        index -= part.size
                    raise
                for key, part in parts.items():
                    copies[key][rows] = copied[: part.size].reshape(part.shape)
                    copied = copied[part.size :]
        return copies

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "log" not in state:
            raise old_pickle()
        self.encoder, self._detector, self._trainer = state["encoder"], state["detector"], state["trainer"]
        self._use(state["log"])
        for key, references in state["tables"].items():
            table = self._unpickled[key] = self.log.new_table(references.shape)  # until its array takes it
            table[...] = references
        if state["last"] is not None:
            self._deduplicator.continue_from(state["last"])

    def take_unpickled(self, key: int) -> NDArray[np.int64]:
        """Return the references that an array of a folder had, which is unpickled.

        :param key: the id that it had
        """
        return self._unpickled.pop(key)

"""Reading sequences of consecutive observations: every frame that they share is decoded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import Empty
from sb3_compressed.arrays.compressed_array import CompressedArray
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.codecs.codec import output_bytes
from sb3_compressed.errors import CorruptPayload

__all__ = ["SequenceObservations", "Steps", "clear_padding", "read_sequences"]


@dataclass(frozen=True)
class Steps:
    """The steps of a batch of sequences.

    :param rows: the row of each step, ``(batch, time)``; for padding, that of the nearest step of the sequence
    :param envs: the environment of each sequence, ``(batch,)``
    :param first: the position of the first step that is not padding, ``(batch,)``
    :param stop: the position after the last one, ``(batch,)``
    """

    rows: NDArray[np.int64]
    envs: NDArray[np.int64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]


@dataclass(frozen=True)
class SequenceObservations:
    """The observations of sequences, and those after their last steps.

    :param values: observations ``(batch, time, *item_shape)``, or frames ``(batch, time + n_frames - 1, *frame_shape)``
        of which each ``n_frames`` consecutive ones are an observation
    :param layout: how observations consist of frames; ``None`` if ``values`` are observations
    :param next_values: the next observation of each step, if they are not the observations one step later
    """

    values: NDArray[Any]
    layout: FrameLayout | None = None
    next_values: NDArray[Any] | None = None


def read_sequences(
    array: Any,
    next_array: Any,
    steps: Steps,
    *,
    with_next: bool,
    as_frames: bool,
    empty: Empty = np.empty,
) -> SequenceObservations:
    """Read the observations of sequences.

    :param array: the observations, ``(n_rows, n_envs, *item_shape)``, compressed or not
    :param next_array: the next observations; ``None`` if they are the observations of the following rows
    :param with_next: whether a last step is appended to each sequence, the next observation of its last transition
    :param as_frames: whether to return frames if observations consist of them and are consecutive
    :param empty: allocates the memory of the observations, as :func:`numpy.empty` does
    :return: zeros are where sequences are padded, except in frames that neighbouring observations contain
    :raises CorruptPayload: if a payload is damaged; the error names its slot
    :raises MemoryError: if there is not enough memory
    """
    read = _Reading(array, next_array, steps, with_next=with_next, empty=empty)
    observations = read.frames() if as_frames else None
    return observations or read.items()


class _Reading:
    def __init__(self, array: Any, next_array: Any, steps: Steps, *, with_next: bool, empty: Empty) -> None:
        self._allocate = empty
        self.array, self.next_array, self.steps, self.with_next = array, next_array, steps, with_next
        self.batch_size, self.n_steps = steps.rows.shape
        self.last = steps.stop - 1
        rows = steps.rows
        if with_next:
            rows = np.concatenate((rows, rows[:, -1:]), axis=1)
            self.n_steps += 1
            self.last = steps.stop
        #: The index of all steps; what follows a sequence has that of its last transition.
        self.index = rows.reshape(-1), np.repeat(steps.envs, self.n_steps)
        sequences = np.arange(self.batch_size)
        #: Positions of the next observations after the sequences, and their rows.
        self.ahead = sequences * self.n_steps + steps.stop
        last_rows = rows[sequences, steps.stop - 1]
        self.ahead_index = last_rows if next_array is not None else (last_rows + 1) % len(array), steps.envs

    def items(self) -> SequenceObservations:
        """Return observations."""
        array, shape = self.array, (self.batch_size, self.n_steps, *self.array.shape[2:])
        values = self._allocate(shape, array.dtype)
        items = values.reshape(-1, *shape[2:])
        if isinstance(array, CompressedArray):
            at_rows, at_envs = self.index
            array._decode(self._references(), items, lambda n: (int(at_rows[n]), int(at_envs[n])))
        else:
            items[...] = array[self.index]
            if self.with_next:
                items[self.ahead] = (array if self.next_array is None else self.next_array)[self.ahead_index]
        next_values = None
        if not self.is_consecutive(values):
            rows = self.steps.rows
            next_values = self._allocate((*rows.shape, *shape[2:]), array.dtype)
            next_values.reshape(-1, *shape[2:])[...] = self.next_array[
                rows.reshape(-1), np.repeat(self.steps.envs, rows.shape[1])
            ]
            clear_padding(next_values, self.steps.first, self.steps.stop)
        clear_padding(values, self.steps.first, self.last + 1)
        return SequenceObservations(values, None, next_values)

    def frames(self) -> SequenceObservations | None:
        """Return the frames of observations, ``None`` if they are not consecutive frames."""
        array = self.array
        layout = array._encoder.layout if isinstance(array, CompressedArray) else None
        is_strided = layout is not None and (layout.axis == 0 or (layout.axis == -1 and layout.channels == 1))
        if layout is None or not is_strided or not self.is_consecutive():
            return None
        from sb3_compressed.arrays.sequence_kernels import align_frames, n_different_frames

        try:
            batch = array.store.gather(self._references(), layout.n_frames)
        except CorruptPayload as error:
            raise self._located(error, error.index) from error
        if not batch.is_uniform:  # some are stored as whole items
            return None
        places = batch.payloads.places
        width = self.n_steps + layout.n_frames - 1
        n_frames = self.batch_size * width
        numbers, pairs = np.empty(n_frames, dtype=np.int64), np.empty((len(places), 2), dtype=np.int64)
        n_pairs = align_frames(places, layout.n_frames, self.steps.first, self.last, self.n_steps, numbers, pairs)
        pairs = pairs[:n_pairs]
        numbers = np.concatenate((numbers, pairs[:, 1]))
        frames = self._allocate((len(numbers), *layout.frame_shape), array.dtype)
        stored = frames if array.elem_type == array.dtype else np.empty(frames.shape, array.elem_type)
        try:
            decode(batch.select(numbers), None, stored, array.num_threads)
        except CorruptPayload as error:
            raise self._located(error, int(numbers[error.index]) // layout.n_frames) from error
        if n_different_frames(output_bytes(stored, len(numbers)), pairs, n_frames):
            return None
        if stored is not frames:
            frames[...] = stored
        values = frames[:n_frames].reshape(self.batch_size, width, *layout.frame_shape)
        clear_padding(values, self.steps.first, self.last + layout.n_frames)
        return SequenceObservations(values, layout)

    def is_consecutive(self, values: NDArray[Any] | None = None) -> bool:
        """Return whether the next observation of each step is the observation of the following one.

        :param values: the observations, where they are not compressed
        """
        if not self.with_next or self.next_array is None:
            return True
        rows, positions = self.steps.rows, np.arange(self.steps.rows.shape[1])
        is_followed = (positions >= self.steps.first[:, None]) & (positions < self.steps.stop[:, None] - 1)
        sequence, step = np.nonzero(is_followed)
        envs = self.steps.envs[sequence]
        index, next_index = (rows[sequence, step + 1], envs), (rows[sequence, step], envs)
        if values is not None and not isinstance(self.next_array, CompressedArray):
            return _have_equal_bytes(values[sequence, step + 1], self.next_array[next_index])
        references, next_references = self.array.slots[index], self.next_array.slots[next_index]
        if references.dtype == object:
            # References are compared first: equal slots are mostly the same object.
            differ = np.frombuffer(references, dtype=np.int64) != np.frombuffer(next_references, dtype=np.int64)
            differ[differ] = [a != b for a, b in zip(references[differ], next_references[differ], strict=True)]
        else:
            differ = references != next_references
        if not differ.any():
            return True
        index, next_index = ((row[differ], env[differ]) for row, env in (index, next_index))
        return _have_equal_bytes(np.asarray(self.array[index]), np.asarray(self.next_array[next_index]))

    def _references(self) -> NDArray[Any]:
        references: NDArray[Any] = self.array.slots[self.index]
        if self.with_next:
            following = self.array if self.next_array is None else self.next_array
            references[self.ahead] = following.slots[self.ahead_index]
        return references

    def _located(self, error: CorruptPayload, step: int) -> CorruptPayload:
        slot = self.array._index_of_slot(self.index, step)
        return CorruptPayload(error.reason, step, slot)


def clear_padding(values: NDArray[Any], first: NDArray[np.int64], stop: NDArray[np.int64]) -> None:
    """Write zeros before the first step of each sequence, and from ``stop`` on.

    :param values: ``(batch, time, ...)``
    :param first: positions ``(batch,)``
    :param stop: positions ``(batch,)``
    """
    for sequence in np.flatnonzero(first > 0).tolist():
        values[sequence, : first[sequence]] = 0
    for sequence in np.flatnonzero(stop < values.shape[1]).tolist():
        values[sequence, stop[sequence] :] = 0


def _have_equal_bytes(first: NDArray[Any], second: NDArray[Any]) -> bool:
    if first.dtype.kind == "f":  # NaN equals itself here
        first, second = (np.ascontiguousarray(each).view(np.uint8) for each in (first, second))
    return np.array_equal(first, second)

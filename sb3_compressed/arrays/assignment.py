"""``encode_assigned``: encodes observations that are assigned by index, so that they share frames as in ``add``.

``add`` encodes one step after the other. Data sets are assigned instead: ``observations[:n] = ...``, then
``next_observations[:n] = ...``, or all rows of one environment. The next observation of a row is mostly the observation
of the following one, which is stored already, and other observations continue that of the row before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_layout import FrameLayout, follows
from sb3_compressed.arrays.observation_stream import ObservationStream
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.segment_log import UNWRITTEN
from sb3_compressed.errors import CorruptPayload

__all__ = ["copy_assigned", "encode_assigned"]

#: The most bytes of observations that are encoded in one call, and the most steps.
CHUNK_NBYTES, CHUNK_STEPS = 4_000_000, 64
#: Rows whose slots are copied in one call.
ROWS_PER_COPY = 1024


def encode_assigned(
    stream: ObservationStream,
    table: NDArray[np.int64],
    numbers: NDArray[np.int64],
    read_items: Callable[[NDArray[np.int64]], NDArray[Any]],
) -> NDArray[np.int64]:
    """Encode observations for their slots in an array, which does not change.

    :param stream: that of the array
    :param table: its references, ``(rows, n_envs)``
    :param numbers: the flat indices of their slots, ``row * n_envs + env``, ``(n,)``
    :param read_items: returns the observations at some positions from 0 to ``n - 1``, in the dtype that is stored
    :return: references to slots, ``(n,)``
    :raises Exception: if a codec raises
    """
    references = stream.log.new_table((len(numbers),))
    for positions in _streams(numbers, table.shape[1]) if len(numbers) else ():
        _encode_stream(stream, table, numbers, positions, read_items, references)
    return references


def copy_assigned(
    stream: ObservationStream, table: NDArray[np.int64], source: ObservationStream, slots: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Copy the slots of another array for the first rows of an array, which does not change.

    :param stream: that of the array
    :param table: its references, ``(rows, n_envs)``
    :param source: the stream of the other array, which has the same codec and layout
    :param slots: references to slots in it, ``(n_rows, n_envs)``
    :return: references to slots, ``(n_rows, n_envs)``
    :raises CorruptPayload: if one is damaged
    :raises OSError: if they cannot be written
    """
    n_rows, n_envs = slots.shape
    references = stream.log.new_table((n_rows * n_envs,))
    with stream.copier_from(source.log) as copier:
        for first in range(0, n_rows, ROWS_PER_COPY):
            part = slots[first : first + ROWS_PER_COPY].flatten()
            numbers = first * n_envs + np.arange(len(part))
            left = np.arange(len(part))
            try:
                for neighbors in _neighbors(stream, table, numbers):
                    left = np.flatnonzero((part != UNWRITTEN) & (neighbors != UNWRITTEN))
                    given = _gather(source, part[left])
                    found = left[given.equals(_gather(stream, neighbors[left]))]
                    references[numbers[found]] = neighbors[found]
                    part[found] = UNWRITTEN
                left = np.arange(len(part))
                references[numbers] += copier.copy(part)
            except CorruptPayload as error:
                index = int(numbers[left[error.index]])
                raise CorruptPayload(error.reason, index, divmod(index, n_envs)) from error
    return references.reshape(n_rows, n_envs)


def _gather(stream: ObservationStream, references: NDArray[np.int64]) -> PayloadBatch:
    """Return the payloads of slots of any number of frames."""
    return stream.log.gather(references, 0, stream.encoder.accepted)


def _streams(numbers: NDArray[np.int64], n_envs: int) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of observations that follow each other, ``(n_steps, n_streams)``.

    These are whole rows, or if only some environments are assigned, the rows of each of them.
    """
    order = np.argsort(numbers, kind="stable")
    is_whole = len(numbers) % n_envs == 0
    if is_whole:
        rows = numbers[order].reshape(-1, n_envs)
        first = rows[:, :1]
        is_whole = bool((rows == first + np.arange(n_envs)).all() and (first % n_envs == 0).all())
    if is_whole:
        yield order.reshape(-1, n_envs)
        return
    envs = numbers[order] % n_envs
    for env in np.unique(envs):
        yield order[envs == env][:, np.newaxis]


def _encode_stream(
    stream: ObservationStream,
    table: NDArray[np.int64],
    numbers: NDArray[np.int64],
    positions: NDArray[np.int64],
    read_items: Callable[[NDArray[np.int64]], NDArray[Any]],
    references: NDArray[Any],
) -> None:
    """Encode the observations at some positions, and write the references to their slots there.

    :param positions: ``(n_steps, n_streams)``
    :param references: ``(n,)``
    """
    width, item_shape = positions.shape[1], stream.encoder.item_shape
    step_nbytes = max(width * math.prod(item_shape) * stream.encoder.dtype.itemsize, 1)
    max_steps = min(max(CHUNK_NBYTES // step_nbytes, 1), CHUNK_STEPS)
    previous = _slots_before(table, numbers[positions[0]])
    for begin in range(0, len(positions), max_steps):
        chunk = positions[begin : begin + max_steps]
        at = chunk.reshape(-1)
        items = read_items(at)
        found, is_found = _shared_slots(stream, table, numbers[at], items)
        steps = items.reshape(*chunk.shape, *item_shape)
        is_new = np.logical_not(is_found.reshape(chunk.shape).all(axis=1))
        same_row = _same_row_of_other(stream, table, numbers[chunk], steps, is_new)
        edges = {*(np.flatnonzero(np.diff(is_new)) + 1).tolist(), *same_row} - {0}
        for run in np.split(np.arange(len(chunk)), sorted(edges)):
            first = int(run[0])
            if is_new[first]:
                if first in same_row:
                    previous = same_row[first]
                elif first:  # it continues what was found
                    previous = found[(first - 1) * width : first * width]
                encoded = stream.append_steps(steps[first : run[-1] + 1], previous)
                previous = encoded[-1]
                part = slice(first * width, (run[-1] + 1) * width)
                found[part] = np.where(is_found[part], found[part], encoded.reshape(-1))
        if not is_new[-1]:
            previous = found[-width:]
        references[at] = found


def _same_row_of_other(
    stream: ObservationStream,
    table: NDArray[np.int64],
    numbers: NDArray[np.int64],
    steps: NDArray[Any],
    is_new: NDArray[np.bool_],
) -> dict[int, NDArray[Any]]:
    """Return references to the slots of the same row in the other array of a stream, for steps that continue only it.

    That is so at the ends of episodes, and in data sets of transitions in any order.

    :param numbers: flat indices of slots, ``(n_steps, n_streams)``
    :param steps: observations, ``(n_steps, n_streams, *item_shape)``
    :param is_new: which steps are encoded, ``(n_steps,)``
    """
    slots: dict[int, NDArray[Any]] = {}
    layout = stream.layout
    for step in np.flatnonzero(is_new).tolist() if layout is not None else ():
        if step and _continues(layout, steps[step - 1], steps[step]):
            continue
        for other in stream.other_tables(table):
            references = other.reshape(-1)[numbers[step]]
            if (references != UNWRITTEN).all() and _continues(layout, stream.read(references), steps[step]):
                slots[step] = references
    return slots


def _continues(layout: FrameLayout | None, before: NDArray[Any], after: NDArray[Any]) -> bool:
    """Return whether observations continue others, ``(n_streams, *item_shape)`` each."""
    return layout is not None and all(
        follows(layout, old, new) for old, new in zip(_with_byte_axis(before), _with_byte_axis(after), strict=True)
    )


def _with_byte_axis(items: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(items)[..., np.newaxis].view(np.uint8)


def _slots_before(table: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[Any] | None:
    """Return references to the slots of the row before some slots of one row, ``None`` if one was not written."""
    n_envs = table.shape[1]
    if numbers[0] < n_envs or not table.flags.writeable:
        return None
    references = table.reshape(-1)[numbers - n_envs]
    return None if (references == UNWRITTEN).any() else references


def _shared_slots(
    stream: ObservationStream, table: NDArray[np.int64], numbers: NDArray[np.int64], items: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Find observations in the other array of their stream.

    :param numbers: the flat indices of their slots, ``(n,)``
    :param items: ``(n, *item_shape)``
    :return: references to the slots that were found, ``(n,)``, and for which observations, ``(n,)``
    """
    found = stream.log.new_table((len(numbers),))
    is_found = np.zeros(len(numbers), np.bool_)
    rows = _as_bytes(items)
    for neighbors in _neighbors(stream, table, numbers):
        candidates = np.flatnonzero(~is_found & (neighbors != UNWRITTEN))
        if len(candidates):
            stored = _as_bytes(stream.read(neighbors[candidates]))
            equal = candidates[(stored == rows[candidates]).all(axis=1)]
            found[equal], is_found[equal] = neighbors[equal], True
    return found, is_found


def _neighbors(
    stream: ObservationStream, table: NDArray[np.int64], numbers: NDArray[np.int64]
) -> Iterator[NDArray[Any]]:
    """Yield references to slots of the other array of a stream that may have the same observations.

    The next observation of a row is the observation of the following row, unless an episode ends.

    :param numbers: flat indices of slots, ``(n,)``
    """
    for other in stream.other_tables(table):
        for offset in (1, -1):
            yield other.reshape(-1)[(numbers + offset * table.shape[1]) % table.size]


def _as_bytes(items: NDArray[Any]) -> NDArray[np.uint8]:
    """Return items as rows of bytes, so that NaN equals itself."""
    rows = np.ascontiguousarray(items).reshape(len(items), -1)
    return rows.view(np.uint8) if rows.size else np.empty((len(items), 0), np.uint8)

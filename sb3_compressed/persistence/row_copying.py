"""Copying rows of observations from a buffer in memory to a folder, and back.

In this package, vectors are all observations that are in plain arrays in memory, of any shape. On disk, they are
uncompressed payloads, unless they are so small that they take less space in a plain array than the address of a slot.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.cast import cast_values
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import layout_from_state
from sb3_compressed.arrays.observation_stream import ObservationStream
from sb3_compressed.arrays.slot_copying import SlotCopier
from sb3_compressed.codecs import get_codec
from sb3_compressed.errors import CorruptPayload
from sb3_compressed.storage.log import Log

__all__ = ["RowCopier", "is_stored_as_slots", "row_copier"]

#: Smaller items take less space in an array than the address of a slot.
MIN_STORED_NBYTES = 32
#: Rows that are copied at a time, and how many bytes of plain arrays of observations these may have.
MAX_ROWS, MAX_PLAIN_NBYTES = 4096, 32 << 20


def is_stored_as_slots(item_shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether vectors of this shape and dtype are stored as slots."""
    return math.prod(item_shape) * dtype.itemsize >= MIN_STORED_NBYTES


class RowCopier(ABC):
    """Copies rows of the arrays of one stream of observations, which share slots, in a ``with`` block.

    :ivar max_rows: how many rows may be copied in one call
    """

    max_rows = MAX_ROWS
    #: Whether the folder stores the items exactly as these arrays would be saved.
    is_exact = True

    def __enter__(self) -> RowCopier:
        return self

    def __exit__(self, error: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Let the logs free slots again."""
        return

    @abstractmethod
    def save(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copy rows to the folder; return the addresses of their slots, ``(n_arrays, n_rows, n_envs)``.

        :raises OSError: if they cannot be written
        """

    @abstractmethod
    def load(self, rows: slice, addresses: NDArray[np.int64]) -> None:
        """Copy slots of the folder to rows.

        :param addresses: ``(n_arrays, n_rows, n_envs)``
        :raises CorruptPayload: if one is damaged
        """


def row_copier(
    arrays: Sequence[Any], log: Log, stored: np.dtype[Any] | None = None, layout: Sequence[int] | None = None
) -> RowCopier:
    """Return what copies rows of the arrays of a stream.

    :param arrays: the arrays, compressed or plain ones, of one shape and dtype
    :param log: the log of the folder
    :param stored: the dtype of plain arrays in the folder, if it is another one
    :param layout: the state of the layout by which the folder splits observations of plain arrays, if it does
    :raises ValueError: if the layout is invalid
    """
    if isinstance(arrays[0], CompressedArray):
        return CompressedRows(arrays, log)
    return Vectors(arrays, log, arrays[0].dtype if stored is None else stored, layout)


class CompressedRows(RowCopier):
    """Copies slots as they are; the arguments are those of :func:`row_copier`."""

    def __init__(self, arrays: Sequence[CompressedArray], log: Log) -> None:
        self._arrays, self._log = arrays, log
        self._copier: SlotCopier | None = None

    def __exit__(self, *error: object) -> None:
        if self._copier is not None:
            self._copier.__exit__()

    def save(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :meth:`RowCopier.save`."""
        if self._copier is None:
            stream, begin = self._arrays[0].stream, self._log.begin_segment_if_full
            self._copier = self._log.copier_from(stream.log, stream.encoder.accepted, before_claim=begin)
        return _copied(self._copier, np.stack([array.references[rows] for array in self._arrays]), rows)

    def load(self, rows: slice, addresses: NDArray[np.int64]) -> None:
        """See :meth:`RowCopier.load`."""
        if self._copier is None:
            self._copier = self._arrays[0].stream.copier_from(self._log)
        copies = _copied(self._copier, addresses, np.arange(rows.start, rows.stop))
        for array, references in zip(self._arrays, copies, strict=True):
            array.put_references(rows, references)


def _copied(copier: SlotCopier, references: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Copy slots.

    :param references: ``(n_arrays, n_rows, n_envs)``
    :param rows: their rows, ``(n_rows,)``
    :raises CorruptPayload: if one is damaged; the error names its slot
    """
    try:
        return copier.copy(references)
    except CorruptPayload as error:
        _, row, env = np.unravel_index(error.index, references.shape)
        raise CorruptPayload(error.reason, error.index, (int(rows[row]), int(env))) from error


class Vectors(RowCopier):
    """Encodes and decodes rows of plain arrays; the arguments are those of :func:`row_copier`."""

    def __init__(
        self, arrays: Sequence[NDArray[Any]], log: Log, stored: np.dtype[Any], layout: Sequence[int] | None
    ) -> None:
        self._arrays, self._log = arrays, log
        shape, self.is_exact = arrays[0].shape[2:], stored == arrays[0].dtype and not layout
        self._encoder = FrameEncoder(
            shape, stored, get_codec("none"), layout_from_state(shape, *layout) if layout else None
        )
        self.max_rows = min(MAX_ROWS, max(MAX_PLAIN_NBYTES // max(int(arrays[0][:1].nbytes), 1), 1))

    def save(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Write each item once of those that follow each other; see :meth:`RowCopier.save`."""
        items = np.stack([array[rows] for array in self._arrays], axis=1)  # [n_rows, n_arrays, n_envs, *item_shape]
        stream = ObservationStream(self._encoder, None, self._log)
        references = stream.append_steps(items.reshape(-1, *items.shape[2:]), None)
        return references.reshape(items.shape[:3]).swapaxes(0, 1)

    def load(self, rows: slice, addresses: NDArray[np.int64]) -> None:
        """See :meth:`RowCopier.load`."""
        _, n_rows, n_envs = addresses.shape

        def slot_of(position: int) -> tuple[int, int]:
            row, env = divmod(position % (n_rows * n_envs), n_envs)
            return rows.start + row, env

        stored = self._log.read(addresses.reshape(-1), self._encoder, self._encoder.dtype, slot_of)
        items = cast_values(stored, self._arrays[0].dtype).reshape(*addresses.shape, *self._encoder.item_shape)
        for array, each in zip(self._arrays, items, strict=True):
            array[rows] = each

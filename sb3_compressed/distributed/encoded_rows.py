"""Rows of a replay buffer as a block, which another buffer takes without decoding them.

Each stream of observations is a payload batch of the observations and the next observations of all rows, in which each
frame occurs once; everything else are plain arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.codecs import Codec
from sb3_compressed.distributed.block import Block
from sb3_compressed.persistence.buffer_state import named_arrays

__all__ = ["append_rows", "block_of", "require_fitting", "stored_dtype"]

OBSERVATIONS, NEXT_OBSERVATIONS = "observations", "next_observations"


def block_of(buffer: CompressedReplay, rows: NDArray[np.int64]) -> Block:
    """Return rows of a compressed replay buffer in memory, which has next observations, for :func:`append_rows`.

    :param rows: the numbers of the rows, in their order of time
    :return: plain arrays ``(n_rows, n_envs, ...)``; by the name of its observations, each compressed stream: first the
        observations, then the next observations, each in the order of an array ``(n_rows, n_envs)``
    """
    layouts: dict[str, FrameLayout | None] = {}
    block = Block({"n_rows": len(rows), "formats": _formats_of(buffer), "layouts": layouts})
    all_arrays = named_arrays(buffer)
    for name, array in all_arrays.items():
        if not isinstance(array, CompressedArray):
            block.arrays[name] = array[rows]
        elif name.startswith(OBSERVATIONS):
            slots = np.concatenate((array.references[rows], all_arrays[f"next_{name}"].references[rows]))
            layouts[name] = array.layout
            block.batches[name] = array.stream.gather(slots.reshape(-1))
    return block


def require_fitting(block: Block, buffer: CompressedReplay) -> None:
    """Raise unless the rows that :func:`block_of` returned are those of such a buffer.

    :raises ValueError: if they have other arrays, shapes or dtypes
    """
    if block.values["formats"] != _formats_of(buffer):
        raise ValueError(f"the rows are {block.values['formats']}, those of the ring {_formats_of(buffer)}")


def append_rows(buffer: CompressedReplay, block: Block) -> None:
    """Append the rows of a block to a buffer, as ``add`` does one after the other, in one transaction.

    :raises CorruptPayload: if a payload that must be decoded is damaged
    :raises OSError: if the folder of the buffer cannot be written; the buffer is then as it was
    """
    arrays = named_arrays(buffer)
    streams = [
        Stream(block, name, array)
        for name, array in arrays.items()
        if name.startswith(OBSERVATIONS) and isinstance(array, CompressedArray)
    ]
    compressed = {name for stream in streams for name in (stream.name, f"next_{stream.name}")}
    plain = {name: array for name, array in block.arrays.items() if name not in compressed}
    n_rows, size = block.values["n_rows"], buffer.buffer_size
    # A transaction has fewer rows than the buffer.
    n_most = max(size - 1, 1)
    for first in range(0, n_rows, n_most):
        rows = range(first, min(first + n_most, n_rows))
        # Before the first row is written: this may fail, for example on a full disk.
        before = [arrays[f"next_{stream.name}"].references[buffer.pos - 1] for stream in streams]
        encoded = [stream.encoded(rows, previous) for stream, previous in zip(streams, before, strict=True)]
        with buffer.joint_commit(len(rows)):
            for number, row in enumerate(rows):
                pos = buffer.pos
                for stream, references in zip(streams, encoded, strict=True):
                    arrays[stream.name].write_encoded(pos, references[number, 0])
                    arrays[f"next_{stream.name}"].write_encoded(pos, references[number, 1])
                for name, array in plain.items():
                    arrays[name][pos] = array[row]
                if pos + 1 == size:
                    buffer.full = True
                buffer.pos = (pos + 1) % size
        if buffer.bound_sampler is not None:  # for a folder, the commit did this already, and nothing happens
            buffer.bound_sampler.add_rows(buffer, len(rows))


class Stream:
    """The observations and next observations of some rows, and the compressed array that encodes them.

    :param block: the rows
    :param name: the name of the observations
    :param array: that of the buffer
    :raises CorruptPayload: if a payload that must be decoded is damaged
    """

    def __init__(self, block: Block, name: str, array: CompressedArray) -> None:
        self.name, self._array = name, array
        #: Encoded items, or without them values, of which the first half are those of the observations.
        self._batch: PayloadBatch | None = None
        n_rows, n_envs = self._shape = block.values["n_rows"], array.shape[1]
        if name not in block.batches:
            self._values = np.stack((block.arrays[name], block.arrays[f"next_{name}"]))
            return
        batch, layout = block.batches[name], block.values["layouts"][name]
        if _accepts(array, batch.codecs, layout):
            if layout is not None and array.layout is None:
                array.stream.set_layout(layout)
            self._batch = batch
            return
        values = np.empty((batch.n_items, *array.shape[2:]), stored_dtype(array))
        decode(batch, layout, values)
        self._values = values.reshape(2, n_rows, n_envs, *array.shape[2:])

    def encoded(self, rows: range, previous: NDArray[np.int64]) -> Any:
        """Return references to the slots of some rows, ``(n_rows, 2, n_envs)``, in a table that keeps them.

        :param previous: references to the next observations of the row before, ``(n_envs,)``
        :raises OSError: if slots cannot be written
        """
        array, (n_all, n_envs) = self._array, self._shape
        stream = array.stream
        stream.log.count_overwritten(2 * len(rows) * n_envs)
        references = stream.log.new_table((len(rows), 2, n_envs))
        if self._batch is None:
            for number, row in enumerate(rows):
                references[number] = stream.append(*map(array.validated_row, self._values[:, row]))
            return references
        halves = np.arange(2 * n_all * n_envs).reshape(2, n_all, n_envs)
        items = halves[:, rows.start : rows.stop].swapaxes(0, 1)  # [rows, halves, envs]
        references[:] = stream.append_encoded(self._batch, items.flatten(), previous.copy()).reshape(references.shape)
        return references


def _accepts(array: CompressedArray, codecs: Any, layout: FrameLayout | None) -> bool:
    """Return whether an array can store payloads of these codecs and this layout."""
    accepted = array.stream.encoder.accepted
    if not all(codec == accepted if isinstance(accepted, Codec) else type(codec) is accepted for codec in codecs):
        return False
    return layout is None or array.layout is None or layout == array.layout


def _formats_of(buffer: CompressedReplay) -> dict[str, Any]:
    """Return what must be equal in buffers that exchange rows: shapes and dtypes by the names of arrays."""
    return {
        name: (array.shape[1:], array.dtype.str, stored_dtype(array).str)
        for name, array in named_arrays(buffer).items()
    }


def stored_dtype(array: Any) -> np.dtype[Any]:
    """Return the dtype that the elements of an array are stored in."""
    dtype: np.dtype[Any] = array.elem_type if isinstance(array, CompressedArray) else array.dtype
    return dtype

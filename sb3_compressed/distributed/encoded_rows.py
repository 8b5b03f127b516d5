"""Rows of a replay buffer as a block, and ``EncodedRows``, which another buffer takes without decoding them.

Each stream of observations is a payload batch of the observations and the next observations of all rows, in which each
frame occurs once; everything else are plain arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.codec_handle import handle_of
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout, layout_from_state, layout_to_state
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_store import Slot, pack_slot
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.distributed.block import Block
from sb3_compressed.errors import CorruptPayload
from sb3_compressed.persistence.buffer_state import named_arrays

__all__ = ["EncodedRows", "block_of", "layout_of", "stored_dtype"]

OBSERVATIONS, NEXT_OBSERVATIONS = "observations", "next_observations"
#: Rows whose slots are stored at a time.
CHUNK = 64


def block_of(buffer: CompressedReplay, rows: NDArray[np.int64]) -> Block:
    """Return rows of a compressed replay buffer in memory, which has next observations, for :class:`EncodedRows`.

    :param rows: the numbers of the rows, in their order of time
    """
    formats: dict[str, list[Any]] = {}
    layouts: dict[str, list[int] | None] = {}
    block = Block({"rows": len(rows), "envs": buffer.n_envs, "formats": formats, "layouts": layouts})
    all_arrays = named_arrays(buffer)
    for name, array in all_arrays.items():
        if not isinstance(array, CompressedArray):
            block.arrays[name] = array[rows]
        elif name.startswith(OBSERVATIONS):
            slots = np.concatenate((array.slots[rows], all_arrays[f"next_{name}"].slots[rows]))
            layout = array.layout
            formats[name], layouts[name] = _format_of(array), layout_to_state(layout)
            block.batches[name] = array.store.gather(slots.reshape(-1), 1 if layout is None else layout.n_frames)
    return block


@dataclass
class EncodedRows:
    """Consecutive rows of a replay buffer.

    :param n_rows: the number of rows
    :param n_envs: the number of environments
    :param layouts: how the items of each compressed stream are divided into frames, by the name of its observations
    :param arrays: plain arrays ``(n_rows, n_envs, ...)`` by their names
    :param batches: by the name of its observations, the items of each compressed stream: first the observations, then
        the next observations, each in the order of an array ``(n_rows, n_envs)``
    """

    n_rows: int
    n_envs: int
    layouts: dict[str, FrameLayout | None]
    arrays: dict[str, NDArray[Any]]
    batches: dict[str, PayloadBatch]

    @classmethod
    def from_block(cls, block: Block, buffer: CompressedReplay) -> EncodedRows:
        """Return the rows that :func:`block_of` returned, which must fit a buffer.

        :raises CorruptPayload: if they do not
        """
        all_arrays = named_arrays(buffer)
        try:
            n_rows, n_envs, formats, states = (block.values[name] for name in ("rows", "envs", "formats", "layouts"))
            if type(n_rows) is not int or n_rows < 1 or n_envs != buffer.n_envs:
                raise ValueError(f"{n_rows!r} rows of {n_envs!r} environments")
            expected_formats = {name: _format_of(all_arrays[name]) for name in block.batches}
            if formats != expected_formats:
                raise ValueError(f"the items are {formats}, those of the buffer {expected_formats}")
            layouts = {name: layout_of(all_arrays[name].shape[2:], states[name]) for name in block.batches}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptPayload(f"the rows do not fit the buffer: {error!r}") from error
        given = {*block.arrays, *block.batches, *(f"next_{name}" for name in block.batches)}
        if given != set(all_arrays):
            raise CorruptPayload(f"the rows have the arrays {sorted(given)}, the buffer has {sorted(all_arrays)}")
        for name, array in block.arrays.items():
            expected = (n_rows, *all_arrays[name].shape[1:])
            if array.shape != expected or array.dtype != all_arrays[name].dtype:
                found = f"{array.shape} of {array.dtype}"
                raise CorruptPayload(f"{name} must be {expected} of {all_arrays[name].dtype}, got {found}")
        for name, batch in block.batches.items():
            layout = layouts[name]
            if batch.n_items != 2 * n_rows * n_envs or batch.n_frames != (1 if layout is None else layout.n_frames):
                raise CorruptPayload(f"{name} has {batch.n_items} items of {batch.n_frames} frames")
        return cls(n_rows, n_envs, layouts, block.arrays, block.batches)

    def append_to(self, buffer: CompressedReplay) -> None:
        """Append the rows to a buffer, as ``add`` does one after the other, in one transaction.

        :raises OSError: if the folder of the buffer cannot be written; the buffer is then as it was
        """
        all_arrays = named_arrays(buffer)
        streams = {name: Stream(self, name, all_arrays) for name in all_arrays if name.startswith(OBSERVATIONS)}
        plain = [name for name in self.arrays if name.removeprefix("next_") not in streams]
        size = buffer.buffer_size
        # A transaction has fewer rows than the buffer.
        n_most = max(size - 1, 1)
        for first in range(0, self.n_rows, n_most):
            rows = range(first, min(first + n_most, self.n_rows))
            # Before the first row is written: this may fail, for example on a full disk.
            encoded = [stream.encoded(rows) for stream in streams.values()]
            with buffer.joint_commit(len(rows)):
                for number, row in enumerate(rows):
                    pos = buffer.pos
                    for stream, values in zip(streams.values(), encoded, strict=True):
                        stream.write(pos, values[number])
                    for name in plain:
                        all_arrays[name][pos] = self.arrays[name][row]
                    buffer.pos = (pos + 1) % size
                    buffer.full = buffer.full or buffer.pos == 0
            if buffer.bound_sampler is not None:  # for a folder, the commit did this already, and nothing happens
                buffer.bound_sampler.add_rows(buffer, len(rows))


class Stream:
    """One stream of observations of some rows, and the arrays of a buffer that receive it.

    :param name: the name of the observations
    :param arrays: the arrays of the buffer
    :raises CorruptPayload: if a payload that must be decoded is damaged
    """

    def __init__(self, rows: EncodedRows, name: str, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays[name], arrays[f"next_{name}"]
        self._slots: tuple[list[list[Slot]], list[list[Slot]]] | None = None
        if name not in rows.batches:
            self._values = rows.arrays[name], rows.arrays[f"next_{name}"]
            return
        batch, layout = rows.batches[name], rows.layouts[name]
        array = self._arrays[0]
        shape = rows.n_rows, rows.n_envs
        if isinstance(array, CompressedArray) and _accepts(array, batch.codecs, layout):
            if layout is not None and array.layout is None:
                array.set_layout(layout)
            slots = slots_of(batch)
            split = [slots[first : first + shape[1]] for first in range(0, len(slots), shape[1])]
            self._slots = split[: shape[0]], split[shape[0] :]
            return
        values = np.empty((batch.n_items, *array.shape[2:]), stored_dtype(array))
        decode(batch, layout, values)
        observations, next_observations = values.reshape(2, *shape, *array.shape[2:])
        self._values = observations, next_observations

    def encoded(self, rows: range) -> Sequence[Any]:
        """Return what :meth:`write` writes for some rows.

        :raises OSError: if slots cannot be written
        """
        array = self._arrays[0]
        if self._slots is not None:
            references: list[NDArray[Any]] = []
            for first in range(rows.start, rows.stop, CHUNK):
                part = range(first, min(first + CHUNK, rows.stop))
                slots = [slot for row in part for pair in self._slots for slot in pair[row]]
                references += [*array.store_slots(slots).reshape(len(part), 2, -1)]
            return references
        pairs = [tuple(values[row] for values in self._values) for row in rows]
        if isinstance(array, CompressedArray):
            return [array.encode_rows(*map(array.validated_row, pair)) for pair in pairs]
        return pairs

    def write(self, pos: int, pair: Any) -> None:
        """Write one of the rows to the arrays.

        :param pair: from :meth:`encoded`
        """
        for array, values in zip(self._arrays, pair, strict=True):
            if isinstance(array, CompressedArray):
                array.write_encoded(pos, values)
            else:
                array[pos] = values


def _accepts(array: CompressedArray, codecs: Any, layout: FrameLayout | None) -> bool:
    """Return whether an array can store payloads of these codecs and this layout."""
    accepted = array.store.codec
    if not all(codec == accepted if isinstance(accepted, Codec) else type(codec) is accepted for codec in codecs):
        return False
    return layout is None or array.layout is None or layout == array.layout


def slots_of(batch: PayloadBatch) -> list[Slot]:
    """Return the items of a batch as slots in memory; payloads that they share are the same objects."""
    places, codecs = batch.payloads.places, batch.codecs
    objects: dict[tuple[int, int], bytes] = {}
    payloads: list[bytes] = []
    for address, length, writer in places.tolist():
        key = address, writer
        payload = objects.get(key)
        if payload is None or len(payload) != length:
            payload = objects[key] = ctypes.string_at(address, length)
        payloads.append(payload)
    writers = places[:, 2].tolist()
    offsets = batch.offsets.tolist()
    handles = [handle_of(codec) for codec in codecs if isinstance(codec, TrainableCodec)]  # all of them, or none
    slots: list[Slot] = []
    for begin, end in pairwise(offsets):
        item: Any = payloads[begin:end]
        if not item:
            slots.append(None)
        elif handles:
            slots.append(pack_slot([handles[writer] for writer in writers[begin:end]], item))
        else:
            slots.append(tuple(item) if batch.n_frames > 1 and len(item) > 1 else item[0])
    return slots


def _format_of(array: Any) -> list[Any]:
    """Return the shape and dtype in which the items of an array are encoded, for JSON."""
    return [list(array.shape[2:]), stored_dtype(array).str]


def stored_dtype(array: Any) -> np.dtype[Any]:
    """Return the dtype that the elements of an array are stored in."""
    dtype: np.dtype[Any] = array.elem_type if isinstance(array, CompressedArray) else array.dtype
    return dtype


def layout_of(item_shape: tuple[int, ...], state: Any) -> FrameLayout | None:
    """Return the layout that :func:`layout_to_state` returned.

    :raises CorruptPayload: if items of this shape cannot have it
    """
    try:
        return None if state is None else _cached_layout(item_shape, *state)
    except (TypeError, ValueError) as error:
        raise CorruptPayload(f"the layout {state!r} is invalid: {error}") from error


_cached_layout = cache(layout_from_state)  # it is needed for each batch

"""``CompressedArray``: an array of observations that is stored compressed, with the interface of an ndarray."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_compressed.arrays.array_like import ArrayLike
from sb3_compressed.arrays.assignment import copy_assigned, encode_assigned
from sb3_compressed.arrays.batch_pool import Empty, checked_empty
from sb3_compressed.arrays.cast import cast_values, clip_values, holds_every_value
from sb3_compressed.arrays.change_flags import ChangeFlags
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout, FrameStack, FrameStackDetector, explicit_layout
from sb3_compressed.arrays.indexing import basic_index, has_ellipsis, item_of, row_of, slot_numbers, split_index
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.observation_stream import ObservationStream
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.segment_log import UNWRITTEN
from sb3_compressed.arrays.slot_log import SlotLog, SlotOf
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.common.threads import validate_num_threads
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import CorruptPayload, LossyDtypeWarning, old_pickle

__all__ = ["CompressedArray"]


class CompressedArray(ArrayLike):
    """A compressed array of observations, of shape ``(rows, n_envs, *item_shape)``: a table of references to slots.

    It is indexed like an ndarray. Reading decodes into a new array, writing encodes a copy, and unwritten items read as
    zeros. Where NumPy returns a view, the new array is read-only: write by ``array[index] = value``. When rows are
    written one after the other, frames that an observation shares with the previous one are stored once.

    >>> import numpy as np
    >>> from sb3_compressed import CompressedArray
    >>> array = CompressedArray((1000, 2, 4, 84, 84), np.uint8, codec="zstd3", frame_stack=4)
    >>> frames = np.zeros((2, 4, 84, 84), np.uint8)
    >>> for step in range(1000):  # two environments, four stacked frames
    ...     frames = np.roll(frames, -1, axis=1)
    ...     frames[:, -1, step % 84] = 255
    ...     array[step] = frames
    >>> array[[10, 999], [0, 1]].shape
    (2, 4, 84, 84)
    >>> array.raw_nbytes // array.nbytes > 100
    True

    Reading and writing work for any index into the first two axes (integers, slices, integer and boolean arrays,
    negative indices, ``...``), with whole items or basic indices after it. ``swapaxes`` and ``reshape`` of the leading
    axes return read-only views on the same slots. NumPy's functions, operators and methods decode the whole array, or
    raise ``MemoryError`` where that does not fit into memory.

    :param shape: ``(rows, n_envs, *item_shape)``
    :param dtype: any boolean, integer or floating dtype
    :param codec: a codec, or the shorthand of one as in :func:`~sb3_compressed.get_codec`
    :param frame_stack: how items are divided into frames: detected from the data (``"auto"``), a number of frames along
        the first or the last axis of an item, or ``None`` for items that are not stacks
    :param elem_type: dtype to store values in, if not ``dtype``. A narrower one is lossy and warns:
        values are clipped to the range of an integer type and rounded to a floating one
    :param num_threads: how many threads decode large reads; ``None`` for the number of cores, four at most
    :param new_log: creates the log of its slots for a codec, ``None`` for one in memory
    :raises ValueError: for an invalid argument
    :ivar stream: encodes, keeps and decodes its items, and those of the arrays that share frames with it
    :ivar is_view: whether it is a view of another array, which cannot be written to
    """

    is_view = False

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike = np.uint8,
        codec: str | Codec = "auto",
        frame_stack: FrameStack = "auto",
        *,
        elem_type: DTypeLike | None = None,
        num_threads: int | None = None,
        new_log: Callable[[Codec], SlotLog] | None = None,
    ) -> None:
        self.num_threads = validate_num_threads(num_threads)
        if len(shape) < 2 or min(shape) < 0:
            raise ValueError(f"shape must be (rows, n_envs, *item_shape) without negative numbers, got {shape}")
        self.dtype = np.dtype(dtype)
        self.itemsize = self.dtype.itemsize
        stored = self.dtype if elem_type is None else np.dtype(elem_type)
        for kind in (self.dtype, stored):
            if kind.kind not in "biuf":
                raise ValueError(f"dtype must be boolean, integer or floating, got {kind}")
        if not holds_every_value(stored, self.dtype):
            warn_user(
                f"values of dtype {self.dtype} are stored as {stored}, which is narrower: values that do not fit are "
                "clipped or rounded",
                LossyDtypeWarning,
            )
        rows, n_envs, *item_shape = (int(length) for length in shape)
        is_detected = isinstance(frame_stack, str) and frame_stack == "auto"
        layout = None if is_detected or frame_stack is None else explicit_layout(tuple(item_shape), frame_stack)  # type: ignore[arg-type]
        encoder = FrameEncoder(tuple(item_shape), stored, get_codec(codec), layout)
        detector = FrameStackDetector(tuple(item_shape), stored.itemsize)
        is_used = is_detected or layout in detector.candidates  # an explicit layout is compared with what is detected
        log = MemoryLog() if new_log is None else new_log(encoder.codec)
        self.stream = ObservationStream(encoder, detector if is_used else None, log)
        self._changes = ChangeFlags()
        self._set_table(None, (rows, n_envs))
        if not log.is_on_device:  # the warning is about the memory of the process
            self.stream.set_capacity(rows * n_envs)
        self.stream.join(self)

    def _set_table(self, table: NDArray[Any] | None, shape: tuple[int, ...] = ()) -> None:
        """Set the table of references.

        :param table: ``None`` for an unwritten one, which takes no memory before the first write
        :param shape: its shape
        """
        self._table = np.broadcast_to(UNWRITTEN, shape) if table is None else table
        if table is not None:
            self.stream.log.watch(table)
        # Attributes, since each sample reads them several times.
        self.item_shape = self.stream.encoder.item_shape
        self.shape = self._table.shape + self.item_shape
        self.ndim, self.size = len(self.shape), math.prod(self.shape)

    # -- attributes ------------------------------------------------------------------------------------------

    @property
    def slots(self) -> NDArray[Any]:
        """The compressed bytes of its slots: an object array ``(rows, n_envs)``, which is built for each call.

        A slot is the ``bytes`` of its item, a tuple of those of its frames, the oldest one first, or ``None`` if it was
        never written. Payloads that slots share are the same objects.

        :raises CorruptPayload: if one is damaged
        """
        stream = self.stream
        with stream.log.keep_slots():
            # Of any number of frames, and kernels take no read-only arrays.
            batch = stream.log.gather(self._table.flatten(), 0, stream.encoder.accepted)
            return batch.as_objects().reshape(self._table.shape)

    @property
    def references(self) -> NDArray[Any]:
        """The table of references to its slots, ``(rows, n_envs)``.

        Before the first write it is a read-only placeholder that takes no memory. References are addresses in the log
        of its stream; 0 is a slot that was never written.
        """
        return self._table

    @property
    def codec(self) -> Codec:
        """The codec of its payloads."""
        return self.stream.encoder.codec

    @property
    def elem_type(self) -> np.dtype[Any]:
        """The dtype its values are stored in."""
        return self.stream.encoder.dtype

    @property
    def layout(self) -> FrameLayout | None:
        """How items are divided into frames; ``None`` if they are not, or as long as that is not known."""
        return self.stream.encoder.layout

    @property
    def n_frames(self) -> int:
        """How many frames an item is divided into, 1 until the layout is found."""
        return self.stream.encoder.n_frames

    @property
    def nbytes(self) -> int:
        """The memory of its stream and its table in bytes: arrays that share frames are of one stream."""
        return self.stream.nbytes(self._table)

    @property
    def raw_nbytes(self) -> int:
        """The memory that an ndarray of this shape and dtype takes, in bytes."""
        nbytes: int = self.size * self.itemsize
        return nbytes

    def __repr__(self) -> str:
        return f"CompressedArray(shape={self.shape}, dtype={self.dtype}, codec={self.codec!r})"

    # -- reading ---------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """Decode the items at ``index`` into a new array of the shape that NumPy returns.

        Where NumPy returns a view, the result is read-only, so that no write to it is lost silently.

        :raises CorruptPayload: if a payload is damaged; the error names its slot
        :raises MemoryError: if there is not enough memory
        """
        slot_index, item_index = split_index(index, self._table.ndim, self.ndim)
        basic = None if slot_index and type(slot_index[0]) is np.ndarray else basic_index(slot_index)
        slot_index = slot_index if basic is None else basic
        with self.stream.log.keep_slots():
            references = self._table[(*slot_index, ...)]  # an array, even of a single slot
            leading_shape = references.shape
            references = references.flatten()  # kernels take no read-only arrays, as those of unwritten ones are
            slot_of = partial(self._index_of_slot, slot_index)
            items = self.stream.read(references, self.dtype, slot_of, num_threads=self.num_threads)
        items.flags.writeable = basic is None  # views of a read-only array cannot be made writable
        out = items.reshape(leading_shape + self.item_shape)
        if item_index:
            out = out[(slice(None),) * len(leading_shape) + (*item_index, ...)]
        return out if out.ndim or has_ellipsis(index) else out[()]  # NumPy returns scalars

    def read(
        self,
        indices: NDArray[np.int64],
        other: CompressedArray | None = None,
        other_indices: NDArray[np.int64] | None = None,
        *,
        empty: Empty = checked_empty,
    ) -> Any:
        """Decode items into a new array ``(n + m, *item_shape)``, or a tensor if they are on a device.

        :param indices: the flat indices of the items, ``row * n_envs + env``, ``(n,)``
        :param other: an array that shares frames with this one, of which further items are decoded together with those
            of this array, which takes less time
        :param other_indices: their flat indices, ``(m,)``
        :param empty: allocates the memory that items are decoded into, as :func:`numpy.empty` does
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        :raises MemoryError: if there is not enough memory
        """
        while True:
            references, slot_of = self._references_at(indices, other, other_indices)
            try:
                return self.stream.read(
                    references, self.dtype, slot_of, empty=empty, num_threads=self.num_threads, to_host=False
                )
            except CorruptPayload:
                # A handler of a signal, which interrupts this call, may overwrite these rows, as in SB3.
                if np.array_equal(references, self._references_at(indices, other, other_indices)[0]):
                    raise

    def payloads(
        self, indices: NDArray[np.int64], other: CompressedArray, other_indices: NDArray[np.int64]
    ) -> PayloadBatch:
        """Return the payloads of items, to be decoded in another process; the arguments are those of :meth:`read`.

        :raises CorruptPayload: if a slot is invalid; the error names it
        """
        with self.stream.log.keep_slots():
            return self.stream.gather(*self._references_at(indices, other, other_indices))

    def _references_at(
        self,
        indices: NDArray[np.int64],
        other: CompressedArray | None,
        other_indices: NDArray[np.int64] | None,
    ) -> tuple[NDArray[Any], SlotOf]:
        """Return references to slots, and a function that returns the index of the slot at a position among them."""
        for each in (indices, other_indices):
            if each is not None and each.ndim != 1:  # kernels write as many items as there are indices
                raise ValueError(f"indices must be vectors, got an array of shape {each.shape}")
        references = self._table.reshape(-1).take(indices)
        if other is not None and other_indices is not None:
            if other.stream is not self.stream:
                self.require_same_stream(other)
            references = np.concatenate((references, other._table.reshape(-1).take(other_indices)))

        shape, size = self._table.shape, self._table.size  # not the array, which would keep its payloads

        def slot_of(position: int) -> tuple[int, ...]:
            if position < len(indices) or other_indices is None:
                index = indices[position]
            else:
                index = other_indices[position - len(indices)]
            return tuple(int(i) for i in np.unravel_index(index % size, shape))

        return references, slot_of

    def _index_of_slot(self, slot_index: tuple[Any, ...], position: int) -> tuple[int, ...]:
        """Return the index of the slot at ``position`` among those that ``slot_index`` selects."""
        numbers = np.arange(self._table.size).reshape(self._table.shape)
        number = np.atleast_1d(numbers[slot_index]).ravel()[position]
        return tuple(int(i) for i in np.unravel_index(number, self._table.shape))

    def prepare(self) -> None:
        """Import and compile everything that the first write and read need."""
        from sb3_compressed.arrays import frame_dedup_kernels  # noqa: F401

        self.stream.log.prepare()
        self.codec.prepare()

    # -- writing ---------------------------------------------------------------------------------------------

    def __setitem__(self, index: Any, value: Any) -> None:
        """Encode ``value`` into the slots at ``index``; it may broadcast as in NumPy. No reference to it is kept.

        Items share frames with those of the row before, and with those of the other array of their stream, such as
        ``next_observations``. Writing many rows at once is fastest. If the index selects parts of items, these are
        decoded, changed and encoded again.

        :raises ValueError: if the shape or a value does not fit; nothing is changed then
        :raises TypeError: if ``value`` is not numeric
        """
        slot_index, item_index = split_index(index, self._table.ndim, self.ndim)
        if item_index:
            items = np.array(self[slot_index])
            n_leading = items.ndim - len(self.item_shape)
            items[(slice(None),) * n_leading + item_index] = cast_values(np.asarray(value), self.dtype)
            self[slot_index] = items
            return
        if self.is_view:
            raise ValueError("a view of a compressed array is read-only: assign to the array itself")
        single = item_of(slot_index, self._table.shape)
        if single is not None and self._set_item(*single, value):
            return
        selected = self._table[slot_index]
        shape = selected.shape if isinstance(selected, np.ndarray) else ()
        log = self.stream.log
        log.count_overwritten(math.prod(shape))
        values = self._stored_values(value)
        with log.keep_slots():
            references = self._encode_at(slot_index, shape, values)
            self._replace_slots(slot_index, references.reshape(shape) if shape else references[0])
            if single is not None:
                self.stream.continue_item(single[1], np.ascontiguousarray(references))

    def _encode_at(self, slot_index: tuple[Any, ...], shape: tuple[int, ...], values: NDArray[Any]) -> NDArray[Any]:
        """Return references to new slots for values that are assigned to the slots at an index.

        :param shape: the shape of what the index selects
        """
        is_of_rows = self._table.ndim == 2  # otherwise it is a copy of a view, whose rows do not follow each other
        row = row_of(slot_index, self._table.shape) if is_of_rows else None
        if row is not None and not self.stream.is_filled_alone(self, row):
            row_values = self._broadcast(values, shape).reshape(self.shape[1:])
            return self.stream.append(row_values).reshape(-1)
        if shape and values.ndim <= len(self.item_shape):  # one item for all of them
            return np.broadcast_to(self.stream.append_apart(self._broadcast(values, (1,))), math.prod(shape))
        items = self._broadcast(values, shape).reshape(math.prod(shape), *self.item_shape)
        if not is_of_rows or not len(items):
            return self.stream.append_apart(items) if len(items) else np.empty(0, self._table.dtype)
        numbers = slot_numbers(basic_index(slot_index) or slot_index, self._table)
        return encode_assigned(self.stream, self._table, numbers, lambda positions: items[positions])

    def _set_item(self, row: int, env: int, value: Any) -> bool:
        """Write an item that continues the one written last for its environment; return whether that was possible.

        Code that writes each environment in turn does so.
        """
        if self.stream.is_filled_alone(self, row, env):
            return False
        stream = self.stream
        stream.log.count_overwritten(1)
        item = self._broadcast(self._stored_values(value), ())
        with stream.log.keep_slots():
            references = stream.append_item(env, item)
            if references is not None:
                self._replace_slots((row, env), references[0])
        return references is not None

    def assign(self, values: Any) -> None:
        """Copy the values of a whole array, ``array[...] = values``; of one that is compressed equally, its payloads.

        :param values: of the shape of this array; an array-like that is read in parts, such as another
            ``CompressedArray`` or a data set in a file
        :raises ValueError: if the shape or a value does not fit; nothing is changed then
        :raises TypeError: if the values are not numeric
        """
        self.prepare_assignment(values)()

    def prepare_assignment(self, values: Any) -> Callable[[], None]:
        """Encode what :meth:`assign` writes, and return a function that writes it."""
        if tuple(values.shape) != self.shape:
            raise ValueError(f"cannot assign values of shape {tuple(values.shape)} to an array of shape {self.shape}")
        if self.is_view or self._table.ndim != 2:
            return partial(self.__setitem__, ..., np.asarray(values))
        stream = self.stream
        stream.log.count_overwritten(self._table.size)
        with stream.log.keep_slots():  # until they are in tables
            if isinstance(values, CompressedArray) and values.has_same_format_as(self):
                if self.layout is None and values.layout is not None:
                    stream.set_layout(values.layout)
                references = copy_assigned(stream, self._table, values.stream, values.references)
            else:
                n_envs = self.shape[1]

                def read_items(positions: NDArray[np.int64]) -> NDArray[Any]:
                    rows = slice(int(positions[0]) // n_envs, int(positions[-1]) // n_envs + 1)
                    return self._stored_values(values[rows]).reshape(len(positions), *self.item_shape)

                references = encode_assigned(stream, self._table, np.arange(self._table.size), read_items)
        return partial(self._replace_slots, ..., references.reshape(self._table.shape))

    def _replace_slots(self, index: Any, references: Any) -> None:
        self._allocate()
        self._changes.mark(index)
        self._table[index] = references

    def may_replace(self, other: CompressedArray, *, may_be_flat: bool = False) -> bool:
        """Return whether this array can replace another one of its stream.

        :param may_be_flat: whether it may have one axis of rows and environments, as in ``get`` of rollout buffers
        """
        if self.stream is not other.stream:
            return False
        is_flat = self._table.shape == (other._table.size,)
        return (may_be_flat and is_flat) or (not self.is_view and self.shape == other.shape)

    def require_same_stream(self, other: CompressedArray) -> None:
        """Raise if another array does not have the codec, the format and the frames of this one.

        :raises ValueError: then
        """
        if other.stream is not self.stream:
            raise ValueError(
                f"observations are {self.dtype} of shape {self.item_shape}, and next observations {other.dtype} of "
                f"shape {other.item_shape}: assign arrays of equal formats to both"
            )

    def has_same_format_as(self, other: CompressedArray) -> bool:
        """Return whether the slots of this array can be slots of another one, whose layout may not be known yet."""
        formats = [
            (each.item_shape, each.dtype, each.elem_type, each.stream.encoder.accepted) for each in (self, other)
        ]
        may_take_layout = other.layout is None and not other.is_view
        return formats[0] == formats[1] and (may_take_layout or self.layout in (None, other.layout))

    def validated_row(self, value: Any) -> NDArray[Any]:
        """Return observations of all environments in the shape and dtype that they are stored in.

        :param value: observations ``(n_envs, *item_shape)``, or an array that broadcasts to this shape
        :raises ValueError: if the shape or a value does not fit
        :raises TypeError: if ``value`` is not numeric
        """
        shape = self._table.shape[1:]
        if (
            type(value) is np.ndarray
            and value.dtype == self.dtype == self.elem_type
            and value.shape == shape + self.item_shape
        ):
            return value
        return self._broadcast(self._stored_values(value), shape)

    def write_encoded(self, rows: int | slice, references: NDArray[Any]) -> None:
        """Write a row that was encoded, or several.

        :param references: to slots of its stream, ``(n_envs,)``, or ``(n_steps, n_envs)``
        """
        if not self._table.flags.writeable:
            self._allocate()
        if (flags := self._changes.added) is not None:
            flags[rows] = True
        self._table[rows] = references

    def _stored_values(self, value: Any) -> NDArray[Any]:
        values = cast_values(np.asarray(value), self.dtype)
        return values if self.elem_type == self.dtype else clip_values(values, self.elem_type)

    def _broadcast(self, values: NDArray[Any], leading_shape: tuple[int, ...]) -> NDArray[Any]:
        shape = leading_shape + self.item_shape
        while values.ndim > len(shape) and values.shape[0] == 1:  # NumPy drops leading ones
            values = values[0]
        if values.shape == shape:
            return values
        try:
            return np.broadcast_to(values, shape)
        except ValueError:
            raise ValueError(f"cannot write values of shape {values.shape} to items of shape {shape}") from None

    # -- views and copies ------------------------------------------------------------------------------------

    def swapaxes(self, axis1: SupportsIndex, axis2: SupportsIndex) -> Any:
        """Return a view with two axes interchanged: compressed for leading axes, otherwise decoded."""
        axes = [axis.__index__() for axis in (axis1, axis2)]
        axes = [axis + self.ndim if axis < 0 else axis for axis in axes]
        if not 0 <= min(axes) <= max(axes) < self._table.ndim:
            return super().swapaxes(axis1, axis2)
        return self._view(lambda table: table.swapaxes(*axes))

    def reshape(self, *shape: Any, **options: Any) -> Any:
        """Return the array in another shape, as a view where NumPy returns one.

        :param shape: the new shape. If it ends with the shape of the items, the result is compressed, otherwise decoded
        :param options: those of :meth:`numpy.ndarray.reshape`
        """
        new = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape
        n_leading = len(new) - len(self.item_shape)
        if options not in ({}, {"order": "C"}) or n_leading < 1 or new[n_leading:] != self.item_shape:
            return super().reshape(*shape, **options)
        return self._view(lambda table: table.reshape(new[:n_leading]))

    def copy(self, order: str = "C") -> CompressedArray:
        """Return an independent array with the same content. Payloads are immutable, so they are shared.

        :param order: ignored; for code that passes it to ndarrays
        """
        return copy.deepcopy(self)

    def new_sharing_frames(self) -> CompressedArray:
        """Return an unwritten array of the same shape that shares frames with this one.

        For arrays of the same stream of observations, such as ``observations`` and ``next_observations``, or
        consecutive rollouts. They use the same codec and frame layout objects.
        """
        return self._with_table(None)

    def resized(self, n_rows: int, kept: NDArray[np.int64]) -> CompressedArray:
        """Return an array of another number of rows for the same observations, to replace this one.

        :param n_rows: number of rows
        :param kept: the rows of this array that become its first rows
        """
        array = self._with_table(self.stream.log.new_table((n_rows, *self._table.shape[1:])))
        array._table[: len(kept)] = self._table[kept]
        return array

    # -- for persistence -------------------------------------------------------------------------------------

    def move_to(self, log: SlotLog, table: NDArray[Any]) -> None:
        """Use another log and its content from now on. All arrays of the stream must be moved together.

        :param table: references to slots in the log, ``(rows, n_envs)``
        """
        self.stream.move_to(log)
        self._set_table(table)
        self._changes.track_direct_writes(table.shape)

    def put_references(self, rows: Any, references: NDArray[Any]) -> None:
        """Write references to slots of its stream."""
        self._replace_slots(rows, references)

    def written_references(self) -> NDArray[Any]:
        """Return the table without the rows after the last written one, which may be most of it."""
        is_written = (self._table != UNWRITTEN).any(axis=tuple(range(1, self._table.ndim)))
        n_written = int(np.flatnonzero(is_written)[-1]) + 1 if is_written.any() else 0
        return self._table[:n_written]

    def track_changes(self) -> NDArray[np.bool_]:
        """Return flags ``(rows, n_envs)`` that are set from now on where slots are written."""
        return self._changes.track(self._table.shape)

    def take_direct_writes(self) -> NDArray[np.int64]:
        """Return the rows written since the last call other than by :meth:`write_encoded`.

        They are tracked after :meth:`move_to`.
        """
        return self._changes.take_rows()

    @property
    def changes(self) -> NDArray[np.bool_] | None:
        """The flags that :meth:`track_changes` returned last."""
        return self._changes.flags

    def _allocate(self) -> None:
        """Replace the placeholder of an unwritten table."""
        if not self._table.flags.writeable:
            self._table = self.stream.log.new_table(self._table.shape)

    def _view(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> CompressedArray:
        self._allocate()
        table = change(self._table)
        if self.is_view and np.may_share_memory(table, self._table):
            table = table.copy()  # as NumPy's reshape after swapaxes, for one environment, too
        return self._with_table(table, is_view=np.may_share_memory(table, self._table))

    def _with_table(self, table: NDArray[Any] | None, *, is_view: bool = False) -> CompressedArray:
        """Return another array of the stream; see :meth:`_set_table`."""
        other = CompressedArray.__new__(type(self))
        other.__dict__.update(self.__dict__, _changes=ChangeFlags(), is_view=is_view)
        other._set_table(table, self._table.shape)
        if not is_view:
            self.stream.join(other)
        return other

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressedArray:
        other = memo[id(self)] = CompressedArray.__new__(type(self))
        with self.stream.log.keep_slots():
            other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return other

    def __getstate__(self) -> dict[str, Any]:
        # Copies are arrays, no views. Those of a folder are in memory, where the stream has copied their slots to.
        stream, references = self.stream, None
        if stream.log.is_in_memory:
            references = self.written_references()
        elif self.is_view:
            stream, references = stream.in_memory(self.written_references())
        return {
            "stream": stream, "dtype": self.dtype, "num_threads": self.num_threads, "shape": self._table.shape,
            "id": id(self), "references": references,
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "stream" not in state:
            raise old_pickle()
        self.stream, self.dtype, self.num_threads = state["stream"], state["dtype"], state["num_threads"]
        self.itemsize, self._changes = self.dtype.itemsize, ChangeFlags()
        self._set_table(None, state["shape"])
        self.stream.join(self)
        references = state["references"]
        if references is None:
            references = self.stream.take_unpickled(state["id"])
        if len(references):
            self._replace_slots(slice(len(references)), references)

"""``CompressedArray``: looks like an ndarray of observations, and keeps compressed slots."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

import numpy as np
import psutil
from numpy.typing import DTypeLike, NDArray

from sb3_compressed.arrays.array_like import ArrayLike
from sb3_compressed.arrays.cast import cast_values, clip_values
from sb3_compressed.arrays.frame_dedup import FrameDeduplicator
from sb3_compressed.arrays.frame_layout import FrameStack, FrameStackDetector, explicit_layout
from sb3_compressed.arrays.handover import mark_owned, new_output
from sb3_compressed.arrays.indexing import basic_index, has_ellipsis, is_whole, split_index
from sb3_compressed.arrays.memory import slots_nbytes
from sb3_compressed.arrays.slot_store import SlotStore
from sb3_compressed.arrays.slots import Slot, SlotCoder
from sb3_compressed.arrays.write_through import Items, Source, WriteThroughArray
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.errors import CorruptPayload, LossyDtypeWarning
from sb3_compressed.threads import validate_num_threads
from sb3_compressed.warning import warn_user

__all__ = ["CompressedArray"]


class CompressedArray(ArrayLike):
    """An array of observations of shape ``(rows, n_envs, *item_shape)`` that holds them compressed.

    To whoever indexes it, it is an ndarray: reading decodes into a fresh array, writing copies and encodes, what was
    never written reads as zeros. Where NumPy returns a view, assignments to what was read are written back. What is
    written row by row, as by a vectorised environment, is shared: frames that an observation has in common with the
    one before it are stored once.

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
    negative ones, ``...``), with whole items or basic indices behind it. ``swapaxes`` and ``reshape`` of the leading
    axes return views on the same slots. NumPy's functions, operators and methods decode the whole array, or raise
    ``MemoryError`` where that does not fit into memory.

    :param shape: ``(rows, n_envs, *item_shape)``
    :param dtype: any boolean, integer or floating dtype
    :param codec: a codec, or the shorthand of one as in :func:`~sb3_compressed.get_codec`
    :param frame_stack: how items are cut into frames: found from the data (``"auto"``), a number of frames along the
        first or the last axis of an item, or ``None`` for items that are no stacks
    :param elem_type: dtype to store values in, if not ``dtype``. A narrower one warns, and loses what does not fit it:
        values are clipped to the range of an integer type and rounded to a floating one
    :param num_threads: how many threads decode large reads; ``None`` for as many as there are cores, four at most
    :raises ValueError: for an argument that does not make sense
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike = np.uint8,
        codec: str | Codec = "auto",
        frame_stack: FrameStack = "auto",
        *,
        elem_type: DTypeLike | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.num_threads = validate_num_threads(num_threads)
        if len(shape) < 2 or min(shape) < 0:
            raise ValueError(f"shape must be (rows, n_envs, *item_shape) without negative numbers, got {shape}")
        self.dtype = np.dtype(dtype)
        stored = self.dtype if elem_type is None else np.dtype(elem_type)
        for kind in (self.dtype, stored):
            if kind.kind not in "biuf":
                raise ValueError(f"dtype must be boolean, integer or floating, got {kind}")
        if not _holds_every_value(stored, self.dtype):
            warn_user(
                f"values of dtype {self.dtype} are stored as {stored}, which is narrower: what does not fit is clipped "
                "or rounded",
                LossyDtypeWarning,
            )
        rows, n_envs, *item_shape = (int(length) for length in shape)
        searched = isinstance(frame_stack, str) and frame_stack == "auto"
        layout = None if searched or frame_stack is None else explicit_layout(tuple(item_shape), frame_stack)  # type: ignore[arg-type]
        self._coder = SlotCoder(tuple(item_shape), stored, get_codec(codec), layout)
        self._sharing: FrameDeduplicator | None = FrameDeduplicator(
            self._coder, FrameStackDetector(tuple(item_shape)) if searched else None
        )
        self._slots = _unwritten((rows, n_envs))
        self._changed = ChangeFlags()

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def slots(self) -> NDArray[Any]:
        """Object array ``(rows, n_envs)`` with one slot an item: a payload, a tuple of payloads, or ``None``.

        Before the first write it is a read-only stand-in that takes no memory. Of an array on disk, it holds the
        addresses of slots.
        """
        return self._slots

    @property
    def codec(self) -> Codec:
        """The codec of its payloads."""
        return self._coder.codec

    @property
    def elem_type(self) -> np.dtype[Any]:
        """The dtype its values are stored in."""
        return self._coder.dtype

    @property
    def n_frames(self) -> int:
        """How many frames an item is cut into, as far as it is known yet."""
        return self._coder.n_frames

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one item."""
        return self._coder.item_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array it stands for."""
        return self._slots.shape + self.item_shape

    @property
    def ndim(self) -> int:
        """Number of axes of the array it stands for."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements of the array it stands for."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element of the array it stands for."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The memory it takes, in bytes: payloads, slots and Python's overhead, what is shared counted once."""
        return slots_nbytes(self._slots)

    @property
    def raw_nbytes(self) -> int:
        """The memory that an ndarray of this shape and dtype would take, in bytes."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        return f"CompressedArray(shape={self.shape}, dtype={self.dtype}, codec={self.codec!r})"

    # -- reading ---------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """Decode the items at ``index`` into a fresh array, shaped as NumPy would shape it.

        Where NumPy returns a view, what is assigned to the result is written back, see :class:`WriteThroughArray`.

        :raises CorruptPayload: if a payload is damaged; the error names its slot
        :raises MemoryError: if there is not enough memory
        """
        lead, inside = split_index(index, self._slots.ndim, self.ndim)
        basic_lead = basic_index(lead)
        if basic_lead is not None:
            return self._read_view(basic_lead, inside, is_array=has_ellipsis(index))
        selected = self._slots[lead]
        is_array = isinstance(selected, np.ndarray)
        lead_shape = selected.shape if is_array else ()
        # References of our own, a view would not do: others may write while kernels read what they refer to.
        is_own = is_array and selected.ndim == 1 and selected.flags.owndata
        slots = selected if is_own else selected.flatten() if is_array else _array_of([selected], self._slots.dtype)
        self._require_memory(len(slots))
        out = new_output((len(slots), *self.item_shape), self.dtype)
        self._decode(slots, out, lead)
        out = out.reshape(lead_shape + self.item_shape)
        if inside:
            out = out[(slice(None),) * len(lead_shape) + inside]
        if out.ndim == 0:
            return out[()]  # a scalar where NumPy gives one
        mark_owned(out)
        return out

    def _read_view(self, lead: tuple[Any, ...], inside: tuple[Any, ...], *, is_array: bool) -> Any:
        """Return what is read at a basic index.

        :param is_array: whether it is an array also where it has no axes
        """
        lead_shape = () if _is_slot(lead, self._slots) else self._slots[lead].shape
        slots = self._slots[(*lead, None)].flatten()
        self._require_memory(len(slots))
        block = np.empty((len(slots), *self.item_shape), self.dtype)
        self._decode(slots, block, lead)
        out = WriteThroughArray.of(SlotSource(self, lead, block), lead_shape + self.item_shape)
        if inside:
            out = out[(slice(None),) * len(lead_shape) + (*inside, ...)]
        return out if is_array or out.ndim else out[()]  # a scalar where NumPy gives one

    def _decode(
        self, slots: NDArray[Any], out: NDArray[Any], lead: tuple[Any, ...], positions: Items | None = None
    ) -> None:
        """Decode slots ``(n,)`` into ``out``.

        :param lead: the index that selected them
        :param positions: their numbers among those selected, if they are not all of them
        """
        try:
            self._coder.decode_into(slots, out, self.num_threads)
        except CorruptPayload as error:
            position = error.index if positions is None else int(positions[error.index])
            raise CorruptPayload(error.reason, error.index, self._place(lead, position)) from error

    def _is_contiguous(self, lead: tuple[Any, ...]) -> bool:
        """Return whether what a basic index selects would be one piece of memory in an ndarray."""
        slots = self._slots
        if 0 in slots.strides:  # a stand-in for slots one after the other
            slots = np.lib.stride_tricks.as_strided(np.empty(1), slots.shape, _c_strides(slots.shape))
        return slots[(*lead, None)].flags.c_contiguous

    def _require_memory(self, n_items: int) -> None:
        """Raise if so many decoded items do not fit into memory, rather than being killed for it."""
        nbytes = n_items * math.prod(self.item_shape) * self.itemsize
        if nbytes > CHECKED_NBYTES and nbytes > (available := psutil.virtual_memory().available):
            raise MemoryError(
                f"decoding {n_items} observations takes {nbytes / 1e9:.1f} GB and {available / 1e9:.1f} GB of memory "
                "are available; decode a part at a time, as in array[start : start + 1000]"
            )

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Decode everything: ``np.array(array)`` into an array of its own, ``np.asarray(array)`` into a read-only one.

        :raises ValueError: for ``copy=False``, since there is no uncompressed array to refer to
        :raises MemoryError: if there is not enough memory
        """
        if copy is False:
            raise ValueError("a CompressedArray cannot become an ndarray without a copy")
        decoded: NDArray[Any] = np.asarray(self[...])  # what is written to it would not be written here
        if copy or (dtype is not None and np.dtype(dtype) != self.dtype):
            return decoded.astype(self.dtype if dtype is None else dtype)
        return decoded

    def _place(self, lead: tuple[Any, ...], position: int) -> tuple[int, ...]:
        """Return the index of the slot that was at ``position`` among those selected by ``lead``."""
        numbers = np.arange(self._slots.size).reshape(self._slots.shape)
        number = np.atleast_1d(numbers[lead]).ravel()[position]
        return tuple(int(i) for i in np.unravel_index(number, self._slots.shape))

    def prepare(self) -> None:
        """Do now what the first write and the first read would do: import libraries, compile."""
        from sb3_compressed.arrays import frame_dedup_kernels, payload_kernels  # noqa: F401

        self.codec.prepare()

    # -- writing ---------------------------------------------------------------------------------------------

    def __setitem__(self, index: Any, value: Any) -> None:
        """Encode ``value`` into the slots at ``index``; it may broadcast as in NumPy. Nothing of it is kept.

        One whole row at a time is the fast way, and the one that shares frames with the row written before.

        With an index that goes inside the items, these are decoded, changed and encoded again.

        :raises ValueError: if the shape or a value does not fit; nothing is changed then
        :raises TypeError: if ``value`` has no numbers
        """
        if is_encoded_row(value):
            self._allocate()
            if self._coder.store is None:  # else the row is committed by whoever adds it
                self._note_change(index)
            self._slots[index] = value.reshape(self._slots.shape[1:])
            return
        lead, inside = split_index(index, self._slots.ndim, self.ndim)
        if inside:
            items = self[lead]
            n_lead = items.ndim - len(self.item_shape)
            items[(slice(None),) * n_lead + inside] = cast_values(np.asarray(value), self.dtype)
            if basic_index(lead) is None:
                self[lead] = items
            return
        selected = self._slots[lead]
        values = self._stored_values(value)
        slots: list[Slot]
        if self._sharing is not None and _is_row(lead):
            [slots] = self._sharing.encode_rows(self._broadcast(values, selected.shape))
        elif values.ndim <= len(self.item_shape):  # one item for all of them
            n_slots = selected.size if isinstance(selected, np.ndarray) else 1
            slots = self._coder.encode(self._broadcast(values, (1,))) * n_slots
        else:
            lead_shape = selected.shape if isinstance(selected, np.ndarray) else ()
            items = self._broadcast(values, lead_shape)
            slots = self._coder.encode(items.reshape(math.prod(lead_shape), *self.item_shape))
        references = self._references(slots)
        self._allocate()
        self._note_change(lead)
        if isinstance(selected, np.ndarray):
            self._slots[lead] = references.reshape(selected.shape)
        else:
            self._slots[lead] = references[0]

    def checked_row(self, value: Any) -> NDArray[Any]:
        """Return observations of all environments in the shape and dtype they are stored in.

        :param value: observations ``(n_envs, *item_shape)``, or what broadcasts to them
        :raises ValueError: if the shape or a value does not fit
        :raises TypeError: if ``value`` has no numbers
        """
        shape = self._slots.shape[1:]
        if (
            type(value) is np.ndarray
            and value.dtype == self.dtype == self.elem_type
            and value.shape == shape + self.item_shape
        ):
            return value
        return self._broadcast(self._stored_values(value), shape)

    def encode_rows(self, first: NDArray[Any], second: NDArray[Any] | None = None) -> list[NDArray[Any]]:
        """Encode observations of all environments, and those that follow them, without writing them anywhere.

        What is returned stands for the observations where they are written next, as in
        ``array[row], next_array[row] = array.encode_rows(obs, next_obs)``: it can be handed through code that copies
        it.

        :param first: observations ``(n_envs, *item_shape)`` as :meth:`checked_row` returns them
        :param second: the next observations, in one call with them since both together take less time
        :return: for each of them an object array ``(n_envs,)`` of slots, for this array or one that :meth:`empty_like`
            made
        """
        if self._sharing is not None:
            rows = self._sharing.encode_rows(first, second)
        else:
            rows = [self._coder.encode(row) for row in (first, second) if row is not None]
        references = self._references([slot for row in rows for slot in row])
        return [*references.reshape(len(rows), -1)]

    def _write_slots(self, lead: tuple[Any, ...], positions: Items, values: NDArray[Any]) -> None:
        """Encode items into some of the slots that a basic index selects.

        :param lead: the index
        :param positions: numbers of the slots among them
        :param values: items ``(len(positions), *item_shape)``
        """
        references = self._references(self._coder.encode(self._stored_values(values)))
        self._allocate()
        selected = self._slots[lead]
        index = np.unravel_index(positions, selected.shape)
        if (flags := self._changed.flags) is not None:
            flags[lead][index] = True
        selected[index] = references

    def _references(self, slots: list[Slot]) -> NDArray[Any]:
        """Return what stands for slots in :attr:`slots`, an array ``(n,)``."""
        if self._coder.store is not None:
            return self._coder.store.write(slots).view(STORED)
        return _array_of(slots, ENCODED)

    def _note_change(self, lead: Any) -> None:  # before the change, so that no interrupt makes it forgotten
        if (flags := self._changed.flags) is not None:
            flags[lead] = True

    def _stored_values(self, value: Any) -> NDArray[Any]:
        values = cast_values(np.asarray(value), self.dtype)
        return values if self.elem_type == self.dtype else clip_values(values, self.elem_type)

    def _broadcast(self, values: NDArray[Any], lead_shape: tuple[int, ...]) -> NDArray[Any]:
        shape = lead_shape + self.item_shape
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
        """Return a view with two axes interchanged: compressed for leading axes, else decoded."""
        axes = [axis.__index__() for axis in (axis1, axis2)]
        axes = [axis + self.ndim if axis < 0 else axis for axis in axes]
        if not 0 <= min(axes) <= max(axes) < self._slots.ndim:
            return self._call("swapaxes", axis1, axis2)
        return self._view(lambda slots: slots.swapaxes(*axes))

    def reshape(self, *shape: Any, **options: Any) -> Any:
        """Return the array in another shape, a view where NumPy gives one.

        :param shape: the new shape. If it ends with the shape of the items, the result is compressed; else all of it is
            decoded
        :param options: those of :meth:`numpy.ndarray.reshape`
        """
        new = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape
        n_lead = len(new) - len(self.item_shape)
        if options or n_lead < 1 or new[n_lead:] != self.item_shape:
            return self._call("reshape", *shape, **options)
        return self._view(lambda slots: slots.reshape(new[:n_lead]))

    def copy(self, order: str = "C") -> CompressedArray:
        """Return an independent array with the same content. Payloads never change, so both refer to the same.

        :param order: ignored; for code that passes it to ndarrays
        """
        return copy.deepcopy(self)

    def empty_like(self) -> CompressedArray:
        """Return an unwritten array of this shape that shares frames with this one, for the same observations.

        For arrays that receive one stream of observations: ``observations`` and ``next_observations``, or the next
        rollout's after this one. The codec and the frame layout are the same objects.
        """
        return self._with_slots(_unwritten(self._slots.shape))

    def resized(self, n_rows: int, kept: NDArray[np.int64]) -> CompressedArray:
        """Return an array of another number of rows for the same observations, which is to take the place of this one.

        :param n_rows: how many rows it has
        :param kept: the rows of this one that are the first of it
        """
        array = self._with_slots(np.empty((n_rows, *self._slots.shape[1:]), dtype=object))
        array._slots[: len(kept)] = self._slots[kept]
        return array

    # -- in a store ------------------------------------------------------------------------------------------

    def keep_in(self, store: SlotStore, addresses: NDArray[np.int64]) -> None:
        """Keep slots in a store from now on instead of in memory. All arrays that share frames have to.

        :param addresses: where the addresses of the slots are, ``(rows, n_envs)``; what is there now is its content
        """
        self._coder.store = store
        self._slots = addresses
        self._changed.track_when_written(addresses.shape)

    def slots_at(self, rows: Any) -> NDArray[Any]:
        """Return the slots of some rows as they are in memory, a copy; what is shared is the same object.

        :raises CorruptPayload: if one is damaged
        """
        return self.load_slots(self._slots[rows])

    def load_slots(self, slots: NDArray[Any]) -> NDArray[Any]:
        """Return as they are in memory what stands in :attr:`slots` of this or an array that shares frames with it.

        :raises CorruptPayload: if one is damaged
        """
        if self._coder.store is None:
            return np.array(slots, dtype=object)
        return self._coder.store.load(slots.ravel()).reshape(slots.shape)

    def put_slots(self, rows: Any, slots: NDArray[Any]) -> None:
        """Write slots that another array of this kind returned from :meth:`slots_at`."""
        self._allocate()
        self._note_change(rows)
        self._slots[rows] = self._references([*slots.flat]).reshape(slots.shape)

    def stream_data(self) -> dict[str, Any]:
        """Return, for JSON, what it and the arrays that share frames with it have found out."""
        return {} if self._sharing is None else self._sharing.to_data()

    def restore_stream(self, data: Mapping[str, Any], codec: Codec, last: list[Slot]) -> None:
        """Go on, for all arrays that share frames, where others were when :meth:`stream_data` gave this.

        :param codec: the codec they had
        :param last: the slots of the row that was written last, as :meth:`slots_at` returns them
        :raises ValueError: if the data does not fit
        """
        if self._sharing is not None:
            self._sharing.restore(data, codec, last)

    def track_changes(self) -> NDArray[np.bool_]:
        """Return an array ``(rows, n_envs)`` that is set from now on where slots are written."""
        return self._changed.track(self._slots.shape)

    def take_direct_writes(self) -> NDArray[np.int64]:
        """Return the rows of an array in a store that were written other than by adding, since the last call."""
        return self._changed.take_rows()

    @property
    def changes(self) -> NDArray[np.bool_] | None:
        """What :meth:`track_changes` returned last."""
        return self._changed.flags

    def _allocate(self) -> None:
        if not self._slots.flags.writeable:  # never so in a store
            self._slots = np.empty(self._slots.shape, dtype=object)

    def _view(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> CompressedArray:
        self._allocate()
        view = self._with_slots(change(self._slots))
        view._sharing = None  # its rows need not be those of the stream of observations
        view._changed = ChangeFlags(self._changed, change)
        return view

    def _with_slots(self, slots: NDArray[Any]) -> CompressedArray:
        other = CompressedArray.__new__(type(self))
        other.__dict__.update(self.__dict__, _slots=slots, _changed=ChangeFlags())
        return other

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressedArray:
        # Slots hold references to payloads, which are immutable.
        other = self._with_slots(self.slots_at(slice(None)) if self._slots.flags.writeable else self._slots)
        memo[id(self)] = other
        other._coder = copy.deepcopy(self._coder, memo)
        other._sharing = copy.deepcopy(self._sharing, memo)
        return other

    def __getstate__(self) -> dict[str, Any]:
        # Rows behind the last written one would make the pickle of a young buffer larger than its content.
        unwritten = np.array(None, dtype=object) if self._slots.dtype == object else 0
        is_written = (self._slots != unwritten).any(axis=tuple(range(1, self._slots.ndim)))
        n_written = int(np.flatnonzero(is_written)[-1]) + 1 if is_written.any() else 0
        slots = self.slots_at(slice(n_written))
        return {**self.__dict__, "_slots": (self._slots.shape, slots), "_changed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape, written = state["_slots"]
        self.__dict__.update(state, _slots=_unwritten(shape), _changed=ChangeFlags())
        if len(written):
            self._allocate()
            self._slots[: len(written)] = written


class ChangeFlags:
    """Where slots of an array were written since :meth:`track` was called, also through views of the array.

    :param viewed: the flags of the array that this array is a view of
    :param change: makes an array ``(rows, n_envs)`` of the viewed array a view of the shape of this array
    """

    def __init__(
        self, viewed: ChangeFlags | None = None, change: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    ) -> None:
        self._own: NDArray[np.bool_] | None = None
        self._lazy_shape: tuple[int, ...] | None = None
        self._viewed, self._change = viewed, change

    @property
    def flags(self) -> NDArray[np.bool_] | None:
        """The flags, ``(rows, n_envs)``; ``None`` if nobody asked for them."""
        if self._viewed is None or self._change is None:
            if self._own is None and self._lazy_shape is not None:
                self._own = np.zeros(self._lazy_shape, dtype=np.bool_)
            return self._own
        # Asked for at each use: the viewed array may have begun to track changes after this view was made.
        flags = self._viewed.flags
        return None if flags is None else self._change(flags)

    def track(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Begin anew, and return flags of a shape that are set from now on."""
        if self._viewed is not None:
            raise ValueError("only an array tracks changes, not a view of it")
        self._own = np.zeros(shape, dtype=np.bool_)
        return self._own

    def track_when_written(self, shape: tuple[int, ...]) -> None:
        """Track changes in flags of a shape, which take memory from the first change on."""
        self._own, self._lazy_shape = None, shape

    def take_rows(self) -> NDArray[np.int64]:
        """Return the rows that are set, and track anew."""
        flags, self._own = self._own, None
        return np.zeros(0, np.int64) if flags is None else np.flatnonzero(flags.any(axis=1))


class SlotSource(Source):
    """Where items were read from a :class:`CompressedArray`.

    :param array: the array
    :param lead: the basic index of the slots
    :param block: the decoded items, ``(n, *item_shape)``
    """

    def __init__(self, array: CompressedArray, lead: tuple[Any, ...], block: NDArray[Any]) -> None:
        super().__init__(block, is_contiguous=array._is_contiguous(lead))
        self._array = array
        self._lead = (*lead, None)  # so that it selects an array also where it selects one slot

    def prepare(self, items: Items) -> None:
        """Decode items again: others may have written to them since."""
        selected = self._array._slots[self._lead]
        items_now = np.empty((len(items), *self.block.shape[1:]), self.block.dtype)
        self._array._decode(selected[np.unravel_index(items, selected.shape)], items_now, self._lead, items)
        self.block[items] = items_now

    def write(self, items: Items) -> None:
        """Encode items into the slots that they were read from."""
        self._array._write_slots(self._lead, items, self.block[items])
        if self._array.elem_type != self._array.dtype:
            self.prepare(items)  # as they are stored, which may be less


#: The dtype of rows that are encoded already. NumPy hands what it says of itself on to copies.
METADATA = {"sb3_compressed": "slots"}
ENCODED = np.dtype(object, metadata=METADATA)
#: The same for addresses of slots in a store.
STORED = np.dtype(np.int64, metadata=METADATA)


def is_encoded_row(value: Any) -> bool:
    """Return whether a value is one of those that :meth:`CompressedArray.encode_rows` returned, or a copy of it."""
    return isinstance(value, np.ndarray) and value.dtype.metadata == METADATA


def _unwritten(shape: tuple[int, ...]) -> NDArray[Any]:
    """Return slots that were never written: one ``None`` seen from everywhere, since NumPy fills object arrays."""
    return np.broadcast_to(np.array(None, dtype=object), shape)


def _array_of(slots: list[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    # fromiter, since NumPy would take equally long tuples for a second axis.
    return np.fromiter(slots, dtype=dtype, count=len(slots))


def _holds_every_value(narrow: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    # NumPy calls it safe to store 64-bit integers as 64-bit floats, which lose the last bits.
    return np.can_cast(wide, narrow, "safe") and not (wide.kind in "iu" and wide.itemsize == 8 and narrow.kind == "f")


def _is_row(lead: tuple[Any, ...]) -> bool:
    """Return whether an index selects one whole row: ``array[3]``, ``array[3, :]``."""
    row, *rest = lead or (None,)
    return isinstance(row, int | np.integer) and not isinstance(row, bool) and all(map(is_whole, rest))


def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous array of 64-bit floats."""
    return tuple(8 * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _is_slot(lead: tuple[Any, ...], slots: NDArray[Any]) -> bool:
    """Return whether a basic index selects a slot, not an array of slots."""
    return len(lead) == slots.ndim and all(type(part) is int for part in lead)


#: Less than this is decoded without a look at the available memory.
CHECKED_NBYTES = 1 << 28

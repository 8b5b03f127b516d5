"""``CompressedArray``: an array of observations that is stored compressed, with the interface of an ndarray."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_compressed.arrays.array_like import ArrayLike
from sb3_compressed.arrays.assigned_items import copy_assigned, encode_assigned
from sb3_compressed.arrays.batch_pool import Empty, checked_empty
from sb3_compressed.arrays.cast import cast_values, clip_values
from sb3_compressed.arrays.change_flags import ChangeFlags, ViewChangeFlags
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_dedup import FrameDeduplicator
from sb3_compressed.arrays.frame_layout import FrameLayout, FrameStack, FrameStackDetector, explicit_layout
from sb3_compressed.arrays.indexing import basic_index, has_ellipsis, selects_all, slot_numbers, split_index
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_reader import accepted_codec
from sb3_compressed.arrays.slot_store import SlotOf, SlotStore
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.common.threads import validate_num_threads
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import CorruptPayload, LossyDtypeWarning, StorageError

__all__ = ["CompressedArray"]


class CompressedArray(ArrayLike):
    """A compressed array of observations, of shape ``(rows, n_envs, *item_shape)``.

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
    axes return views on the same slots. NumPy's functions, operators and methods decode the whole array, or raise
    ``MemoryError`` where that does not fit into memory.

    :param shape: ``(rows, n_envs, *item_shape)``
    :param dtype: any boolean, integer or floating dtype
    :param codec: a codec, or the shorthand of one as in :func:`~sb3_compressed.get_codec`
    :param frame_stack: how items are divided into frames: detected from the data (``"auto"``), a number of frames along
        the first or the last axis of an item, or ``None`` for items that are not stacks
    :param elem_type: dtype to store values in, if not ``dtype``. A narrower one is lossy and warns:
        values are clipped to the range of an integer type and rounded to a floating one
    :param num_threads: how many threads decode large reads; ``None`` for the number of cores, four at most
    :param new_store: creates the store of its slots
    :raises ValueError: for an invalid argument
    """

    #: The array that this is a view of.
    _view_of: CompressedArray | None = None

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike = np.uint8,
        codec: str | Codec = "auto",
        frame_stack: FrameStack = "auto",
        *,
        elem_type: DTypeLike | None = None,
        num_threads: int | None = None,
        new_store: Callable[[Codec], SlotStore] = MemorySlotStore,
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
        if not _holds_every_value(stored, self.dtype):
            warn_user(
                f"values of dtype {self.dtype} are stored as {stored}, which is narrower: values that do not fit are "
                "clipped or rounded",
                LossyDtypeWarning,
            )
        rows, n_envs, *item_shape = (int(length) for length in shape)
        is_detected = isinstance(frame_stack, str) and frame_stack == "auto"
        layout = None if is_detected or frame_stack is None else explicit_layout(tuple(item_shape), frame_stack)  # type: ignore[arg-type]
        self._encoder = FrameEncoder(tuple(item_shape), stored, get_codec(codec), layout)
        detector = FrameStackDetector(tuple(item_shape), stored.itemsize)
        is_used = is_detected or layout in detector.candidates  # an explicit layout is compared with what is detected
        self._deduplicator: FrameDeduplicator | None = FrameDeduplicator(self._encoder, detector if is_used else None)
        self._changes = ChangeFlags()
        self._set_table(new_store(self._encoder.codec), None, (rows, n_envs))
        if not self._store.is_on_device:  # the warning is about the memory of the process
            self._deduplicator.set_capacity(rows * n_envs)
        self._join_stream()

    def _set_table(self, store: SlotStore, table: NDArray[Any] | None, shape: tuple[int, ...] = ()) -> None:
        """Set the store and the table of references.

        :param table: ``None`` for an unwritten one, which takes no memory before the first write
        :param shape: its shape
        """
        self._store = store
        self._table = np.broadcast_to(store.unwritten, shape) if table is None else table
        if table is not None:
            store.watch(table)
        # Attributes, since each sample reads them several times.
        self.item_shape = self._encoder.item_shape
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
        with self._store.keep_slots():
            batch = self._store.gather(self._table.flatten(), 0)  # kernels take no read-only arrays
            _, first, numbers = np.unique(batch.payloads.places[:, 0], return_index=True, return_inverse=True)
            distinct = [*batch.payloads[first]]
        payloads = [distinct[number] for number in numbers.tolist()]
        slots = np.empty(self._table.size, object)
        for index, (begin, end) in enumerate(pairwise(batch.offsets.tolist())):
            if begin < end:
                slots[index] = payloads[begin] if end == begin + 1 else tuple(payloads[begin:end])
        return slots.reshape(self._table.shape)

    @property
    def references(self) -> NDArray[Any]:
        """The table of references to its slots, ``(rows, n_envs)``.

        Before the first write it is a read-only placeholder that takes no memory. References are addresses in the log
        of :attr:`store`; 0 is a slot that was never written.
        """
        return self._table

    @property
    def store(self) -> SlotStore:
        """The store of its slots."""
        return self._store

    @property
    def codec(self) -> Codec:
        """The codec of its payloads."""
        return self._encoder.codec

    @property
    def elem_type(self) -> np.dtype[Any]:
        """The dtype its values are stored in."""
        return self._encoder.dtype

    @property
    def n_frames(self) -> int:
        """How many frames an item is divided into, 1 until the layout is found."""
        return self._encoder.n_frames

    @property
    def nbytes(self) -> int:
        """The memory of its store and its table in bytes: arrays that share frames share a store."""
        return self._store.nbytes(self._table)

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
        with self._store.keep_slots():
            references = self._table[(*slot_index, ...)]  # an array, even of a single slot
            leading_shape = references.shape
            references = references.flatten()  # kernels take no read-only arrays, as those of unwritten ones are
            items = checked_empty((len(references), *self.item_shape), self.dtype)
            slot_of = partial(self._index_of_slot, slot_index)
            self._store.read_into(items, references, self._encoder, slot_of, self.num_threads)
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
        """Decode items into a new array ``(n + m, *item_shape)``, or a tensor if its store is on a device.

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
                return self._store.read(references, self._encoder, self.dtype, slot_of, empty, self.num_threads)
            except CorruptPayload:
                # A handler of a signal, which interrupts this call, may overwrite these rows, as in SB3.
                if np.array_equal(references, self._references_at(indices, other, other_indices)[0]):
                    raise

    def read_slots(self, references: NDArray[Any], slot_of: SlotOf, *, empty: Empty) -> Any:
        """Decode the items of slots as :meth:`read` does.

        :param references: references to slots, ``(n,)``
        :param slot_of: returns the index of the slot at a position among them, for the error
        """
        return self._store.read(references, self._encoder, self.dtype, slot_of, empty, self.num_threads)

    def payloads(
        self, indices: NDArray[np.int64], other: CompressedArray, other_indices: NDArray[np.int64]
    ) -> PayloadBatch:
        """Return the payloads of items, to be decoded in another process; the arguments are those of :meth:`read`.

        :raises CorruptPayload: if a slot is invalid; the error names it
        """
        with self._store.keep_slots():
            references, slot_of = self._references_at(indices, other, other_indices)
            try:
                return self._store.gather(references, self.n_frames)
            except CorruptPayload as error:
                raise CorruptPayload(error.reason, error.index, slot_of(error.index)) from error

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

        self._store.prepare()
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
        single = None if self._deduplicator is None else _item_of(slot_index, self._table.shape)
        if single is not None and self._set_item(*single, value):
            return
        selected = self._table[slot_index]
        shape = selected.shape if isinstance(selected, np.ndarray) else ()
        self._store.free_unused(math.prod(shape))
        values = self._stored_values(value)
        with self._store.keep_slots():
            references = self._encode_at(slot_index, shape, values)
            self._replace_slots(slot_index, references.reshape(shape) if shape else references[0])
            if single is not None and self._deduplicator is not None:
                self._deduplicator.begin_items(self._store, single[1], np.ascontiguousarray(references))

    def _encode_at(self, slot_index: tuple[Any, ...], shape: tuple[int, ...], values: NDArray[Any]) -> NDArray[Any]:
        """Return references to new slots for values that are assigned to the slots at an index.

        :param shape: the shape of what the index selects
        """
        row = None if self._deduplicator is None else _row_of(slot_index, self._table.shape)
        if self._deduplicator is not None and row is not None and not self._continues_own_rows(row, None):
            row_values = self._broadcast(values, shape).reshape(self.shape[1:])
            return self._deduplicator.encode_rows(self._store, row_values).reshape(-1)
        if shape and values.ndim <= len(self.item_shape):  # one item for all of them
            return np.broadcast_to(self._append_items(self._broadcast(values, (1,))), math.prod(shape))
        items = self._broadcast(values, shape).reshape(math.prod(shape), *self.item_shape)
        self._allocate()  # views share its memory
        return self._encode_assigned(slot_index, items)

    def _set_item(self, row: int, env: int, value: Any) -> bool:
        """Write an item that continues the one written last for its environment; return whether that was possible.

        Code that writes each environment in turn does so.
        """
        assert self._deduplicator is not None
        if self._continues_own_rows(row, env):
            return False
        self._store.free_unused(1)
        item = self._broadcast(self._stored_values(value), ())
        with self._store.keep_slots():
            references = self._deduplicator.encode_item(self._store, env, item)
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
        if self._deduplicator is None:  # a view
            return partial(self.__setitem__, ..., np.asarray(values))
        self._store.free_unused(self._table.size)
        with self._store.keep_slots():  # until they are in tables
            if isinstance(values, CompressedArray) and values.has_same_format_as(self):
                if self.layout is None and values.layout is not None:
                    self.set_layout(values.layout)
                references = copy_assigned(self, values.store, values.references)
            else:
                n_envs = self.shape[1]

                def read_items(positions: NDArray[np.int64]) -> NDArray[Any]:
                    rows = slice(int(positions[0]) // n_envs, int(positions[-1]) // n_envs + 1)
                    return self._stored_values(values[rows]).reshape(len(positions), *self.item_shape)

                references = encode_assigned(self, np.arange(self._table.size), read_items)
        return partial(self._replace_slots, ..., references.reshape(self._table.shape))

    def _replace_slots(self, index: Any, references: Any) -> None:
        self._allocate()
        self._changes.mark(index)
        self._table[index] = references

    def _continues_own_rows(self, row: int, env: int | None) -> bool:
        """Return whether this array is filled row by row on its own, and not in turn with ``next_observations``.

        An overridden ``add`` fills both in turn, so that each observation continues the one assigned last. Only where
        one is filled on its own may the other contain the observation already, which :func:`.encode_assigned` searches.

        :param env: the environment whose item is assigned alone
        """
        assert self._deduplicator is not None
        last = self._deduplicator.last_assigned
        before, last[env] = last.get(env), (id(self), row)
        return before == (id(self), row - 1) and bool(self.others_of_stream())

    def shares_stream_with(self, other: CompressedArray, *, may_flatten: bool) -> bool:
        """Return whether this array can replace another one of its stream of observations.

        :param may_flatten: whether it may be a view of another shape
        """
        if self.shape == other.shape:
            return self._deduplicator is not None and self._deduplicator is other._deduplicator
        return may_flatten and self._encoder is other._encoder

    def require_same_stream(self, other: CompressedArray) -> None:
        """Raise if another array does not have the codec, the format and the frames of this one.

        :raises ValueError: then
        """
        if other._encoder is not self._encoder:
            raise ValueError(
                f"observations are {self.dtype} of shape {self.item_shape}, and next observations {other.dtype} of "
                f"shape {other.item_shape}: assign arrays of equal formats to both"
            )

    def has_same_format_as(self, other: CompressedArray) -> bool:
        """Return whether the slots of this array can be slots of another one, whose layout may not be known yet."""
        formats = [(each.item_shape, each.dtype, each.elem_type, accepted_codec(each.codec)) for each in (self, other)]
        may_take_layout = other.layout is None and other._deduplicator is not None
        return formats[0] == formats[1] and (may_take_layout or self.layout in (None, other.layout))

    def _encode_assigned(self, slot_index: tuple[Any, ...], items: NDArray[Any]) -> NDArray[Any]:
        """Return references to new slots for the items at an index, ``(n,)``."""
        whole = self if self._view_of is None else self._view_of
        if not len(items):
            return np.empty(0, self._table.dtype)
        # A copy of a view, or a view of an array whose slots were replaced, is not part of a stream.
        if whole._deduplicator is None or not np.may_share_memory(self._table, whole._table):
            return self._append_items(items)
        numbers = slot_numbers(basic_index(slot_index) or slot_index, self._table, whole._table)
        return encode_assigned(whole, numbers, lambda positions: items[positions])

    def encode_assigned_steps(self, steps: NDArray[Any], previous: NDArray[Any] | None) -> NDArray[Any]:
        """Encode observations that follow each other; see :meth:`.FrameDeduplicator.encode_assigned_steps`."""
        assert self._deduplicator is not None
        return self._deduplicator.encode_assigned_steps(self._store, steps, previous)

    def _append_items(self, items: NDArray[Any]) -> NDArray[Any]:
        """Encode items ``(n, *item_shape)`` independently of each other, and return references to slots, ``(n,)``."""
        frames = self._encoder.split(items)
        n_items, n_frames, *frame_shape = frames.shape
        payloads = self._encoder.codec.encode_batch(frames.reshape(n_items * n_frames, *frame_shape))
        references: NDArray[Any] = self._store.writer.append(
            None, np.full((1, n_items), n_frames), payloads, self._encoder
        )[0]
        return references

    def others_of_stream(self) -> list[CompressedArray]:
        """Return the other arrays of the same stream of observations, in the same store, that were written to."""
        if self._deduplicator is None:
            return []
        others = [array for array in self._deduplicator.arrays.values() if array is not self]
        return [
            each
            for each in others
            if each.shape == self.shape
            and each._store.writer is self._store.writer  # references are valid in one store only
            and each._table.flags.writeable
        ]

    def stored_items(self, references: NDArray[Any]) -> NDArray[Any]:
        """Decode slots to items ``(n, *item_shape)`` in the dtype that they are stored in.

        :raises CorruptPayload: if a payload is damaged; ``index`` is its position
        """
        out = np.empty((len(references), *self.item_shape), self.elem_type)
        self._store.read_into(out, references, self._encoder, num_threads=self.num_threads)
        return out

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

    def encode_rows(self, *rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Encode observations of all environments, alone or with the next ones, for :meth:`write_encoded`.

        :param rows: observations ``(n_envs, *item_shape)`` as :meth:`validated_row` returns them, one row or two; one
            call for both takes less time
        :return: references to slots for each row, ``(n_envs,)``, for this array or one that
            :meth:`new_sharing_frames` returned
        """
        self._store.free_unused(len(rows) * len(rows[0]))
        with self._store.keep_slots():
            if self._deduplicator is None:
                references = np.stack([self._append_items(row) for row in rows])
            else:
                self._deduplicator.forget_items()
                references = self._deduplicator.encode_rows(self._store, *rows)
            self._store.watch(references)  # until they are in the tables of arrays
        return [*references]

    def encode_steps(self, observations: NDArray[Any], next_observations: NDArray[Any]) -> list[NDArray[Any]]:
        """Encode the observations of several steps, in one call for all of them, which takes less time.

        :param observations: ``(n_steps, n_envs, *item_shape)`` of this array's dtype
        :param next_observations: likewise
        :return: references to slots of both, ``(n_steps, n_envs)`` each, for :meth:`write_encoded`
        """
        self._store.free_unused(2 * math.prod(observations.shape[:2]))
        (n_steps, n_envs), item_shape = observations.shape[:2], observations.shape[2:]
        rows = [each.reshape(n_steps * n_envs, *item_shape) for each in (observations, next_observations)]
        with self._store.keep_slots():
            if self._deduplicator is None:
                items = [self._append_items(row).reshape(n_steps, 1, n_envs) for row in rows]
                references = np.concatenate(items, axis=1).reshape(2 * n_steps, n_envs)
            else:
                self._deduplicator.forget_items()
                references = self._deduplicator.encode_rows(self._store, *rows, n_steps=n_steps)
            self._store.watch(references)  # until they are in the tables of arrays
        return [references[0::2], references[1::2]]

    def write_encoded(self, rows: int | slice, references: NDArray[Any]) -> None:
        """Write a row that was encoded, or several.

        :param references: from :meth:`encode_rows`, ``(n_envs,)``, or from :meth:`encode_steps`, ``(n_steps, n_envs)``
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
        array = self._with_table(None)
        array._join_stream()
        return array

    def resized(self, n_rows: int, kept: NDArray[np.int64]) -> CompressedArray:
        """Return an array of another number of rows for the same observations, to replace this one.

        :param n_rows: number of rows
        :param kept: the rows of this array that become its first rows
        """
        array = self._with_table(self._store.new_table((n_rows, *self._table.shape[1:])))
        array._table[: len(kept)] = self._table[kept]
        array._join_stream()
        return array

    # -- layout and slots -----------------------------------------------------------------------------------

    @property
    def layout(self) -> FrameLayout | None:
        """How items are divided into frames; ``None`` if they are not, or as long as that is not known."""
        return self._encoder.layout

    def set_layout(self, layout: FrameLayout) -> None:
        """Set how items are divided into frames, for all arrays that share frames, whose layout is not known yet."""
        if self._deduplicator is not None:
            self._deduplicator.set_layout(layout)

    def append_items(self, batch: PayloadBatch, items: NDArray[np.int64], previous: NDArray[np.int64]) -> NDArray[Any]:
        """Store items that another encoder has encoded by a codec and a layout of this array.

        :param batch: the items
        :param items: their numbers in the batch, ``(n,)``
        :param previous: references to slots that the first items may repeat, ``(n_envs,)``
        :return: references to slots as of :meth:`encode_rows`, ``(n,)``
        :raises OSError: if they cannot be written
        """
        return self._store.writer.append_items(batch, items, previous)

    # -- for persistence -------------------------------------------------------------------------------------

    def move_to(self, store: SlotStore, table: NDArray[Any]) -> None:
        """Use another store and its content from now on. All arrays that share frames must be moved together.

        :param table: references to slots in the store, ``(rows, n_envs)``
        """
        self._set_table(store, table)
        self._changes.track_direct_writes(table.shape)
        if self._deduplicator is not None and not store.is_in_memory:
            self._deduplicator.set_capacity(0)

    def put_references(self, rows: Any, references: NDArray[Any]) -> None:
        """Write references to slots of the store."""
        self._allocate()
        self._changes.mark(rows)
        self._table[rows] = references

    def stream_data(self) -> dict[str, Any]:
        """Return the state of its stream of observations for JSON: that of arrays that share frames with it."""
        return {} if self._deduplicator is None else self._deduplicator.to_data()

    def restore_stream(self, data: Mapping[str, Any], codec: Codec, last: int) -> None:
        """Restore the state that :meth:`stream_data` returned, for all arrays that share frames.

        :param codec: the codec at that time
        :param last: the row that was written last
        :raises ValueError: if the data does not fit
        """
        if self._deduplicator is not None:
            self._deduplicator.restore(data, codec, self._store, self._table[last].copy())

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
            self._table = self._store.new_table(self._table.shape)

    def _view(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> CompressedArray:
        self._allocate()
        view = self._with_table(change(self._table))
        view._deduplicator = None  # its rows need not be those of the stream of observations
        view._changes = ViewChangeFlags(self._changes, change)
        view._view_of = self if self._view_of is None else self._view_of
        return view

    def _with_table(self, table: NDArray[Any] | None) -> CompressedArray:
        other = CompressedArray.__new__(type(self))
        other.__dict__.update(self.__dict__, _changes=ChangeFlags(), _view_of=None)
        other._set_table(self._store, table, self._table.shape)
        return other

    def _join_stream(self) -> None:
        if self._deduplicator is not None:
            self._deduplicator.arrays[id(self)] = self

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressedArray:
        other = self._with_table(None)
        memo[id(self)] = other
        other._encoder = copy.deepcopy(self._encoder, memo)
        other._deduplicator = copy.deepcopy(self._deduplicator, memo)
        is_written = self._table.flags.writeable
        if self._store.is_in_memory:
            with self._store.keep_slots():
                table = self._table.copy() if is_written else None
                other._adopt(copy.deepcopy(self._store, memo), table, self._table.shape)
        else:
            other._copy_to_memory(self._store, self._table if is_written else self._table[:0], self._table.shape)
        return other

    def _adopt(self, store: SlotStore, table: NDArray[Any] | None, shape: tuple[int, ...]) -> None:
        """Use a copy of a store in memory, which the other arrays of the stream use as well."""
        self._set_table(store, table, shape)
        self._join_stream()
        if self._deduplicator is not None:
            self._deduplicator.adopt(store)

    def _copy_to_memory(self, source: SlotStore, slots: NDArray[np.int64], shape: tuple[int, ...]) -> None:
        """Copy slots to memory, those of arrays of one stream to one store.

        :param source: their store
        :param slots: references to those of the first rows; the others were not written
        """
        others = [] if self._deduplicator is None else [*self._deduplicator.arrays.values()]
        self._set_table(others[0].store if others else MemorySlotStore(self.codec), None, shape)
        self._join_stream()
        if self._deduplicator is not None:
            self._deduplicator.forget_last_row()  # which is in another store
        if not len(slots):
            return
        if self._deduplicator is None or slots.ndim != 2:
            with self._store.copier_from(source) as copier:
                self.put_references(slice(len(slots)), copier.copy(slots))
        else:
            self._allocate()
            self._table[: len(slots)] = copy_assigned(self, source, slots)

    def __getstate__(self) -> dict[str, Any]:
        # Without the rows after the last written one: in a barely filled buffer they would outweigh the content.
        is_written = (self._table != self._store.unwritten).any(axis=tuple(range(1, self._table.ndim)))
        n_written = int(np.flatnonzero(is_written)[-1]) + 1 if is_written.any() else 0
        # Copies are in memory, and no views.
        state = {**self.__dict__, "_changes": None, "_view_of": None}
        written = self._table[:n_written]
        if not self._store.is_in_memory:
            state["_store"], state["_copied"] = None, MemorySlotStore(self.codec)
            with state["_copied"].copier_from(self._store) as copier:
                slots = copier.copy(written)
                written = state["_copied"].new_table(slots.shape)  # which keeps them
                written[...] = slots
        return {**state, "_table": (self._table.shape, written)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape, written = state["_table"]
        copied = state.pop("_copied", None)  # of a folder; other arrays of its stream have their own
        if state["_store"] is None and copied is None:
            raise StorageError("this pickle is of version 0.3 or earlier, or of an array in a folder of version 0.4")
        self.__dict__.update(state, itemsize=state["dtype"].itemsize, _changes=ChangeFlags())
        if copied is not None:
            self._copy_to_memory(copied, written, shape)
            return
        self._adopt(state["_store"], None, shape)
        if len(written):
            self._allocate()
            self._table[: len(written)] = written


def _holds_every_value(narrow: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    # NumPy calls it safe to store 64-bit integers as 64-bit floats, which lose the last bits.
    return np.can_cast(wide, narrow, "safe") and not (wide.kind in "iu" and wide.itemsize == 8 and narrow.kind == "f")


def _row_of(slot_index: tuple[Any, ...], shape: tuple[int, ...]) -> int | None:
    """Return the row that an index selects, ``array[3]``, ``array[3, :]``, of one environment also ``array[3, 0]``.

    :param shape: ``(rows, n_envs)``
    :return: ``None`` if the index selects anything else
    """
    row, *rest = slot_index or (None,)
    if not isinstance(row, int | np.integer) or isinstance(row, bool):
        return None
    is_whole = all(selects_all(part) or (shape[1] == 1 and type(part) is int and part == 0) for part in rest)
    return int(row) % shape[0] if is_whole and -shape[0] <= row < shape[0] else None


def _item_of(slot_index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the row and the environment that an index of integers selects among several environments.

    :param shape: ``(rows, n_envs)``
    """
    if len(slot_index) != 2 or len(shape) != 2 or shape[1] == 1:
        return None
    row, env = slot_index
    if (
        type(row) is not int
        or type(env) is not int
        or not (-shape[0] <= row < shape[0] and -shape[1] <= env < shape[1])
    ):
        return None
    return row % shape[0], env % shape[1]

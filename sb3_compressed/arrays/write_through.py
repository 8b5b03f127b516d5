"""``WriteThroughArray``: the result of basic indexing, an ndarray whose writes reach the array it was read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.cast import cast_values
from sb3_compressed.arrays.indexing import basic_index

__all__ = ["READ_ONLY_ADVICE", "Items", "Source", "WriteThroughArray", "explained"]

READ_ONLY_ADVICE = (
    "this array is a decoded copy of a buffer's observations. Only assignments (array[index] = value), in-place "
    "operators (array += value), fill() and np.copyto() are written back. To change a copy, call array.copy() first; "
    "to change the buffer, assign to its own array, as in buffer.observations[row, env] = value"
)

Items = NDArray[np.int64]


class Source(ABC):
    """Where the items of a block of memory were read from.

    :param block: C-contiguous memory with the items, ``(n, *item_shape)``
    :param is_contiguous: whether they are contiguous in an ndarray as well, so that NumPy reshapes both as views or
        neither
    """

    def __init__(self, block: NDArray[Any], *, is_contiguous: bool = True) -> None:
        self.block = block
        self.is_contiguous = is_contiguous
        self.begin = block.__array_interface__["data"][0]
        self.end = self.begin + block.nbytes
        self.item_nbytes = block.nbytes // max(len(block), 1)

    @abstractmethod
    def prepare(self, items: Items) -> None:
        """Update items of the block before they are written.

        :param items: their numbers, sorted
        """

    @abstractmethod
    def write(self, items: Items) -> None:
        """Write items of the block to where they were read from."""

    def items_of(self, part: NDArray[Any]) -> Items:
        """Return the numbers of the items that an array in the memory of the block may touch, sorted."""
        # Along axes that step from item to item each offset matters, along others only the range.
        offsets = np.array([part.__array_interface__["data"][0] - self.begin])
        low = high = 0
        for length, stride in zip(part.shape, part.strides, strict=True):
            if length == 1 or stride == 0:
                continue
            if stride % self.item_nbytes == 0:
                offsets = np.add.outer(offsets, np.arange(length) * stride).reshape(-1)
            else:
                reach = (length - 1) * stride
                low, high = low + min(reach, 0), high + max(reach, 0)
        first, last = (offsets + low) // self.item_nbytes, (offsets + high + part.itemsize - 1) // self.item_nbytes
        spans = first[:, np.newaxis] + np.arange(int((last - first).max()) + 1)
        return np.unique(np.minimum(spans, last[:, np.newaxis]))

    def writable(self, part: NDArray[Any]) -> NDArray[Any]:
        """Return a writable array in the memory of the block."""
        offset = part.__array_interface__["data"][0] - self.begin
        return np.ndarray(part.shape, part.dtype, self.block, offset, part.strides)


class WriteThroughArray(np.ndarray[Any, Any]):
    """A decoded copy of items, in the place of the view that NumPy returns.

    It is a snapshot: it does not change with later writes to the array it was read from. Assignments, in-place
    operators, ``fill`` and ``np.copyto`` change both, also through views of it. Its memory is read-only, so that every
    other write raises instead of changing the snapshot only. Copies and results of fancy indexing and arithmetic are
    plain, writable ndarrays. If NumPy may return a view or a copy, as when parts that are not contiguous are reshaped,
    the result is read-only.
    """

    _source: Source | None = None

    @classmethod
    def of(cls, source: Source, shape: tuple[int, ...]) -> WriteThroughArray:
        """Return an array of the block of a source.

        :param shape: its shape
        """
        block = source.block
        if block.size:
            # Not a read-only view of the block or of a memoryview: these can be made writable again.
            memory = np.frombuffer(memoryview(block.reshape(-1).view(np.uint8)).toreadonly(), np.uint8)  # type: ignore[arg-type]
            array = memory.view(block.dtype).reshape(shape).view(cls)
        else:
            array = np.empty(shape, block.dtype).view(cls)
            array.flags.writeable = False
        array._source = source
        return array

    def __array_finalize__(self, obj: Any) -> None:
        source = getattr(obj, "_source", None)
        if source is not None and (self.size == 0 or source.begin <= self.__array_interface__["data"][0] < source.end):
            self._source = source  # a view; anything else has its own memory

    # -- reading ---------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        return _without_source(super().__getitem__(index))

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        array = _plain(array)
        return array[()] if return_scalar else array

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        if self._source is not None and not self.flags.writeable:  # torch would write to it anyway
            raise BufferError(f"cannot export a read-only array: {READ_ONLY_ADVICE}")
        return super().__dlpack__(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return np.array(self).__reduce_ex__(protocol)

    def __copy__(self) -> NDArray[Any]:  # type: ignore[override]
        return np.array(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> NDArray[Any]:  # type: ignore[override]
        return np.array(self)

    # -- writing ---------------------------------------------------------------------------------------------

    def __setitem__(self, index: Any, value: Any) -> None:
        source = self._source
        if source is None:
            super().__setitem__(index, value)
            return
        plain = self.view(np.ndarray)
        values = cast_values(np.asarray(value), self.dtype)
        basic = basic_index(index if isinstance(index, tuple) else (index,))
        part = plain if basic is None else plain[(*basic, None)]
        if not part.size:
            np.empty(plain[index].shape, self.dtype)[...] = values  # raises if the shapes do not fit
            return
        items = source.items_of(part)
        if np.may_share_memory(values, source.block):
            values = values.copy()  # before they are read again
        source.prepare(items)
        before = source.block[items]
        try:
            source.writable(plain)[index] = values
            changed = items[_differ(source.block[items], before)]
            if len(changed):
                source.write(changed)
        except BaseException:
            source.block[items] = before
            raise

    def reshape(self, *shape: Any, **options: Any) -> Any:
        """Return the array in another shape, as :meth:`numpy.ndarray.reshape` does."""
        return self._reshaped(super().reshape(*shape, **options))

    def ravel(self, *order: Any, **options: Any) -> Any:
        """Return the array with one axis, as :meth:`numpy.ndarray.ravel` does."""
        return self._reshaped(super().ravel(*order, **options))

    def squeeze(self, axis: Any = None) -> Any:
        """Return the array without axes of length one, as :meth:`numpy.ndarray.squeeze` does."""
        # NumPy's method passes the result of a subclass to __array_wrap__, which returns a plain array.
        return _without_source(super().reshape(self.view(np.ndarray).squeeze(axis).shape))

    def _reshaped(self, result: Any) -> Any:
        if self._source is not None and not self._source.is_contiguous:  # NumPy may return a view instead of a copy
            block = np.array(result, order="C", subok=False)
            return WriteThroughArray.of(UnknownSource(block), block.shape)
        return _without_source(result)

    def fill(self, value: Any) -> None:
        """Assign a value to all elements."""
        self[...] = value

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **kwargs: Any) -> Any:
        if method == "at":
            target = _target(inputs[0])
            getattr(ufunc, method)(target, *map(_plain, inputs[1:]), **kwargs)
            _assign(inputs[0], target)
            return None
        operands = [_operand(value, out) for value in inputs]
        targets = tuple(map(_target, out))
        if out:
            kwargs["out"] = targets
        result = getattr(ufunc, method)(*operands, **{name: _plain(value) for name, value in kwargs.items()})
        for array, target in zip(out, targets, strict=True):
            _assign(array, target)
        return result if not out else out[0] if len(out) == 1 else out

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.copyto:
            return _copyto(*args, **kwargs)
        return explained(
            lambda: _without_source(super(WriteThroughArray, self).__array_function__(function, types, args, kwargs))
        )


class UnknownSource(Source):
    """The source of an array that may be a view or a copy in NumPy, so it cannot be written to."""

    def items_of(self, part: NDArray[Any]) -> Items:
        """Raise."""
        raise ValueError(f"assignment destination is read-only: {READ_ONLY_ADVICE}")

    def prepare(self, items: Items) -> None:
        """Do nothing: there are no items."""

    write = prepare


def explained(call: Callable[[], Any]) -> Any:
    """Return the result of a call; errors about read-only arrays get advice on what to do instead."""
    try:
        return call()
    except ValueError as error:
        if "read-only" not in str(error) or READ_ONLY_ADVICE in str(error):
            raise
        raise ValueError(f"{error}: {READ_ONLY_ADVICE}") from error


def _define_methods() -> None:
    """Define the methods that copy or write in place, with results and errors like those of the methods above."""

    def define(name: str) -> None:
        method = getattr(np.ndarray, name)

        def call(self: WriteThroughArray, *args: Any, **kwargs: Any) -> Any:
            return explained(lambda: _without_source(method(self, *args, **kwargs)))

        call.__name__, call.__doc__ = name, f"As :meth:`numpy.ndarray.{name}`."  # NumPy's has examples of its own
        setattr(WriteThroughArray, name, call)

    for name in COPYING + IN_PLACE:
        define(name)


COPYING = (
    "argpartition", "argsort", "astype", "choose", "compress", "conj", "conjugate", "copy", "diagonal", "dot",
    "flatten", "repeat", "searchsorted", "take",
)  # fmt: skip
IN_PLACE = ("byteswap", "partition", "put", "resize", "setfield", "sort")
_define_methods()


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, WriteThroughArray) else value


def _without_source(result: Any) -> Any:
    """Return copies as plain arrays."""
    if isinstance(result, WriteThroughArray) and (result._source is None or result.flags.writeable):
        return result.view(np.ndarray)
    if type(result) in (list, tuple):
        return type(result)(map(_without_source, result))
    return result


def _target(array: Any) -> Any:
    """Return an array that NumPy can write to instead, with the current content."""
    if not isinstance(array, WriteThroughArray) or array._source is None:
        return _plain(array)
    if array.size:
        array._source.prepare(array._source.items_of(array))
    return np.array(array)


def _operand(value: Any, out: tuple[Any, ...]) -> Any:
    """Return an operand as a plain array, as a copy if the call changes its memory through another array."""
    if not isinstance(value, WriteThroughArray):
        return value
    for array in out:
        if (
            isinstance(array, WriteThroughArray)
            and array._source is value._source
            and array.__array_interface__ != value.__array_interface__
        ):
            return np.array(value)
    return _plain(value)


def _assign(array: Any, target: Any) -> None:
    if isinstance(array, WriteThroughArray) and array._source is not None:
        array[...] = target


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    target = _target(dst)
    np.copyto(target, _plain(src), casting=casting, where=_plain(where))
    _assign(dst, target)


def _differ(items: NDArray[Any], others: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which items differ in a bit, ``(n,)``."""
    n = len(items)
    bits, other_bits = (array.reshape(n, -1).view(np.uint8) for array in (items, others))
    differ: NDArray[np.bool_] = (bits != other_bits).any(axis=1)
    return differ

"""``ArrayLike``: NumPy's functions, operators and methods on arrays that are decoded on use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

__all__ = ["ArrayLike"]


def _decoded(name: str) -> Callable[..., Any]:
    """Return a method that decodes the whole array and calls the ndarray's method of this name."""

    def method(self: ArrayLike, *args: Any, **kwargs: Any) -> Any:
        return getattr(np.asarray(self), name)(*args, **kwargs)

    method.__name__, method.__doc__ = name, f"Decode the array and call :meth:`numpy.ndarray.{name}`."
    return method


def _plain(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, ArrayLike) else value


class ArrayLike(NDArrayOperatorsMixin):
    """An array that can be read like an ndarray without being one.

    NumPy's functions, operators and the methods below decode the whole array, and return plain ndarrays. Elements are
    written by assignment, ``array[index] = value``; writing in another way raises an error.
    """

    shape: Any
    dtype: np.dtype[Any]
    ndim: Any
    size: Any
    itemsize: Any

    # Named one by one, so that a search finds them. Others can be called on np.asarray(array).
    all = _decoded("all")
    any = _decoded("any")
    argmax = _decoded("argmax")
    argmin = _decoded("argmin")
    astype = _decoded("astype")
    clip = _decoded("clip")
    copy = _decoded("copy")
    flatten = _decoded("flatten")
    item = _decoded("item")
    max = _decoded("max")
    mean = _decoded("mean")
    min = _decoded("min")
    prod = _decoded("prod")
    ravel = _decoded("ravel")
    reshape = _decoded("reshape")
    squeeze = _decoded("squeeze")
    std = _decoded("std")
    sum = _decoded("sum")
    swapaxes = _decoded("swapaxes")
    take = _decoded("take")
    tobytes = _decoded("tobytes")
    tofile = _decoded("tofile")
    tolist = _decoded("tolist")
    transpose = _decoded("transpose")
    var = _decoded("var")
    T = property(lambda self: np.asarray(self).T)
    flat = property(lambda self: np.asarray(self).flat)

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: Any, value: Any) -> None:
        raise NotImplementedError

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Decode everything: ``np.array(array)`` into a writable array, ``np.asarray(array)`` into a read-only one.

        :raises ValueError: for ``copy=False``, since there is no uncompressed array to refer to
        :raises MemoryError: if there is not enough memory
        """
        if copy is False:
            raise ValueError(f"a {type(self).__name__} cannot become an ndarray without a copy")
        decoded: NDArray[Any] = self[...]
        if copy or (dtype is not None and np.dtype(dtype) != self.dtype):
            return decoded.astype(self.dtype if dtype is None else dtype)
        return decoded

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """Decode everything for another library, as in ``torch.from_dlpack(array)``.

        :param options: those of the protocol, see :meth:`numpy.ndarray.__dlpack__`
        :raises BufferError: for ``copy=False``, since there is no uncompressed array to refer to
        :raises MemoryError: if there is not enough memory
        """
        if copy is False:
            raise BufferError(f"a {type(self).__name__} cannot become a tensor without a copy")
        decoded = self[np.arange(self.shape[0])]  # writable, as libraries expect
        return decoded.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device of decoded arrays: main memory, ``kDLCPU`` with the number 0."""
        return 1, 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **kwargs: Any) -> Any:
        """Apply a universal function, or an operator, to the decoded array.

        :raises ValueError: if it writes to the array, as in ``array += 1``
        """
        written = out + inputs[:1] if method == "at" else out
        if any(isinstance(array, ArrayLike) for array in written):
            raise ValueError("NumPy cannot write to this array, only assignments can: array[index] = values")
        if out:
            kwargs["out"] = out
        kwargs = {name: _plain(value) for name, value in kwargs.items()}
        return getattr(ufunc, method)(*map(_plain, inputs), **kwargs)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"the truth value of an array of {self.size} elements is ambiguous; use array.any() or array.all()"
            )
        return bool(self[(0,) * self.ndim])

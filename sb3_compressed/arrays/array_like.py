"""``ArrayLike``: NumPy's functions, operators and methods on arrays that are decoded on use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from sb3_compressed.arrays.reductions import REDUCTIONS, reduce_in_parts
from sb3_compressed.arrays.write_through import explained

__all__ = ["ArrayLike"]

#: Methods that need an ndarray's memory.
OF_MEMORY = {"getfield", "newbyteorder", "resize", "setfield", "setflags"}
METHODS = {
    name
    for name in dir(np.ndarray)
    if not name.startswith("_") and callable(getattr(np.ndarray, name)) and name not in OF_MEMORY
}
PROPERTIES = {"T", "flat", "imag", "mT", "real"}
#: Attributes that constructors set.
OWN = {"dtype", "itemsize", "ndim", "shape", "size"}


class ArrayLike(NDArrayOperatorsMixin):
    """An array that has the interface of an ndarray without being one.

    Everything that a subclass does not define is applied to ``array[...]``, which decodes the whole array: the result
    is that of an ndarray. Reductions of large arrays decode a part at a time.
    """

    shape: Any
    dtype: np.dtype[Any]
    ndim: Any
    size: Any
    itemsize: Any

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: Any, value: Any) -> None:
        raise NotImplementedError

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

    def fill(self, value: Any) -> None:
        """Assign a value to all elements."""
        self[...] = value

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:

            def call(*args: Any, **kwargs: Any) -> Any:
                return self._call(name, *args, **kwargs)

            call.__name__ = name
            return call
        if name in PROPERTIES and hasattr(np.ndarray, name):
            return getattr(self[...], name)
        if not name.startswith("_") and hasattr(np.ndarray, name):
            raise AttributeError(
                f"a {type(self).__name__} has no {name!r}, since it does not have the memory of an ndarray; use "
                "a decoded part, as in array[rows], or a copy of the whole array, np.array(array)",
                name=name,
                obj=self,
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(np.ndarray, name) and (name not in OWN or name in self.__dict__):
            raise AttributeError(
                f"cannot set {name!r} of a {type(self).__name__}; assign to its elements, as in array[...] = values",
                name=name,
                obj=self,
            )
        super().__setattr__(name, value)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of an ndarray."""
        if name in REDUCTIONS and (parts := reduce_in_parts(self, name, args, kwargs)) is not None:
            return parts
        return explained(lambda: getattr(self[...], name)(*args, **kwargs))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **kwargs: Any) -> Any:
        if out:
            kwargs["out"] = tuple(map(_decoded, out))
        result = getattr(ufunc, method)(
            *map(_decoded, inputs), **{name: _decoded(value) for name, value in kwargs.items()}
        )
        return result if not out else out[0] if len(out) == 1 else out

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if function in FUNCTIONS:
            return FUNCTIONS[function](*args, **kwargs)
        return explained(lambda: function(*_decoded(tuple(args)), **_decoded(kwargs)))


def _decoded(value: Any) -> Any:
    """Return an argument of a NumPy function with compressed arrays decoded, also in lists, tuples and dicts."""
    if isinstance(value, ArrayLike):
        return value[...]
    if type(value) in (list, tuple):
        return type(value)(map(_decoded, value))
    return {key: _decoded(part) for key, part in value.items()} if type(value) is dict else value


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, ArrayLike) or where is not True:
        explained(lambda: np.copyto(_decoded(dst), _decoded(src), casting=casting, where=_decoded(where)))
        return
    values = src if isinstance(src, ArrayLike) else np.asarray(src)
    if not np.isscalar(src) and not np.can_cast(values.dtype, dst.dtype, casting):
        raise TypeError(f"cannot cast values of dtype {values.dtype} to {dst.dtype} by the rule {casting!r}")
    dst[...] = values


def _method(name: str) -> Callable[..., Any]:
    def call(a: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(a, ArrayLike):
            return getattr(a, name)(*args, **kwargs)
        return getattr(np, name)(a, *_decoded(args), **_decoded(kwargs))  # another argument is the compressed one

    return call


def _of_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that applies another one, which reads no elements, to an array of the same shape and dtype."""

    def call(a: Any, *args: Any, **kwargs: Any) -> Any:
        stand_in = np.broadcast_to(np.zeros((), a.dtype), a.shape) if isinstance(a, ArrayLike) else a
        return function(stand_in, *args, **kwargs)

    return call


#: Functions that need not decode the whole array.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{function: _of_shape(function) for function in (np.shape, np.ndim, np.size)},
    **{make: _of_shape(partial(make, order="C")) for make in (np.empty_like, np.zeros_like, np.ones_like)},
    np.copyto: _copyto,
    np.reshape: _method("reshape"),
    np.swapaxes: _method("swapaxes"),
    np.amin: _method("min"),
    np.amax: _method("max"),
    **{getattr(np, name): _method(name) for name in REDUCTIONS},
}

"""``ArrayAttribute`` and ``ArrayDict``: assigning observations to a buffer copies their values to compressed arrays.

SB3's buffers have plain arrays, so ``buffer.observations = array`` replaces them there. Here, an array that replaced a
compressed one would take all the memory that the buffer saves, or would be missing from its folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.assignment import assigned_arrays
from sb3_compressed.buffers.allocation import is_allocating

__all__ = ["ArrayAttribute", "ArrayDict"]


class ArrayAttribute:
    """The observations of a buffer, an array or a dict of arrays."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, buffer: Any, owner: type[Any] | None = None) -> Any:
        if buffer is None:
            return self
        try:
            return buffer.__dict__[self.name]
        except KeyError:
            raise AttributeError(f"{type(buffer).__name__!r} object has no attribute {self.name!r}") from None

    def __set__(self, buffer: Any, value: Any) -> None:
        unwritten: dict[Any, CompressedArray] = buffer._new_arrays
        current = buffer.__dict__.get(self.name)
        if value is current or value is None or is_allocating(buffer) or not unwritten:  # users release memory by None
            pass
        elif None in unwritten:
            [value] = assigned_arrays(
                {self.name: current}, {self.name: value}, {self.name: unwritten[None]}, may_flatten=buffer._may_flatten
            ).values()
        else:
            before = current if isinstance(current, dict) else {}
            value = self._assigned_dict(ArrayDict(before, unwritten, may_flatten=buffer._may_flatten), value)
        buffer.__dict__[self.name] = value

    def _assigned_dict(self, arrays: ArrayDict, values: Any) -> ArrayDict:
        """Assign values to the arrays of all keys, and return them.

        :raises ValueError: if there are other keys, or a shape or a value does not fit
        """
        keys = arrays.keys() or arrays.unwritten.keys()
        if not isinstance(values, Mapping) or (values and not values.keys() >= keys):
            given = f"the keys {[*values]}" if isinstance(values, Mapping) else f"a {type(values).__name__}"
            raise ValueError(f"{self.name} must be a dict with the keys {[*keys]}, got {given}")
        if values:
            arrays.update(values)
        else:  # it is filled key by key
            arrays.clear()
        return arrays

    def __delete__(self, buffer: Any) -> None:
        del buffer.__dict__[self.name]


class ArrayDict(dict[str, Any]):
    """The observations of a buffer with a Dict space; without compressed ones, a plain dict.

    :param arrays: the arrays
    :param unwritten: an unwritten array for each key of compressed observations
    :param may_flatten: as for :func:`.assigned_arrays`
    """

    # Pickles restore items before attributes, and those of version 0.3 have none.
    unwritten: Mapping[Any, CompressedArray] = MappingProxyType({})
    may_flatten = False

    def __init__(
        self, arrays: Mapping[str, Any], unwritten: Mapping[Any, CompressedArray], *, may_flatten: bool = False
    ) -> None:
        super().__init__(arrays)
        self.unwritten, self.may_flatten = unwritten, may_flatten

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Assign values to some keys; if one does not fit, nothing is changed.

        :raises ValueError: if a shape or a value does not fit
        :raises TypeError: if values are not numeric
        """
        values = dict(*args, **kwargs)
        names = {key: f"observations[{key!r}]" for key in values}
        arrays = assigned_arrays(
            {names[key]: self.get(key) for key in values},
            {names[key]: value for key, value in values.items()},
            {names[key]: self.unwritten[key] for key in values if key in self.unwritten},
            may_flatten=self.may_flatten,
        )
        super().update({key: arrays[name] for key, name in names.items()})

    def __ior__(self, values: Any) -> ArrayDict:  # type: ignore[override, misc]
        self.update(values)
        return self

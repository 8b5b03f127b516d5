"""``ArrayAttribute`` and ``ArrayDict``: observations that are assigned to a buffer become compressed arrays.

SB3's buffers have plain arrays, so ``buffer.observations = array`` replaces them there. Here, an array that replaced a
compressed one would take all the memory that the buffer saves, or would be missing from its folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils import _pytree

from sb3_compressed.buffers.array_factory import ArrayFactory

__all__ = ["ArrayAttribute", "ArrayDict"]


class ArrayAttribute:
    """The observations of a buffer, an array or a dict of arrays."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, buffer: Any, owner: type[Any] | None = None) -> Any:
        if buffer is None:
            return self
        try:
            value = buffer.__dict__[self.name]
        except KeyError:
            raise AttributeError(f"{type(buffer).__name__!r} object has no attribute {self.name!r}") from None
        if type(value) is ArrayDict and value.factory is not None:
            value.factory.rows = buffer.buffer_size, buffer.n_envs  # for an assignment to one of its keys
        return value

    def __set__(self, buffer: Any, value: Any) -> None:
        attributes = vars(buffer)
        factory: ArrayFactory | None = attributes.get("_array_factory")
        current = attributes.get(self.name)
        # Before SB3's constructor, there is no factory. Users release memory by None.
        if factory is not None and value is not current and value is not None:
            factory.valid_kinds = None
            factory.rows = buffer.buffer_size, buffer.n_envs
            if buffer._real_obs_shape is not None:  # SB3's constructor allocates
                value = buffer._new_observations()
                if self.name == buffer.observation_attributes[-1] or buffer.optimize_memory_usage:
                    buffer.obs_shape = attributes.pop("_real_obs_shape")
            elif None in factory.plans:
                value = factory.assigned(self.name, {None: current}, {None: value})[None]
            elif factory.plans:
                value = self._assigned_dict(current if isinstance(current, dict) else {}, value, factory)
        attributes[self.name] = value

    def _assigned_dict(self, current: dict[str, Any], values: Any, factory: ArrayFactory) -> ArrayDict:
        """Assign values to the arrays of all keys, and return them.

        :raises ValueError: if there are other keys, or a shape or a value does not fit
        """
        keys = current.keys() or factory.plans.keys()
        if not isinstance(values, Mapping) or (values and not values.keys() >= keys):
            given = f"the keys {[*values]}" if isinstance(values, Mapping) else f"a {type(values).__name__}"
            raise ValueError(f"{self.name} must be a dict with the keys {[*keys]}, got {given}")
        arrays = ArrayDict({}, factory)  # an empty one is filled key by key
        if values:
            arrays.replace(self.name, current, values)
        return arrays

    def __delete__(self, buffer: Any) -> None:
        del buffer.__dict__[self.name]


class ArrayDict(dict[str, Any]):
    """The observations of a buffer with a Dict space; without compressed ones, a plain dict.

    :param arrays: the arrays
    :param factory: creates those of compressed observations
    """

    factory: ArrayFactory | None = None  # pickles restore items before attributes

    def __init__(self, arrays: Mapping[str, Any], factory: ArrayFactory) -> None:
        super().__init__(arrays)
        self.factory = factory

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Assign values to some keys; if one does not fit, nothing is changed.

        :raises ValueError: if a shape or a value does not fit
        :raises TypeError: if values are not numeric
        """
        if self.factory is not None:
            self.factory.valid_kinds = None
        self.replace("observations", self, dict(*args, **kwargs))

    def replace(self, name: str, current: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Assign values to some keys.

        :param name: name of the attribute, for errors
        :param current: the arrays that they replace
        """
        super().update(values if self.factory is None else self.factory.assigned(name, current, values))

    def __ior__(self, values: Any) -> ArrayDict:  # type: ignore[override, misc]
        self.update(values)
        return self


# torch.utils._pytree regards subclasses of dict as leaves.
_pytree.register_pytree_node(
    ArrayDict,
    lambda arrays: ([*arrays.values()], [*arrays]),
    lambda values, keys: dict(zip(keys, values, strict=True)),
)

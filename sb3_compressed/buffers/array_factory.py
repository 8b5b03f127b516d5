"""``ArrayFactory``: creates the compressed arrays of a buffer, and decides what an assignment to them does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.array_replacement import assigned_arrays
from sb3_compressed.arrays.device_log import new_device_log
from sb3_compressed.buffers.compression_plan import CompressionPlan
from sb3_compressed.common.spaces import Key, ObservationFormats

__all__ = ["ArrayFactory"]


class ArrayFactory:
    """Creates the compressed arrays of a buffer. Those of one key share frames as long as their formats are equal.

    :param plans: how the observations of each key are compressed; those of other keys are plain arrays
    :param formats: shape and dtype of the observations that these plans are for
    :param num_threads: threads that decode large batches
    :param may_be_flat: whether arrays may have one axis of rows and environments, as in ``get`` of rollout buffers
    :param has_fixed_formats: whether a folder contains the arrays, which have the formats of the space there
    :ivar newest: for each key, an unwritten array of the format of the array that was created last
    :ivar rows: the number of rows and of environments that arrays have now
    :ivar device: the device that arrays are stored on, ``None`` for the memory of the process
    :ivar valid_kinds: types, dtypes and shapes of the arguments of ``add`` that were valid at the last validation.
        Steps with the same ones are not validated again, until an array is replaced
    """

    def __init__(
        self,
        plans: Mapping[Key, CompressionPlan],
        formats: ObservationFormats,
        num_threads: int,
        *,
        may_be_flat: bool = False,
        has_fixed_formats: bool = False,
    ) -> None:
        self.plans = plans
        self.formats = formats
        self.num_threads = num_threads
        self.newest: dict[Key, CompressedArray] = {}
        self.rows: tuple[int, int] = (0, 0)
        self.device: th.device | None = None
        self.may_be_flat = may_be_flat
        self.has_fixed_formats = has_fixed_formats
        self.valid_kinds: tuple[Any, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles are in memory. They are without types of the user, which may not be importable.
        return {**vars(self), "device": None, "has_fixed_formats": False, "valid_kinds": None}

    def new_array(self, key: Key, item_shape: tuple[int, ...], dtype: np.dtype[Any]) -> CompressedArray:
        """Return an unwritten array of a key, ``(*rows, *item_shape)``."""
        newest = self.newest[key] = self._of_format(key, (*self.rows, *item_shape), dtype)
        return newest.new_sharing_frames()

    def assigned(self, attribute: str, current: Mapping[Any, Any], values: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the arrays of some keys after an assignment; see :func:`.assigned_arrays`.

        A compressed array takes the dtype of the values, as SB3's attribute does.

        :param attribute: name of the attribute, for errors
        :param current: the arrays of all keys
        :param values: what is assigned to each key
        :raises ValueError: if a shape or a value does not fit; nothing is changed then
        :raises TypeError: if values are not numeric; likewise
        """
        names = {key: attribute if key is None else f"{attribute}[{key!r}]" for key in values}
        unwritten = {
            key: self._for_values(names[key], key, value) for key, value in values.items() if key in self.plans
        }
        arrays = assigned_arrays(
            {names[key]: current.get(key) for key in values},
            {names[key]: value for key, value in values.items()},
            {names[key]: array for key, array in unwritten.items()},
            may_be_flat=self.may_be_flat,
        )
        self.newest.update(unwritten)
        return {key: arrays[name] for key, name in names.items()}

    def _for_values(self, name: str, key: Key, value: Any) -> CompressedArray:
        """Return an unwritten array that values can be assigned to, if there may be one; otherwise one of any format.

        :raises ValueError: if the buffer is in a folder, and the values have another dtype
        """
        newest = self.newest.get(key)
        if newest is None:
            newest = self._of_format(key, (*self.rows, *self.plans[key].item_shape), _dtype_of(value) or np.dtype("u1"))
        if isinstance(value, CompressedArray) and value.may_replace(newest, may_be_flat=self.may_be_flat):
            return newest
        dtype = _dtype_of(value) or newest.dtype
        if self.has_fixed_formats:
            if dtype != newest.dtype:
                raise ValueError(
                    f"{name}: a folder stores observations in the dtype of their space, {newest.dtype}, and values of "
                    f"dtype {dtype} cannot replace them; change the space, or assign values.astype({newest.dtype})"
                )
            return newest
        shape = (*self.rows, *newest.shape[2:])
        given = tuple(getattr(value, "shape", shape))
        return self._of_format(key, given if given[:2] == self.rows else shape, dtype)

    def _of_format(self, key: Key, shape: tuple[int, ...], dtype: np.dtype[Any]) -> CompressedArray:
        """Return an unwritten array of a format, the newest one if it has that."""
        newest = self.newest.get(key)
        if newest is not None and (newest.shape, newest.dtype) == (shape, dtype):
            return newest
        plan = self.plans[key]
        return CompressedArray(
            shape,
            dtype,
            plan.codec,
            plan.frame_stack,
            elem_type=plan.elem_type,
            num_threads=self.num_threads,
            new_log=None if self.device is None else new_device_log(self.device),
        )


def _dtype_of(value: Any) -> np.dtype[Any] | None:
    """Return the dtype of an array-like, ``None`` if it has none, such as a list, or not one of numbers."""
    dtype = (
        value[:0].cpu().numpy().dtype if isinstance(value, th.Tensor) and value.ndim else getattr(value, "dtype", None)
    )
    return dtype.newbyteorder("=") if isinstance(dtype, np.dtype) and dtype.kind in "biuf" else None

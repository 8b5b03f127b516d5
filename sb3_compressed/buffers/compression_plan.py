"""``CompressionPlan``: which parts of an observation space are compressed, and with which codec."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from sb3_compressed.arrays.frame_layout import FrameStack, explicit_layout, likely_n_frames, validate_n_frames
from sb3_compressed.arrays.memory_estimate import observation_nbytes
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.auto import auto_codec, is_large, may_compress
from sb3_compressed.codecs.registry import AUTO
from sb3_compressed.common.spaces import Key, ObservationFormats
from sb3_compressed.common.warning import warn_user
from sb3_compressed.persistence.row_copying import is_stored_as_slots

__all__ = ["CompressionPlan", "plan_arrays"]


@dataclasses.dataclass(frozen=True)
class CompressionPlan:
    """How the observations of one key are compressed.

    :param item_shape: shape of one observation
    :param codec: the codec
    :param frame_stack: as for :class:`~sb3_compressed.CompressedArray`
    :param elem_type: the dtype of stored elements; ``None`` for the array's own
    """

    item_shape: tuple[int, ...]
    codec: Codec
    frame_stack: FrameStack
    elem_type: np.dtype[Any] | None

    def item_nbytes(self, dtype: DTypeLike) -> int:
        """Return the bytes of an uncompressed observation as it is stored."""
        return math.prod(self.item_shape) * np.dtype(self.elem_type or dtype).itemsize

    def estimated_nbytes(self, rows: int, n_envs: int, dtype: DTypeLike) -> float:
        """Estimate the memory of a full array in bytes, from typical payloads of game frames.

        Every observation adds one new frame.
        """
        stack = self.frame_stack
        n_frames = stack or 1 if not isinstance(stack, str) else likely_n_frames(self.item_shape)
        stored = np.dtype(self.elem_type or dtype)
        ratio = self.codec.typical_ratio if stored.kind in "biu" else 1.0  # there is no typical ratio of floats
        return rows * n_envs * observation_nbytes(ratio * self.item_nbytes(dtype) / n_frames, n_frames)


def plan_arrays(
    formats: ObservationFormats,
    compression_method: str | Codec | Mapping[str, str | Codec],
    compression_kwargs: Mapping[str, Any] | None,
    dtypes: Any,
    frame_stack: FrameStack | Mapping[str, FrameStack],
    *,
    on_disk: bool = False,
    is_short_lived: bool = False,
) -> dict[Key, CompressionPlan]:
    """Return how the observations of each key are compressed; those of missing keys stay plain arrays.

    ``"auto"`` compresses large items and leaves small ones and float vectors as they are; a named codec is used for
    every key. Each option may be a mapping from keys of a Dict space.

    :param formats: for each key the shape and the dtype of observations
    :param on_disk: whether slots are on disk, where vectors are slots, too
    :param is_short_lived: whether observations are stored for one update
    :raises ValueError: if an option does not fit the space
    """
    compression_kwargs = compression_kwargs or {}
    options = {"compression_method": compression_method, "frame_stack": frame_stack, "dtypes": dtypes}
    for name, option in options.items():
        known = {*formats, "elem_type", "runs_type"} if name == "dtypes" else set(formats)
        unknown = sorted(set(option) - known) if isinstance(option, Mapping) else []
        if unknown:
            raise ValueError(f"{name} has the unknown keys {unknown}; it may have {sorted(map(str, known))}")
    plans: dict[Key, CompressionPlan] = {}
    for key, (shape, dtype) in formats.items():
        try:
            plan = _plan_array(
                shape,
                dtype,
                _for_key(compression_method, key),
                # Arguments are for named codecs; a mapping leaves other keys to "auto".
                {} if isinstance(compression_method, Mapping) and key not in compression_method else compression_kwargs,
                *_dtypes_for_key(dtypes, key),
                _for_key(frame_stack, key),
                on_disk=on_disk,
                is_short_lived=is_short_lived,
            )
        except ValueError as error:
            if key is None:
                raise
            raise type(error)(f"observations[{key!r}]: {error}") from error
        if plan is not None:
            plans[key] = plan
    return plans


def _plan_array(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    method: str | Codec,
    codec_kwargs: Mapping[str, Any],
    elem_type: np.dtype[Any] | None,
    runs_type: np.dtype[Any] | None,
    frame_stack: FrameStack,
    *,
    on_disk: bool,
    is_short_lived: bool,
) -> CompressionPlan | None:
    """Return how observations of one key are compressed, ``None`` if they are not; validate options in any case."""
    codec = get_codec(method, **codec_kwargs)
    is_auto = method == AUTO
    if is_auto:
        codec = auto_codec(is_short_lived=is_short_lived)
    if runs_type is not None and hasattr(codec, "runs_type"):
        codec = dataclasses.replace(codec, runs_type=runs_type)  # type: ignore[type-var]
    is_explicit = frame_stack is not None and frame_stack != AUTO
    if is_explicit:
        validate_n_frames(frame_stack)
        if not is_auto or is_large(shape, dtype):  # a small part of a Dict need not be a stack
            explicit_layout(shape, frame_stack)  # type: ignore[arg-type]
    is_picture = is_large(shape, dtype) and (is_explicit or elem_type is not None or may_compress(shape, dtype))
    if is_auto and not is_picture:
        if not (on_disk and is_stored_as_slots(shape, dtype)):
            return None
        codec = get_codec("none")
    if elem_type is not None and elem_type.itemsize > dtype.itemsize:
        warn_user(
            f"dtypes stores observations of {dtype} as {elem_type}, {elem_type.itemsize // dtype.itemsize} times the "
            "memory of each value, and no content is gained: leave it out"
        )
    return CompressionPlan(shape, codec, frame_stack, elem_type)


def _for_key(option: Any, key: Key) -> Any:
    """Return an option for one key, ``"auto"`` if it is a mapping without that key."""
    return option.get(key, AUTO) if isinstance(option, Mapping) else option


def _dtypes_for_key(dtypes: Any, key: Key) -> tuple[np.dtype[Any] | None, np.dtype[Any] | None]:
    """Return elem_type and runs_type from any form of ``dtypes``: ``None``, a dtype, a dict, or a dict for each key."""
    if dtypes is None:
        return None, None
    if not isinstance(dtypes, Mapping):
        return _dtype(dtypes), None
    if key in dtypes:
        return _dtypes_for_key(dtypes[key], None)
    elem_type, runs_type = dtypes.get("elem_type"), dtypes.get("runs_type")
    return None if elem_type is None else _dtype(elem_type), None if runs_type is None else _dtype(runs_type)


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        elem_type: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ValueError(f"dtypes must be a dtype or what find_buffer_dtypes returns, got {dtype!r}") from error
    return elem_type

"""``ObservationShape`` and ``ActionArray``: SB3's buffers are constructed and reset without its arrays of observations.

SB3 allocates these arrays itself, of a terabyte perhaps. While it does, the parts of ``obs_shape`` that are compressed
have no elements. Code of users always finds the real shape: between the two assignments that these attributes notice,
only SB3's own code runs.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ActionArray", "ObservationShape", "begin_allocation", "end_allocation"]

#: The attribute with the real shape, which exists while SB3 allocates.
REAL_SHAPE = "_real_obs_shape"
#: What SB3 allocates instead of compressed observations.
NOTHING = (0,)


def begin_allocation(buffer: Any) -> None:
    """Let SB3's next arrays of compressed observations have no elements."""
    vars(buffer)[REAL_SHAPE] = None
    if "obs_shape" in vars(buffer):
        buffer.obs_shape = buffer.obs_shape


def end_allocation(buffer: Any) -> None:
    """Restore the real shape, unless that was done."""
    if (shape := vars(buffer).pop(REAL_SHAPE, None)) is not None:
        vars(buffer)["obs_shape"] = shape


def is_allocating(buffer: Any) -> bool:
    """Return whether SB3 allocates arrays of observations now."""
    return REAL_SHAPE in vars(buffer)


class ObservationShape:
    """``obs_shape``; without ``__get__``, since Python finds the value in the buffer itself, which takes no time."""

    def __set__(self, buffer: Any, shape: Any) -> None:
        if is_allocating(buffer):
            vars(buffer)[REAL_SHAPE] = shape
            compressed = buffer._plans
            if isinstance(shape, dict):
                shape = {key: NOTHING if key in compressed else part for key, part in shape.items()}
            elif None in compressed:
                shape = NOTHING
        vars(buffer)["obs_shape"] = shape


class ActionArray:
    """``actions``, which SB3 assigns as soon as it has allocated the observations; without ``__get__``, likewise."""

    def __set__(self, buffer: Any, array: Any) -> None:
        vars(buffer)["actions"] = array
        if is_allocating(buffer):
            end_allocation(buffer)
            buffer._install_arrays()

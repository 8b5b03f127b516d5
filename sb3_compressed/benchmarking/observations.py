"""Observations that are an array or a dict of arrays, and the description of their spaces."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from sb3_compressed.dtypes import Key, space_parts

__all__ = ["Observations", "describe_space", "part"]

Observations = Any
"""An array ``(n, *obs_shape)`` or a dict of such arrays; a union would require a cast at each use."""


def part(observations: Any, key: Key) -> Any:
    """Return the array of one key; ``None`` is the key of plain observations."""
    return observations if key is None else observations[key]


def describe_space(space: spaces.Space[Any]) -> str:
    """Return shape and dtype of a space.

    >>> import numpy as np
    >>> describe_space(spaces.Dict({"screen": spaces.Box(0, 255, (84, 84), np.uint8), "lives": spaces.Discrete(10)}))
    'lives () int64, screen (84, 84) uint8'
    """
    return ", ".join(
        f"{'' if key is None else f'{key} '}{each.shape} {each.dtype}" for key, each in space_parts(space).items()
    )

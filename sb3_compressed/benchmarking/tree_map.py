"""Observations are an array, or a dict of arrays: what is done with either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium import spaces

from sb3_compressed.dtypes import Key, space_parts

__all__ = ["Observations", "mapped", "part", "said"]

Observations = Any
"""An array ``(n, *obs_shape)``, or a dict of such; a type that says so would have to be told apart everywhere."""


def part(observations: Any, key: Key) -> Any:
    """Return one part."""
    return observations if key is None else observations[key]


def mapped(function: Callable[..., Any], *observations: Any) -> Any:
    """Return what a function makes of arrays, of dicts key by key.

    >>> mapped(lambda a, b: a + b, {"x": 1, "y": 2}, {"x": 10, "y": 20})
    {'x': 11, 'y': 22}
    >>> mapped(lambda a, b: a + b, 1, 10)
    11
    """
    first = observations[0]
    if isinstance(first, dict):
        return {key: function(*(each[key] for each in observations)) for key in first}
    return function(*observations)


def said(space: spaces.Space[Any]) -> str:
    """Return shape and dtype of observations, for a heading.

    >>> import numpy as np
    >>> said(spaces.Dict({"screen": spaces.Box(0, 255, (84, 84), np.uint8), "lives": spaces.Discrete(10)}))
    'lives () of int64, screen (84, 84) of uint8'
    """
    return ", ".join(
        f"{'' if key is None else f'{key} '}{each.shape} of {each.dtype}" for key, each in space_parts(space).items()
    )

"""``tree_map`` and ``leaves`` for observations that are an array or a dict of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["leaves", "tree_map"]


def tree_map(function: Callable[..., Any], *observations: Any) -> Any:
    """Apply a function to observations, for a Dict space key by key.

    >>> tree_map(lambda a, b: a + b, {"x": 1, "y": 2}, {"x": 10, "y": 20})
    {'x': 11, 'y': 22}
    >>> tree_map(lambda a, b: a + b, 1, 10)
    11
    """
    first = observations[0]
    if isinstance(first, dict):
        return {key: function(*(each[key] for each in observations)) for key in first}
    return function(*observations)


def leaves(observations: Any) -> list[Any]:
    """Return the arrays of observations as a list.

    >>> leaves({"x": 1, "y": 2}), leaves(1)
    ([1, 2], [1])
    """
    return [*observations.values()] if isinstance(observations, dict) else [observations]

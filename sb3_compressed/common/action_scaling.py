"""Scaling of actions between the range of their space and [-1, 1], as ``BasePolicy`` does, with the same rounding."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from numpy.typing import NDArray

__all__ = ["scale_actions", "unscale_actions"]


def scale_actions(actions: NDArray[Any], space: spaces.Box) -> NDArray[Any]:
    """Return actions of a bounded space, mapped to [-1, 1]."""
    scaled: NDArray[Any] = 2.0 * ((actions - space.low) / (space.high - space.low)) - 1.0
    return scaled


def unscale_actions(actions: NDArray[Any], space: spaces.Space[Any]) -> NDArray[Any]:
    """Return actions from [-1, 1], mapped to the range of their space; those of other spaces than a Box as they are."""
    if not isinstance(space, spaces.Box):
        return actions
    unscaled: NDArray[Any] = space.low + (0.5 * (actions + 1.0) * (space.high - space.low))
    return unscaled.astype(actions.dtype, copy=False)

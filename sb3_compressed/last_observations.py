"""``with_last_observations``: next observations as SB3's off-policy algorithms store them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.tree_map import tree_map

__all__ = ["with_last_observations"]


def with_last_observations(
    new_obs: Any,
    dones: NDArray[Any],
    infos: Sequence[Mapping[str, Any]],
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a copy of new observations, with the last one of its episode for each environment that was reset.

    :param new_obs: observations after a step, ``(n_envs, *obs_shape)`` or a dict of such arrays
    :param dones: whether each episode ended, ``(n_envs,)``
    :param infos: one info dict per environment, with the last observation as ``"terminal_observation"``, if known
    :param convert: applied to these
    """
    next_obs = copy.deepcopy(new_obs)
    for env in np.flatnonzero(dones).tolist():
        last = infos[env].get("terminal_observation")
        if last is not None:
            last = last if convert is None else convert(last)
            tree_map(lambda values, value, at=env: values.__setitem__(at, value), next_obs, last)
    return next_obs

"""``Step``: the arguments of a replay buffer's ``add``, with next observations as SB3's algorithms store them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.common.tree_map import tree_map

__all__ = ["Step", "with_last_observations"]


@dataclass(frozen=True)
class Step:
    """A step of every environment: the arguments of one call of a replay buffer's ``add``.

    :param obs: observations before the step, ``(n_envs, *obs_shape)`` or a dict of such arrays
    :param next_obs: observations after the step, with the last ones of the episodes that ended
    :param action: actions ``(n_envs, *action_shape)``
    :param reward: rewards ``(n_envs,)``
    :param done: whether each episode ended, ``(n_envs,)``
    :param infos: one info dict per environment
    """

    obs: Any
    next_obs: Any
    action: NDArray[Any]
    reward: NDArray[np.float32]
    done: NDArray[np.bool_]
    infos: list[dict[str, Any]]

    def add_to(self, buffer: Any) -> None:
        """Add the step to a replay buffer, or a writer of a distributed one."""
        buffer.add(self.obs, self.next_obs, self.action, self.reward, self.done, self.infos)


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

"""The classes of SB3 and of this package that are measured, by the names of buffers.

==========================  ==========================================================================
``SB3``                     SB3's own buffer with default arguments
``auto``, ``zstd-5``, ...   the buffer of this package with a compression method
``auto@1``                  the same with ``num_threads=1``
==========================  ==========================================================================
"""

from __future__ import annotations

from typing import Any, Literal

from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.preprocessing import is_image_space

import sb3_compressed

__all__ = ["SB3", "off_policy_algorithm", "policy_for", "sb3_class"]

SB3 = "SB3"


def sb3_class(name: str, kind: Literal["replay", "rollout"], space: spaces.Space[Any]) -> tuple[Any, dict[str, Any]]:
    """Return a buffer class for SB3's algorithms, and its additional arguments.

    :param space: observation space
    """
    cls_name = f"{'Dict' if isinstance(space, spaces.Dict) else ''}{kind.capitalize()}Buffer"
    if name == SB3:
        return getattr(buffers, cls_name), {}
    method, _, threads = name.partition("@")
    cls = getattr(sb3_compressed, f"Compressed{cls_name}")
    return cls, {"compression_method": method, **({"num_threads": int(threads)} if threads else {})}


def off_policy_algorithm(action_space: spaces.Space[Any]) -> str:
    """Return the name of an off-policy algorithm of SB3 for an action space.

    :raises ValueError: if there is none
    """
    if isinstance(action_space, spaces.Discrete):
        return "DQN"
    if isinstance(action_space, spaces.Box):
        return "SAC"
    raise ValueError(
        f"no off-policy algorithm of Stable-Baselines3 supports the action space {action_space}; "
        "pass --n-steps for the rollout buffers of PPO and A2C"
    )


def policy_for(space: spaces.Space[Any]) -> str:
    """Return the name of SB3's policy for an observation space."""
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"

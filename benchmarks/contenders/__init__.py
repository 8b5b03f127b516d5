"""The buffers that are measured: this package's and SB3's, and those of other libraries behind small adapters.

========================  =====================================================================================
``SB3``                   Stable-Baselines3's own buffer
``auto``, ``zstd-5`` ...  this package's buffer, with a compression method; ``auto@1`` with ``num_threads=1``
``extra:zstd-3`` ...      sb3-extra-buffers, with a compression method
``torchrl:zlib-3`` ...    TorchRL's ``CompressedListStorage``, with its own compression (``zlib``) or ``zstd``
``cpprb``                 cpprb, which shares frames and compresses nothing
========================  =====================================================================================

The last three are installed in an environment of their own, so a library is imported by the adapter that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from gymnasium import spaces

from contenders.names import is_peer, split_name
from sb3_compressed.measuring import like_sb3
from sb3_compressed.measuring.contenders import Replay, Rollout, Setup
from sb3_compressed.measuring.like_sb3 import ReplayLikeSB3, RolloutLikeSB3

__all__ = ["Setup", "class_like_sb3", "is_peer", "make_replay", "make_rollout"]

OTHERS = {"torchrl": "torchrl_lists", "cpprb": "cpprb_stacks"}


def class_like_sb3(
    name: str, kind: Literal["replay", "rollout"], space: spaces.Space[Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the class of a buffer that SB3's algorithms take, and its further arguments.

    :raises ValueError: if the library has no such class
    """
    library, method, _ = split_name(name)
    if library in OTHERS:
        raise ValueError(f"{name} has no class that SB3's algorithms take")
    if library == "extra":
        extra = import_module("contenders.extra")
        return extra.CLASSES[kind], extra.arguments(method, space)
    return like_sb3.class_like_sb3(name, kind, space)


def make_replay(name: str, setup: Setup) -> Replay:
    """Return the replay buffer of that name."""
    library, method, _ = split_name(name)
    if library in OTHERS:
        replay: Replay = import_module(f"contenders.{OTHERS[library]}").make_replay(method, setup)
        return replay
    cls, arguments = class_like_sb3(name, "replay", setup.observation_space)
    return ReplayLikeSB3(cls, setup, **arguments)


def make_rollout(name: str, setup: Setup) -> Rollout:
    """Return the rollout buffer of that name.

    :raises ValueError: if the library has none
    """
    cls, arguments = class_like_sb3(name, "rollout", setup.observation_space)
    return RolloutLikeSB3(cls, setup, **arguments)

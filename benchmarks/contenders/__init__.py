"""The buffers that are measured, each behind a small adapter and found by a text name.

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
from typing import Any

from gymnasium import spaces

from contenders.base import Batch, Replay, Rollout, Setup
from contenders.like_sb3 import ReplayLikeSB3, RolloutLikeSB3
from contenders.names import is_peer, split_name

__all__ = ["Batch", "Replay", "Rollout", "Setup", "class_like_sb3", "is_peer", "make_replay", "make_rollout"]

LIKE_SB3 = {"sb3": "plain", "ours": "ours", "extra": "extra"}
OTHERS = {"torchrl": "torchrl_lists", "cpprb": "cpprb_stacks"}


def class_like_sb3(name: str, kind: str, space: spaces.Space[Any]) -> tuple[Any, dict[str, Any]]:
    """Return the class of a buffer that SB3's algorithms take, and its further arguments.

    :param kind: ``REPLAY`` or ``ROLLOUT``
    :raises ValueError: if the library has no such class
    """
    library, method, threads = split_name(name)
    if library not in LIKE_SB3:
        raise ValueError(f"{name} has no class that SB3's algorithms take")
    module = import_module(f"contenders.{LIKE_SB3[library]}")
    return getattr(module, kind), module.arguments(method, space, threads)


def make_replay(name: str, setup: Setup) -> Replay:
    """Return the replay buffer of that name."""
    library, method, _ = split_name(name)
    if library in OTHERS:
        replay: Replay = import_module(f"contenders.{OTHERS[library]}").make_replay(method, setup)
        return replay
    cls, arguments = class_like_sb3(name, "REPLAY", setup.observation_space)
    return ReplayLikeSB3(cls, setup, **arguments)


def make_rollout(name: str, setup: Setup) -> Rollout:
    """Return the rollout buffer of that name.

    :raises ValueError: if the library has none
    """
    cls, arguments = class_like_sb3(name, "ROLLOUT", setup.observation_space)
    return RolloutLikeSB3(cls, setup, **arguments)

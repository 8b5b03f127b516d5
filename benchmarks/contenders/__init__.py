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
from sb3_compressed.benchmarking import sb3_adapters
from sb3_compressed.benchmarking.adapters import Replay, Rollout, Setup
from sb3_compressed.benchmarking.sb3_adapters import SB3ReplayAdapter, SB3RolloutAdapter

__all__ = ["Setup", "is_peer", "make_replay", "make_rollout", "sb3_class"]

OTHERS = {"torchrl": "torchrl_lists", "cpprb": "cpprb_stacks"}


def sb3_class(name: str, kind: Literal["replay", "rollout"], space: spaces.Space[Any]) -> tuple[Any, dict[str, Any]]:
    """Return the class of a buffer that SB3's algorithms take, and its further arguments.

    :raises ValueError: if the library has no such class
    """
    library, method, _ = split_name(name)
    if library in OTHERS:
        raise ValueError(f"{name} has no class that SB3's algorithms take")
    if library == "extra":
        extra = import_module("contenders.extra")
        return extra.CLASSES[kind], extra.arguments(method, space)
    return sb3_adapters.sb3_class(name, kind, space)


def make_replay(name: str, setup: Setup) -> Replay:
    """Return the replay buffer of that name."""
    library, method, _ = split_name(name)
    if library in OTHERS:
        replay: Replay = import_module(f"contenders.{OTHERS[library]}").make_replay(method, setup)
        return replay
    cls, arguments = sb3_class(name, "replay", setup.observation_space)
    return SB3ReplayAdapter(cls, setup, **arguments)


def make_rollout(name: str, setup: Setup) -> Rollout:
    """Return the rollout buffer of that name.

    :raises ValueError: if the library has none
    """
    cls, arguments = sb3_class(name, "rollout", setup.observation_space)
    return SB3RolloutAdapter(cls, setup, **arguments)

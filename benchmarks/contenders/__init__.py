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

from contenders.base import Batch, Replay, Rollout, Setup
from contenders.names import is_peer, split_name

__all__ = ["Batch", "Replay", "Rollout", "Setup", "is_peer", "make_replay", "make_rollout", "split_name"]

MODULES = {"sb3": "plain", "ours": "ours", "extra": "extra", "torchrl": "torchrl_lists", "cpprb": "cpprb_stacks"}


def make_replay(name: str, setup: Setup) -> Replay:
    """Return the replay buffer of that name."""
    library, method, threads = split_name(name)
    replay: Replay = _module(library).make_replay(method, setup, threads)
    return replay


def make_rollout(name: str, setup: Setup) -> Rollout:
    """Return the rollout buffer of that name.

    :raises AttributeError: if the library has none
    """
    library, method, threads = split_name(name)
    rollout: Rollout = _module(library).make_rollout(method, setup, threads)
    return rollout


def _module(library: str) -> Any:
    return import_module(f"contenders.{MODULES[library]}")

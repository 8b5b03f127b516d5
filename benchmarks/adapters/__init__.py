"""The buffers that are measured: this package's, SB3's, and those of other libraries behind small adapters.

========================  ================================================================================
``SB3``                   SB3's own buffer
``SB3:optimized``         the same with ``optimize_memory_usage=True`` and ``handle_timeout_termination=False``
``auto``, ``zstd-5`` ...  this package's buffer with a compression method; ``auto@1`` with ``num_threads=1``, and
                          ``auto@device`` with ``storage="device"``
``extra:zstd-3`` ...      sb3-extra-buffers with a compression method
``torchrl:zlib-3`` ...    TorchRL's ``CompressedListStorage`` with its own compression (``zlib``) or ``zstd``
``torchrl:memmap``        TorchRL's ``LazyMemmapStorage``, uncompressed in files
``cpprb``                 cpprb, which shares frames and does not compress
========================  ================================================================================

The last three are installed in their own environment, so each is imported by its adapter only.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from frame_recording import Recording
from gymnasium import spaces
from stable_baselines3.common import buffers

import sb3_compressed
from adapters.buffer_names import SB3_OPTIMIZED, is_on_device, is_peer, split_name
from adapters.sb3_adapters import ReplayAdapter, RolloutAdapter

__all__ = ["is_peer", "make_replay", "make_rollout", "sb3_class"]

NON_SB3_MODULES = {"torchrl": "torchrl_adapter", "cpprb": "cpprb_adapter"}


def sb3_class(name: str, kind: Literal["replay", "rollout"], space: spaces.Space[Any]) -> tuple[Any, dict[str, Any]]:
    """Return a buffer class for SB3's algorithms, and its additional arguments.

    :raises ValueError: if the library has no such class
    """
    library, method, threads = split_name(name)
    if library in NON_SB3_MODULES:
        raise ValueError(f"{name} has no class for SB3's algorithms")
    if library == "extra":
        extra = import_module("adapters.extra_buffers")
        return extra.CLASSES[kind], extra.arguments(method, space)
    cls_name = f"{'Dict' if isinstance(space, spaces.Dict) else ''}{kind.capitalize()}Buffer"
    if name == SB3_OPTIMIZED:
        if cls_name != "ReplayBuffer":
            raise ValueError(f"{name} is available for replay buffers without Dict observations only")
        return buffers.ReplayBuffer, {"optimize_memory_usage": True, "handle_timeout_termination": False}
    if library == "sb3":
        return getattr(buffers, cls_name), {}
    cls = getattr(sb3_compressed, f"Compressed{cls_name}")
    storage = {"storage": "device"} if is_on_device(name) else {}
    return cls, {"compression_method": method, **storage, **({} if threads is None else {"num_threads": threads})}


def make_replay(name: str, recording: Recording, rows: int, **options: Any) -> ReplayAdapter:
    """Return a replay buffer by name, for that many steps of a recording.

    :param options: further arguments of buffers with SB3's interface
    """
    library, method, _ = split_name(name)
    if library in NON_SB3_MODULES:
        replay: ReplayAdapter = import_module(f"adapters.{NON_SB3_MODULES[library]}").make_replay(
            method, recording, rows
        )
        return replay
    cls, arguments = sb3_class(name, "replay", recording.observation_space)
    return ReplayAdapter(cls, recording, rows, **arguments, **options)


def make_rollout(name: str, recording: Recording, rows: int) -> RolloutAdapter:
    """Return a rollout buffer by name, for that many steps of a recording.

    :raises ValueError: if the library has none
    """
    cls, arguments = sb3_class(name, "rollout", recording.observation_space)
    return RolloutAdapter(cls, recording, rows, **arguments)

"""Validation of the arguments of :class:`.DistributedReplayBuffer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence.buffer_storage import StorageLocation, StorageMode
from sb3_compressed.samplers import PrioritizedSampler, RecentSampler, Sampler, get_sampler

__all__ = ["ShardOptions", "remove_names", "validated_sampler"]

#: What can be done with shards in a folder.
STORAGE_MODES = ("create", "resume", "overwrite")
#: Numbers of transitions have room for so many shards, also if a mix of up to eight buffers multiplies them.
MAX_SHARDS = 1 << 7


@dataclass(frozen=True)
class ShardOptions:
    """How shards are started, see :class:`.DistributedReplayBuffer`.

    :raises ValueError: if a number is out of range, or there is no such mode for shards
    """

    n_shards: int
    storage: StorageLocation
    storage_mode: StorageMode
    ray_options: Mapping[str, Any]
    timeout: float

    def __post_init__(self) -> None:
        validate_integer("n_shards", self.n_shards, 1)
        if self.n_shards >= MAX_SHARDS:
            raise ValueError(f"n_shards must be less than {MAX_SHARDS}, got {self.n_shards}")
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"timeout must be a positive number of seconds, got {self.timeout!r}")
        if self.storage_mode not in STORAGE_MODES:
            raise StorageError(f"storage_mode must be one of {STORAGE_MODES}, got {self.storage_mode!r}")

    @property
    def folder(self) -> Path | None:
        """The folder to store shards in, ``None`` for memory."""
        return None if self.storage == "memory" else user_path(self.storage).absolute()


def remove_names(options: dict[str, Any]) -> None:
    """Remove arguments of shards that outlived their learner in 0.3.0, which models of that version pass."""
    if names := [name for name in ("name", "lease") if options.pop(name, None) is not None]:
        warn_user(
            f"{' and '.join(names)} of a distributed buffer have no effect any more: shards end with their learner; "
            "pass storage=<folder> and storage_mode='resume' to continue with what they contain"
        )


def validated_sampler(sampler: str | Sampler) -> PrioritizedSampler | RecentSampler | None:
    """Return the configured sampler, ``None`` for uniform sampling.

    :raises ValueError: if it is another one
    """
    configured = get_sampler(sampler)
    if not isinstance(configured, PrioritizedSampler | RecentSampler | None):
        raise ValueError(
            f"sampler must be 'uniform', 'prioritized' or 'recent', got {sampler!r}: others know nothing of the "
            "transitions in other shards"
        )
    return configured

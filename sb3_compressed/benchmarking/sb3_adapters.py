"""Adapters for buffers with SB3's interface.

==========================  ==========================================================================
``SB3``                     SB3's own buffer with default arguments
``auto``, ``zstd-5``, ...   the buffer of this package with a compression method
``auto@1``                  the same with ``num_threads=1``
==========================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common import buffers

import sb3_compressed
from sb3_compressed.arrays import CompressedArray
from sb3_compressed.benchmarking.adapters import Adapter, Batch, ReplayAdapter, RolloutAdapter, Setup
from sb3_compressed.tree_map import tree_map

if TYPE_CHECKING:
    from sb3_compressed.benchmarking.frame_recording import Step

__all__ = ["SB3", "SB3ReplayAdapter", "SB3RolloutAdapter", "make_replay", "make_rollout", "sb3_class"]

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


def make_replay(name: str, setup: Setup) -> ReplayAdapter:
    """Return a replay buffer by name."""
    cls, arguments = sb3_class(name, "replay", setup.observation_space)
    return SB3ReplayAdapter(cls, setup, **arguments)


def make_rollout(name: str, setup: Setup) -> RolloutAdapter:
    """Return a rollout buffer by name."""
    cls, arguments = sb3_class(name, "rollout", setup.observation_space)
    return SB3RolloutAdapter(cls, setup, **arguments)


class SB3Adapter(Adapter):
    """A buffer with SB3's interface."""

    buffer: Any

    def nbytes(self) -> int:
        observations = getattr(self.buffer, "observations_nbytes", 0)
        of_observations = {"observations", "next_observations"} if observations else set()
        arrays = [array for name, array in self._parts() if name not in of_observations]
        return observations + sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def codec_state_nbytes(self) -> int:
        codecs = {id(codec): codec for array in self._compressed() for codec in array.store.codecs(array.slots)}
        return sum(codec.nbytes for codec in codecs.values())

    def reserved_nbytes(self) -> int:
        return sum(array.slots.nbytes for array in self._compressed())

    def _compressed(self) -> list[CompressedArray]:
        return [array for _, array in self._parts() if isinstance(array, CompressedArray)]

    def _parts(self) -> Iterator[tuple[str, Any]]:
        """Yield all attributes of the buffer by name, of Dict observations each part."""
        for name, value in vars(self.buffer).items():
            for each in value.values() if isinstance(value, dict) else [value]:
                yield name, each


class SB3ReplayAdapter(SB3Adapter, ReplayAdapter):
    """A replay buffer, created from its class and additional arguments."""

    def __init__(self, cls: Any, setup: Setup, **kwargs: Any) -> None:
        if setup.saves_next_obs:
            kwargs = {**kwargs, "optimize_memory_usage": True, "handle_timeout_termination": False}
        space, actions = setup.observation_space, setup.action_space
        self.buffer = cls(setup.size, space, actions, device="cpu", n_envs=setup.n_envs, **kwargs)

    def add(self, step: Step) -> None:  # noqa: D102
        self.buffer.add(step.obs, step.next_obs, step.action, step.reward, step.done, step.infos)

    def sample(self, batch_size: int) -> Any:  # noqa: D102
        return self.buffer.sample(batch_size)

    def read(self, batch: Any) -> Batch:  # noqa: D102
        obs, next_obs = (tree_map(th.Tensor.numpy, each) for each in (batch.observations, batch.next_observations))
        return Batch(obs, next_obs, batch.rewards.numpy().ravel())


class SB3RolloutAdapter(SB3Adapter, RolloutAdapter):
    """A rollout buffer, created from its class and additional arguments."""

    def __init__(self, cls: Any, setup: Setup, **kwargs: Any) -> None:
        rows = setup.size // setup.n_envs
        space, actions = setup.observation_space, setup.action_space
        self.buffer = cls(rows, space, actions, device="cpu", n_envs=setup.n_envs, **kwargs)
        self._log_probs = th.zeros(setup.n_envs)
        self._starts = np.ones(setup.n_envs, np.bool_)

    def reset(self) -> None:  # noqa: D102
        self.buffer.reset()

    def add(self, step: Step) -> None:
        """Add a step with its rewards as values, since batches of rollouts contain no rewards."""
        values = th.as_tensor(step.reward)
        self.buffer.add(step.obs, step.action, step.reward, self._starts, values, self._log_probs)
        self._starts = step.done

    def get(self, batch_size: int) -> Iterator[Any]:  # noqa: D102
        return iter(self.buffer.get(batch_size))

    def read(self, batch: Any) -> Batch:  # noqa: D102
        return Batch(tree_map(th.Tensor.numpy, batch.observations), np.empty(0), batch.old_values.numpy().ravel())

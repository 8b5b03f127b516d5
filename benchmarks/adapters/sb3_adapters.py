"""The interface that benchmarks require of a buffer, here of buffers with SB3's interface."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch as th
from frame_recording import Recording
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.common.tree_map import leaves, tree_map
from sb3_compressed.step import Step

__all__ = ["Batch", "ReplayAdapter", "RolloutAdapter"]


class Batch(NamedTuple):
    """A sampled batch, as the round-trip check reads it."""

    obs: Any
    next_obs: Any  # None for rollouts
    serial: NDArray[Any]  # the rewards


class Adapter:
    """A buffer, used as a user of its library would."""

    #: The buffer, whose memory is measured; buffers of other libraries have other interfaces.
    buffer: Any = SimpleNamespace()

    def codec_state_nbytes(self) -> int:
        """Return the size of the trained state of its codec, which does not grow with each transition."""
        codecs = {id(codec): codec for array in self._compressed() for codec in array.stream.log.trained_codecs()}
        return sum(codec.nbytes for codec in codecs.values())

    def reserved_nbytes(self) -> int:
        """Return the bytes allocated for all transitions when the first is added."""
        return sum(array.references.nbytes for array in self._compressed())

    def _compressed(self) -> list[CompressedArray]:
        """Return the compressed arrays of the buffer, of Dict observations each part."""
        parts = (part for value in vars(self.buffer).values() for part in leaves(value))
        return [part for part in parts if isinstance(part, CompressedArray)]


class ReplayAdapter(Adapter):
    """A replay buffer for the steps of a recording, created from its class and additional arguments."""

    def __init__(self, cls: Any, recording: Recording, rows: int, **kwargs: Any) -> None:
        n_envs, space = recording.n_envs, recording.observation_space
        self.buffer = cls(rows * n_envs, space, recording.action_space, device="cpu", n_envs=n_envs, **kwargs)

    def add(self, step: Step) -> None:
        """Add one transition of every environment."""
        step.add_to(self.buffer)

    def sample(self, batch_size: int) -> Any:
        """Return a batch of the library with all observations decoded."""
        return self.buffer.sample(batch_size)

    def read(self, batch: Any) -> Batch:
        """Convert a batch of the library."""
        obs, next_obs = (tree_map(th.Tensor.numpy, each) for each in (batch.observations, batch.next_observations))
        return Batch(obs, next_obs, batch.rewards.numpy().ravel())


class RolloutAdapter(Adapter):
    """A rollout buffer for the steps of a recording, created from its class and additional arguments."""

    def __init__(self, cls: Any, recording: Recording, rows: int, **kwargs: Any) -> None:
        n_envs, space = recording.n_envs, recording.observation_space
        self.buffer = cls(rows, space, recording.action_space, device="cpu", n_envs=n_envs, **kwargs)
        self._log_probs = th.zeros(n_envs)
        self._starts = np.ones(n_envs, np.bool_)

    def add(self, step: Step) -> None:
        """Add a step with its rewards as values, since batches of rollouts contain no rewards."""
        values = th.as_tensor(step.reward)
        self.buffer.add(step.obs, step.action, step.reward, self._starts, values, self._log_probs)
        self._starts = step.done

    def read(self, batch: Any) -> Batch:
        """Convert a batch."""
        return Batch(tree_map(th.Tensor.numpy, batch.observations), None, batch.old_values.numpy().ravel())

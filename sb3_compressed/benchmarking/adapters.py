"""The interface that benchmarks require of a buffer of any library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sb3_compressed.benchmarking.frame_recording import Recording, Step
    from sb3_compressed.benchmarking.observations import Observations


@dataclass(frozen=True)
class Setup:
    """Arguments for the construction of a buffer."""

    size: int  # transitions of all environments
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    n_envs: int
    n_stack: int = 1  # frames per observation
    saves_next_obs: bool = False  # SB3's optimize_memory_usage, used for the published table of sb3-extra-buffers

    @classmethod
    def of(cls, recording: Recording, rows: int, *, saves_next_obs: bool = False) -> Setup:
        """Return the setup of a buffer for that many steps of a recording."""
        spaces = recording.observation_space, recording.action_space
        n_envs, n_stack = recording.n_envs, recording.n_stack
        return cls(rows * n_envs, *spaces, n_envs, n_stack, saves_next_obs)


@dataclass
class Batch:
    """A sampled batch, as the round-trip check reads it."""

    obs: Observations
    next_obs: Observations
    serial: NDArray[Any]  # the rewards


class Adapter(ABC):
    """A buffer, used as a user of its library would."""

    @abstractmethod
    def add(self, step: Step) -> None:
        """Add one transition of every environment; rollouts use made-up values and log probabilities."""

    @abstractmethod
    def read(self, batch: Any) -> Batch:
        """Convert a batch of the library; next observations are empty for rollouts."""

    def nbytes(self) -> int:
        """Return the size of its arrays and all they refer to, a lower bound of its memory; 0 if unknown."""
        return 0

    def codec_state_nbytes(self) -> int:
        """Return the size of the trained state of its codec, which does not grow with each transition."""
        return 0

    def reserved_nbytes(self) -> int:
        """Return the bytes allocated for all transitions when the first is added."""
        return 0


class ReplayAdapter(Adapter):
    """A replay buffer."""

    @abstractmethod
    def sample(self, batch_size: int) -> Any:
        """Return a batch of the library with all observations decoded."""


class RolloutAdapter(Adapter):
    """A rollout buffer."""

    @abstractmethod
    def reset(self) -> None:
        """Empty the buffer."""

    @abstractmethod
    def get(self, batch_size: int) -> Iterator[Any]:
        """Iterate over all batches once."""

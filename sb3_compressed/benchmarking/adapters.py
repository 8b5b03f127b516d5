"""What measurements ask of a buffer, whatever library it is from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sb3_compressed.benchmarking.frame_recording import Recording, Step
    from sb3_compressed.benchmarking.tree_map import Observations


@dataclass(frozen=True)
class Setup:
    """What a buffer is constructed for."""

    size: int  # transitions, of all environments together
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    n_envs: int
    n_stack: int = 1  # frames in an observation
    saves_next_obs: bool = False  # SB3's optimize_memory_usage, with which sb3-extra-buffers published its table

    @classmethod
    def of(cls, recording: Recording, rows: int, *, saves_next_obs: bool = False) -> Setup:
        """Return what a buffer for that many steps of a recording is constructed for."""
        spaces = recording.observation_space, recording.action_space
        n_envs, n_stack = recording.n_envs, recording.n_stack
        return cls(rows * n_envs, *spaces, n_envs, n_stack, saves_next_obs)


@dataclass
class Batch:
    """What a sampled batch holds, for a look at whether it is true."""

    obs: Observations
    next_obs: Observations
    serial: NDArray[Any]  # the rewards


class Replay(ABC):
    """A replay buffer, used as a user of its library would use it."""

    @abstractmethod
    def add(self, step: Step) -> None:
        """Add one transition of every environment."""

    @abstractmethod
    def sample(self, batch_size: int) -> Any:
        """Return a batch as the library gives it, with all observations there to be used."""

    @abstractmethod
    def read(self, batch: Any) -> Batch:
        """Take apart what :meth:`sample` returned."""

    def nbytes(self) -> int:
        """Return the bytes that its arrays take with all they refer to, if it can tell: memory is no less."""
        return 0

    def codec_state_nbytes(self) -> int:
        """Return the bytes of what its codec has learned, which do not grow with every transition."""
        return 0

    def reserved_nbytes(self) -> int:
        """Return the bytes that it takes for all transitions at once when the first is added."""
        return 0


class Rollout(ABC):
    """A rollout buffer."""

    @abstractmethod
    def reset(self) -> None:
        """Empty it."""

    @abstractmethod
    def add(self, step: Step) -> None:
        """Add one step of every environment, with values and log probabilities made up."""

    @abstractmethod
    def get(self, batch_size: int) -> Iterator[Any]:
        """Go over all batches once."""

    @abstractmethod
    def read(self, batch: Any) -> Batch:
        """Take apart a batch; a rollout's has no next observations, those are empty."""

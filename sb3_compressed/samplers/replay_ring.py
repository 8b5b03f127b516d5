"""``ReplayRing``: a replay buffer, as samplers, folders and shards know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    from gymnasium import spaces

    from sb3_compressed.samplers.bound_sampler import BoundSampler
    from sb3_compressed.samplers.episode_table import EpisodeTable

__all__ = ["ReplayRing"]


class ReplayRing(Protocol):
    """Rows of transitions, one of each environment, of which new ones overwrite the oldest.

    Its arrays are attributes with the names that SB3 gives them. They have the axes ``(buffer_size, n_envs)`` first;
    :func:`~sb3_compressed.persistence.buffer_state.named_arrays` returns those of a ring that are to be stored.
    """

    #: Number of rows.
    buffer_size: int
    #: Number of environments.
    n_envs: int
    #: The row that is written next.
    pos: int
    #: Whether all rows are written.
    full: bool
    #: Whether the next observation of a row is the observation of the following row, as in SB3. Row ``pos`` of a full
    #: ring then contains the last next observation, and no transition.
    optimize_memory_usage: bool
    #: Arguments that construct a buffer of this kind, by name.
    given_arguments: dict[str, Any]
    #: Observations, or a dict of them.
    observations: Any
    actions: NDArray[Any]
    rewards: NDArray[Any]
    dones: NDArray[Any]
    timeouts: NDArray[Any]

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The observation space."""

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The action space."""

    @property
    def bound_sampler(self) -> BoundSampler | None:
        """The sampler with the transitions that it may draw, ``None`` for SB3's own sampling."""

    @property
    def episodes(self) -> EpisodeTable | None:
        """The episodes of hindsight replay, ``None`` for other buffers."""

    def size(self) -> int:
        """Return the number of rows that are written."""

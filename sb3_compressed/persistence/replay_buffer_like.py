"""``ReplayBufferLike``: what folders and shards use of a replay buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from sb3_compressed.samplers.bound_sampler import BoundSampler, SamplerBuffer

if TYPE_CHECKING:
    from gymnasium import spaces

__all__ = ["ReplayBufferLike"]


class ReplayBufferLike(SamplerBuffer, Protocol):
    """What folders and shards use of a replay buffer, by the names that SB3 uses.

    Its arrays have the axes ``(buffer_size, n_envs)`` first. They are a ring: new rows overwrite the oldest.
    :func:`~sb3_compressed.persistence.buffer_state.named_arrays` returns those that are to be stored.
    """

    #: Number of rows.
    buffer_size: int
    #: Number of environments.
    n_envs: int
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

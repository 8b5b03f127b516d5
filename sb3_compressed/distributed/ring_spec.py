"""``RingSpec``: how the replay buffers of shards and writers are constructed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces

from sb3_compressed.buffers.n_step import CompressedNStepReplayBuffer
from sb3_compressed.buffers.replay import CompressedDictReplayBuffer, CompressedReplay, CompressedReplayBuffer
from sb3_compressed.samplers import Sampler
from sb3_compressed.storage.spaces import space_from_data, space_to_data

__all__ = ["RingSpec"]

SPACES = "observation_space", "action_space"


@dataclass(frozen=True)
class RingSpec:
    """What all rings of a distributed buffer have in common.

    Its pickle contains spaces as folders store them, in a few hundred bytes: a Box has four arrays as large as an
    observation, and arguments of more than 100 kB keep Ray from restarting an actor, such as one with a writer.

    :param observation_space: the observation space
    :param action_space: the action space
    :param arguments: arguments of the buffers: compression options and ``handle_timeout_termination``
    :param sampler: how transitions of a ring are drawn, ``"uniform"`` or a configured sampler
    :param n_steps: number of steps of the returns
    :param gamma: discount factor of n-step returns
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    sampler: str | Sampler = "uniform"
    n_steps: int = 1
    gamma: float = 0.99

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **{name: space_to_data(getattr(self, name)) for name in SPACES}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({**state, **{name: space_from_data(state[name]) for name in SPACES}})

    @property
    def is_dict(self) -> bool:
        """Whether observations are dicts."""
        return isinstance(self.observation_space, spaces.Dict)

    def staging(self, n_rows: int, n_envs: int, num_threads: int | None) -> CompressedReplay:
        """Return a buffer in memory that encodes the rows of a segment."""
        return self._new(n_rows, n_envs, num_threads=num_threads)

    def ring(self, n_rows: int, n_envs: int, **storage: Any) -> CompressedReplay:
        """Return the buffer of a ring.

        :param storage: ``storage`` and ``storage_mode`` for a folder
        """
        returns = {"n_steps": self.n_steps, "gamma": self.gamma} if self.n_steps > 1 else {}
        with warnings.catch_warnings():
            # The distributed buffer warns of all rings together.
            warnings.filterwarnings("ignore", ".*(do not fit|time limits)", UserWarning)
            return self._new(n_rows, n_envs, sampler=self.sampler, num_threads=1, **storage, **returns)

    def _new(self, n_rows: int, n_envs: int, **arguments: Any) -> CompressedReplay:
        cls: type[CompressedReplay] = CompressedDictReplayBuffer if self.is_dict else CompressedReplayBuffer
        if "n_steps" in arguments:
            cls = CompressedNStepReplayBuffer
        return cls(
            n_rows * n_envs, self.observation_space, self.action_space, device="cpu", n_envs=n_envs,
            **{**self.arguments, **arguments},
        )  # fmt: skip

"""Adapters for every buffer with SB3's interface: SB3's, this package's, and those of sb3-extra-buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th

from contenders.base import Batch, Replay, Rollout, Setup

if TYPE_CHECKING:
    from recording import Step


class ReplayLikeSB3(Replay):
    """A subclass of SB3's ReplayBuffer, made from its class and further arguments."""

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
        return Batch(batch.observations.numpy(), batch.next_observations.numpy(), batch.rewards.numpy().ravel())


class RolloutLikeSB3(Rollout):
    """A subclass of SB3's RolloutBuffer, made from its class and further arguments."""

    def __init__(self, cls: Any, setup: Setup, **kwargs: Any) -> None:
        rows = setup.size // setup.n_envs
        space, actions = setup.observation_space, setup.action_space
        self.buffer = cls(rows, space, actions, device="cpu", n_envs=setup.n_envs, **kwargs)
        self._made_up = th.zeros(setup.n_envs)
        self._starts = np.ones(setup.n_envs, np.bool_)

    def reset(self) -> None:  # noqa: D102
        self.buffer.reset()

    def add(self, step: Step) -> None:
        """Add a step; its rewards go where the batch shows them: in place of the values."""
        values = th.as_tensor(step.reward)
        self.buffer.add(step.obs, step.action, step.reward, self._starts, values, self._made_up)
        self._starts = step.done

    def get(self, batch_size: int) -> Iterator[Any]:  # noqa: D102
        return iter(self.buffer.get(batch_size))

    def read(self, batch: Any) -> Batch:  # noqa: D102
        return Batch(batch.observations.numpy(), np.empty(0), batch.old_values.numpy().ravel())

"""``CompressedNStepReplayBuffer``: returns of several steps."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed.buffers.allocation import BaseConstructor
from sb3_compressed.buffers.arguments import warn_of_time_limits
from sb3_compressed.buffers.base import Methods
from sb3_compressed.buffers.observations import take
from sb3_compressed.buffers.replay import CompressedReplay, Transitions
from sb3_compressed.buffers.validation import require_numbers_per_env

__all__ = ["CompressedNStepReplayBuffer"]


class _StepsOfReturns(NamedTuple):
    """The steps of a batch of returns of several steps.

    :ivar indices: their flat indices, ``(batch_size, n_steps)``
    :ivar last: the number of the last step that each return includes, ``(batch_size,)``
    :ivar dones: whether an episode terminates with that step, ``(batch_size,)``
    """

    indices: NDArray[np.int64]
    last: NDArray[np.int64]
    dones: NDArray[np.float32]


class CompressedNStepReplayBuffer(CompressedReplay, NStepReplayBuffer, BaseConstructor):
    """SB3's ``NStepReplayBuffer``, compressed.

    SB3 configures n-step returns for its own class only; for any other, pass ``n_steps`` and the model's ``gamma`` to
    the buffer. Without it, ``gamma`` is 0.99, as in SB3's class, whatever that of the model is:

    >>> from stable_baselines3 import DQN
    >>> model = DQN(
    ...     "MlpPolicy",
    ...     "CartPole-v1",
    ...     replay_buffer_class=CompressedNStepReplayBuffer,
    ...     replay_buffer_kwargs=dict(n_steps=3, gamma=0.99),
    ... )

    With ``handle_timeout_termination=False``, returns continue into the next episode where a time limit ended one, as
    in SB3's class; a warning says so.

    Arguments: those of ``NStepReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    REIMPLEMENTED: ClassVar[Methods] = (*CompressedReplay.REIMPLEMENTED, NStepReplayBuffer._get_samples)

    def _construct_parent(self, arguments: dict[str, Any]) -> None:
        if arguments.get("n_steps", 3) > 1 and not arguments.get("handle_timeout_termination", True):
            warn_of_time_limits("n-step returns")
        super()._construct_parent(arguments)

    def _transitions_at(self, indices: NDArray[np.int64], env: VecNormalize | None = None) -> Transitions:
        require_numbers_per_env(self, "n-step returns", "rewards", "dones")
        steps = self._steps_of_returns(indices)
        rewards = self._normalize_reward(take(self.rewards, steps.indices), env)
        is_included = np.arange(self.n_steps) <= steps.last[:, None]
        discounts = self.gamma ** np.arange(self.n_steps, dtype=np.float32)
        returns = (rewards * discounts * is_included).sum(axis=1, keepdims=True)
        return Transitions(
            indices,
            steps.indices[np.arange(len(indices)), steps.last],
            take(self.actions, indices),
            steps.dones.reshape(-1, 1),
            returns,
            self.gamma ** is_included.sum(axis=1, keepdims=True).astype(np.float32),
        )

    def _steps_of_returns(self, first: NDArray[np.int64]) -> _StepsOfReturns:
        """Return the steps of the returns of the transitions at some flat indices, ``(batch_size,)``."""
        n_envs = self.n_envs
        indices = (first[:, None] + np.arange(self.n_steps) * n_envs) % (self.buffer_size * n_envs)
        dones, timeouts = take(self.dones, indices), take(self.timeouts, indices)
        # What follows the newest row is of another episode.
        is_newest = indices // n_envs == (self.pos - 1) % len(self.timeouts)  # as in SB3
        timeouts = np.where(is_newest, (timeouts != 0) | (dones == 0), timeouts)
        is_last = (dones != 0) | (timeouts != 0)
        last = np.where(is_last.any(axis=1), is_last.argmax(axis=1), self.n_steps - 1)
        final = np.arange(len(first)), last
        final_dones = dones[final].astype(np.float32) * (1.0 - timeouts[final].astype(np.float32))
        return _StepsOfReturns(indices, last, final_dones)

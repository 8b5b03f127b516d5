"""``CompressedRollout``: the mixin that turns SB3's rollout buffers into compressed ones."""

from __future__ import annotations

from functools import partial
from typing import Any

from sb3_compressed.buffers.base import CompressedBuffer
from sb3_compressed.buffers.validation import (
    kind_of,
    validate_integer,
    validate_numbers,
    validate_observations,
    validate_per_env,
    validate_tensor,
)
from sb3_compressed.errors import BufferNotReady

__all__ = ["CompressedRollout"]


class CompressedRollout(CompressedBuffer):
    """Mixin of compressed rollout buffers; it precedes SB3's or sb3-contrib's class in the bases.

    As rollouts and training alternate, a buffer is for one thread only.
    """

    _sampling_method = "_get_samples"  # get() is a generator, and training runs between its batches

    def reset(self) -> None:
        """Empty the buffer for the next rollout, as SB3's buffer does."""
        if "_placeholder_shape" not in self.__dict__:  # called by the parent's constructor, with the placeholder space
            super().reset()
            return
        shape = self.obs_shape
        self.obs_shape = self._placeholder_shape
        try:
            super().reset()
        finally:
            self.obs_shape = shape
        self._install_arrays()

    def add(
        self, obs: Any, action: Any, reward: Any, episode_start: Any, value: Any, log_prob: Any, **kwargs: Any
    ) -> None:
        """Add a step of every environment, as SB3's buffer does.

        :param obs: observations ``(n_envs, *obs_shape)``, or a dict of them
        :param action: actions ``(n_envs, action_dim)``
        :param reward: rewards ``(n_envs,)``
        :param episode_start: whether an episode starts with this step, ``(n_envs,)``
        :param value: estimated values of the observations, a tensor of ``n_envs`` elements
        :param log_prob: log probabilities of the actions, a tensor of ``n_envs`` elements
        :param kwargs: further arguments of the parent, such as ``action_masks`` or ``lstm_states``, which are passed on
            without validation
        :raises ValueError: if an argument does not fit; the step then does not count
        :raises TypeError: if an argument is not numeric; likewise
        :raises IndexError: if the buffer is full; call :meth:`reset`
        """
        if self.full:
            raise IndexError(f"the rollout buffer is full after {self.buffer_size} steps; call reset() first")
        try:
            kinds = (
                kind_of(obs), type(action), action.dtype, action.shape,
                type(reward), reward.dtype, reward.shape, type(episode_start), episode_start.dtype, episode_start.shape,
                type(value), value.shape, value.requires_grad, type(log_prob), log_prob.shape, log_prob.requires_grad,
            )  # fmt: skip
        except AttributeError:  # lists
            kinds = None
        if kinds is None or kinds != self._validated_kinds:
            given = (obs,), (action, reward, episode_start, value, log_prob)
            obs, action, reward, episode_start, value, log_prob = self._validate_step(kinds, *given)
        if self._new_arrays and self.passes_encoded_rows:
            [obs] = self._encode(obs)
        elif type(obs) is dict:
            obs = dict(obs)  # SB3 writes into it
        super().add(obs, action, reward, episode_start, value, log_prob, **kwargs)

    def _validated_step(self, *given: Any) -> tuple[Any, ...]:
        obs, action, reward, episode_start, value, log_prob = given
        validate_tensor("value", value, self.n_envs)  # which SB3 makes flat
        return (
            validate_observations("obs", obs, self.observations, self.observation_space, self.n_envs),
            validate_numbers("action", action, self.n_envs * self.action_dim, self.n_envs),
            validate_per_env("reward", reward, self.n_envs),
            validate_per_env("episode_start", episode_start, self.n_envs),
            value,
            validate_tensor("log_prob", log_prob, self.n_envs),
        )

    def get(self, batch_size: int | None = None) -> Any:
        """Return a generator of batches in random order, as SB3's buffer does.

        :param batch_size: number of steps in a batch, ``None`` for all in one
        :raises BufferNotReady: if the buffer is not full
        :raises ValueError: if ``batch_size`` is not positive, with which SB3 would yield batches forever
        :raises TypeError: if it is not an integer
        """
        if not self.full:
            raise BufferNotReady(
                f"Rollout buffer must be full before sampling from it: it has {self.pos} of {self.buffer_size} steps"
            )
        if batch_size is not None:
            validate_integer("batch_size", batch_size, 1)
        return super().get(batch_size)  # type: ignore[misc]  # BaseBuffer has none

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        make = partial(super()._get_samples, *args, **kwargs)  # type: ignore[safe-super]
        return self._batch(make, may_be_referenced=False)

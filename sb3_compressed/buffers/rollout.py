"""Compressed rollout buffers, one for each of SB3's: ``add``, ``get`` and ``_get_samples``.

Those of sb3-contrib are in :mod:`.contrib_rollout`.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer, DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.allocation import BaseConstructor
from sb3_compressed.buffers.array_attributes import ArrayDict
from sb3_compressed.buffers.base import CompressedBuffer, Methods
from sb3_compressed.buffers.observations import encode_observations, write_observations
from sb3_compressed.buffers.tensors import as_array, tensor_converter, torch_device
from sb3_compressed.buffers.validation import (
    kinds_of_step,
    validate_integer,
    validate_numbers,
    validate_observations,
    validate_row,
    validate_tensor,
)
from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.errors import BufferNotReady
from sb3_compressed.persistence.buffer_state import observation_arrays

__all__ = ["CompressedDictRolloutBuffer", "CompressedMinibatches", "CompressedRollout", "CompressedRolloutBuffer"]


class CompressedRollout(CompressedBuffer):
    """Mixin of compressed rollout buffers; it precedes SB3's or sb3-contrib's class in the bases."""

    REIMPLEMENTED: ClassVar[Methods] = (
        RolloutBuffer.add, RolloutBuffer.reset, DictRolloutBuffer.add, DictRolloutBuffer.reset
    )  # fmt: skip
    episode_starts: NDArray[np.float32]
    values: NDArray[np.float32]
    log_probs: NDArray[np.float32]
    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]
    generator_ready: bool

    _is_short_lived = True
    _sampling_method = "_get_samples"  # get() is a generator, and training runs between its batches

    def reset(self) -> None:
        """Empty the buffer for the next rollout: allocate new arrays of the present sizes and space, as SB3's does."""
        parent = super().reset
        if getattr(parent, "__func__", None) in self.REIMPLEMENTED:
            self._allocate()
        else:  # that of a user's class between this one and SB3's, or one that has replaced SB3's
            parent()  # arrays that it assigns become compressed
        for _, array in observation_arrays(self):
            if isinstance(array, CompressedArray):
                array.stream.log.free_unused()

    def _allocate(self) -> None:
        """Allocate all arrays, as SB3's ``reset`` does."""
        rows = self.buffer_size, self.n_envs
        vars(self)["observations"] = self._new_observations()
        self._array_factory.valid_kinds = None  # which may be those of other sizes
        self.actions = np.zeros((*rows, self.action_dim), dtype=self.action_space.dtype)
        self.rewards = np.zeros(rows, dtype=np.float32)
        self.returns = np.zeros(rows, dtype=np.float32)
        self.episode_starts = np.zeros(rows, dtype=np.float32)
        self.values = np.zeros(rows, dtype=np.float32)
        self.log_probs = np.zeros(rows, dtype=np.float32)
        self.advantages = np.zeros(rows, dtype=np.float32)
        self.generator_ready = False
        BaseBuffer.reset(self)

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, value: Any, log_prob: Any) -> None:
        """Add a step of every environment, as SB3's buffer does.

        :param obs: observations ``(n_envs, *obs_shape)``, or a dict of them
        :param action: actions ``(n_envs, action_dim)``
        :param reward: rewards ``(n_envs,)``
        :param episode_start: whether an episode starts with this step, ``(n_envs,)``
        :param value: estimated values of the observations, a tensor of ``n_envs`` elements
        :param log_prob: log probabilities of the actions, a tensor of ``n_envs`` elements
        :raises ValueError: if an argument does not fit; the step then does not count
        :raises TypeError: if an argument is not numeric; likewise
        :raises IndexError: if the buffer is full; call :meth:`reset`
        """
        row = index(self.pos)  # also if it is an array of NumPy
        if row >= len(self.rewards):
            raise IndexError(f"the rollout buffer is full after {row} steps; call reset() first")
        kinds = kinds_of_step(obs, action, reward, episode_start, value, log_prob)
        if kinds is None or kinds != self._array_factory.valid_kinds or value.requires_grad or log_prob.requires_grad:
            given = (obs,), (action, reward, episode_start, value, log_prob)
            obs, action, reward, episode_start, value, log_prob = self._validate_step(kinds, *given)
        observations = self.__dict__["observations"]
        [encoded] = encode_observations(observations, obs)
        write_observations(observations, row, encoded)
        self.actions[row] = action.reshape(self.n_envs, self.action_dim)
        self.rewards[row] = reward
        self.episode_starts[row] = episode_start
        self.values[row] = value.cpu().numpy().flatten()
        self.log_probs[row] = log_prob.cpu().numpy()
        # In this order: interrupted in between, the last step is repeated; in the other one, the buffer would never
        # become full.
        if row + 1 == self.buffer_size:
            self.full = True
        self.pos = row + 1

    def _validated_arguments(self, *given: Any) -> tuple[Any, ...]:
        obs, action, reward, episode_start, value, log_prob = given
        validate_tensor("value", value.flatten() if hasattr(value, "flatten") else value, self.values, self.n_envs)
        return (
            validate_observations("obs", obs, self.observations, self.observation_space, self.n_envs),
            validate_numbers("action", action, self.n_envs * self.action_dim, self.n_envs),
            validate_row("reward", reward, np.shape(self.rewards)[1:]),
            validate_row("episode_start", episode_start, np.shape(self.episode_starts)[1:]),
            value,
            validate_tensor("log_prob", log_prob, self.log_probs, self.n_envs),
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
        return self._batches(batch_size)

    def _batches(self, batch_size: int | None) -> Any:
        return super().get(batch_size)  # type: ignore[misc]  # BaseBuffer has none

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        return self._output(super()._get_samples(*args, **kwargs))  # type: ignore[safe-super]


class CompressedMinibatches(CompressedRollout):
    """Mixin of rollout buffers whose batches are single steps."""

    REIMPLEMENTED: ClassVar[Methods] = (
        *CompressedRollout.REIMPLEMENTED,
        RolloutBuffer.get, RolloutBuffer._get_samples, DictRolloutBuffer.get, DictRolloutBuffer._get_samples,
    )  # fmt: skip
    #: The class of the samples.
    _samples_class: ClassVar[type[Any]]
    #: The arrays besides the observations whose first two axes become one for training.
    _flattened: ClassVar[tuple[str, ...]] = ("actions", "values", "log_probs", "advantages", "returns")

    def _batches(self, batch_size: int | None) -> Iterator[Any]:
        """Yield batches in random order, as SB3's ``get`` does."""
        n_steps = self.buffer_size * self.n_envs
        indices = np.random.permutation(n_steps)  # noqa: NPY002  # what SB3 draws from
        if not self.generator_ready:
            self._flatten()
        batch_size = n_steps if batch_size is None else batch_size
        for begin in range(0, n_steps, batch_size):
            yield self._get_samples(indices[begin : begin + batch_size])

    def _flatten(self) -> None:
        """Make one axis of steps and environments, as SB3's ``get`` does."""
        observations = self.__dict__["observations"]
        if isinstance(observations, dict):
            flat = {key: self.swap_and_flatten(array) for key, array in observations.items()}
            observations = ArrayDict(flat, self._array_factory)
        else:
            observations = self.swap_and_flatten(observations)
        others = {name: self.swap_and_flatten(self.__dict__[name]) for name in self._flattened}
        with deferred_interrupts():  # in between, the next call would change some of them again
            self.__dict__.update(others, observations=observations)
            self.generator_ready = True

    def _get_samples(self, batch_inds: NDArray[np.int64], env: VecNormalize | None = None) -> Any:
        """Return the samples of some steps, as SB3's method does.

        :param batch_inds: the numbers of the steps, of all steps of the first environment first, ``(batch_size,)``
        :param env: ignored, as in SB3
        """
        # A user may pass any index before or after get(), as to SB3's buffer; get() passes vectors.
        is_vector = type(batch_inds) is np.ndarray and batch_inds.ndim == 1 and batch_inds.dtype.kind in "iu"
        arrays = self.__dict__["observations"]
        if is_vector and self.generator_ready:
            empty = self._batch_pool.begin_batch(torch_device(self.device).type)
            indices = batch_inds.astype(np.int64, copy=False)
            observations = tree_map(
                lambda array: (
                    array.read(indices, empty=empty) if isinstance(array, CompressedArray) else array[indices]
                ),
                arrays,
            )
            convert = tensor_converter(self)
            if convert is None:
                observations, convert = tree_map(as_array, observations), self.to_torch
        else:
            observations = tree_map(lambda array: array[batch_inds], arrays)
            convert = self.to_torch  # it copies, and NumPy may return views
        values = self._values_at(batch_inds)
        return self._output(self._samples_class(tree_map(convert, observations), *map(convert, values)))

    def _values_at(self, batch_inds: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the fields of samples after the observations."""
        names = ("values", "log_probs", "advantages", "returns")
        return [
            self.actions[batch_inds].astype(np.float32, copy=False),
            *(getattr(self, name)[batch_inds].flatten() for name in names),
        ]


class CompressedRolloutBuffer(CompressedMinibatches, RolloutBuffer, BaseConstructor):
    """SB3's ``RolloutBuffer``, compressed: for PPO, A2C, TRPO.

    >>> from stable_baselines3 import PPO
    >>> model = PPO(
    ...     "MlpPolicy", "CartPole-v1", rollout_buffer_class=CompressedRolloutBuffer, device="cpu"
    ... )

    Arguments: those of ``RolloutBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _samples_class = RolloutBufferSamples


class CompressedDictRolloutBuffer(CompressedMinibatches, DictRolloutBuffer, BaseConstructor):
    """SB3's ``DictRolloutBuffer``, compressed key by key: each key has its own array, compressed or plain.

    Arguments: those of ``DictRolloutBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _samples_class = DictRolloutBufferSamples

"""``CompressedReplay``: the mixin that turns SB3's replay buffers into compressed ones."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed.buffers.allocation import begin_allocation
from sb3_compressed.buffers.base import Methods
from sb3_compressed.buffers.buffer_lock import new_lock
from sb3_compressed.buffers.extended_replay import ExtendedReplay
from sb3_compressed.buffers.observation_batch import ObservationBatch, Transitions, as_indices, take
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.persistence.buffer_storage import StorageMode
from sb3_compressed.samplers.bound_sampler import BoundSampler

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CompressedReplay"]

#: Attributes that copies and pickles do not share.
NOT_COPIED = {"_storage", "_checkpoints", "_lock"}
#: Attributes that a buffer keeps when it takes over another one.
KEPT_ATTRIBUTES = {"_batch_pool", "_lock"}
#: Attributes in pickles of 0.3.0, of batches that were decoded ahead.
REMOVED_ATTRIBUTES = {"_predicted_batch", "_prefetcher"}


class CompressedReplay(ExtendedReplay):
    """Mixin of compressed replay buffers; it precedes SB3's class in the bases.

    Threads may share a buffer: one can sample or save while another one adds.

    Every class accepts ``optimize_memory_usage=True``, also with ``handle_timeout_termination=True``, which SB3
    rejects. Images need no extra memory for next observations, which share their payloads with observations; vectors,
    which are plain arrays, take the memory of both. SB3's own variant, with its random numbers, is used only with
    ``handle_timeout_termination=False``, and only where SB3's class supports it.
    """

    _sampling_method = "sample"
    REIMPLEMENTED: ClassVar[Methods] = (
        ReplayBuffer.add, ReplayBuffer._get_samples, DictReplayBuffer.add, DictReplayBuffer._get_samples
    )  # fmt: skip
    #: Whether the parent implements ``optimize_memory_usage`` (without ``handle_timeout_termination``).
    _parent_optimizes: ClassVar[bool] = False

    _observation_attributes = ("observations", "next_observations")

    def _adapt_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        handles_timeouts = arguments.get("handle_timeout_termination", True)
        if arguments.get("optimize_memory_usage") and (handles_timeouts or not self._parent_optimizes):
            return {**arguments, "optimize_memory_usage": False}
        return arguments

    def _construct_parent(self, arguments: dict[str, Any]) -> None:
        begin_allocation(self)
        super()._construct_parent(arguments)

    def _open_storage(self, storage: Any, mode: StorageMode) -> None:
        self._lock = new_lock()
        super()._open_storage(storage, mode)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch, as SB3's buffer does, in the format that ``output_dtype`` and ``normalize_images`` select.

        With a sampler, the batch has two more fields after SB3's: ``weights``, importance weights ``(batch_size, 1)``
        of float32, and ``indices``, the numbers of the transitions for :meth:`update_priorities`, ``(batch_size,)`` of
        int64 in NumPy.

        :param batch_size: number of transitions to sample, 0 for an empty batch
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :raises BufferNotReady: if nothing was added yet
        :raises ValueError: if ``batch_size`` is negative, or a sampler returns indices that may not be drawn
        :raises TypeError: if it is not an integer
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        with self._lock:
            if type(batch_size) is not int or batch_size < 1 or self.pos == 0 or self.buffer_size == 1:
                self._validate_sampling(batch_size)
            if self._bound_sampler is not None:
                return self._samples_of(self._draw(batch_size), env)
            return self._output(super().sample(batch_size, env=env))

    def _get_samples(self, batch_inds: Any, env: VecNormalize | None = None) -> Any:
        """Return the samples of some rows, of environments that are drawn here, as SB3's method does.

        :param batch_inds: rows ``(batch_size,)``
        """
        transitions = self._transitions_at(batch_inds, self._draw_envs(len(batch_inds)), env)
        transitions.observations.decode()
        return self._to_tensors(transitions, env, self._converter(env))

    def _transitions_at(
        self,
        rows: NDArray[np.int64],
        envs: NDArray[np.int64],
        env: VecNormalize | None = None,
    ) -> Transitions:
        """Return the transitions at some rows and environments.

        :param rows: rows ``(batch_size,)``
        :param envs: environments ``(batch_size,)``
        :param env: normalizes rewards before they are summed to returns of several steps; others are normalized in
            :meth:`_to_tensors`
        """
        rows, envs = as_indices(rows), as_indices(envs)
        indices = rows * self.n_envs + envs
        dones = take(self.dones, indices) * (1 - take(self.timeouts, indices))
        return Transitions(
            self._observations_at(rows, envs),
            take(self.actions, indices),
            dones.reshape(-1, 1),
            take(self.rewards, indices).reshape(-1, 1),
        )

    def _observations_at(self, rows: NDArray[np.int64], envs: NDArray[np.int64]) -> ObservationBatch:
        """Return the observations of the transitions at some rows and environments, not located yet."""
        indices = rows * self.n_envs + envs
        observations = self.__dict__["observations"]
        if self.optimize_memory_usage:  # the next observations are those of the next rows
            next_observations, next_indices = observations, (rows + 1) % self.buffer_size * self.n_envs + envs
        else:
            next_observations, next_indices = self.__dict__["next_observations"], indices
        return ObservationBatch(
            observations,
            indices,
            next_observations,
            next_indices,
            partial(self._batch_pool.begin_batch, self.device.type),
        )

    def _to_tensors(self, transitions: Transitions, env: VecNormalize | None = None, convert: Any = None) -> Any:
        """Return the samples of decoded transitions as tensors.

        :param env: normalizes observations, and rewards of one step
        :param convert: converts arrays that no other code receives, see :meth:`_converter`; ``None`` to normalize them
            and to call ``to_torch``
        """
        observations, actions, dones, rewards, discounts = transitions
        first, second = observations.observations, observations.next_observations
        is_dict = isinstance(first, dict)
        if convert is None:
            convert = self.to_torch
            # In the order of SB3's classes, as a user's method may draw random numbers.
            if is_dict:
                first, second = self._normalize_obs(first, env), self._normalize_obs(second, env)
            else:
                second, first = self._normalize_obs(second, env), self._normalize_obs(first, env)
            if discounts is None:
                rewards = self._normalize_reward(rewards, env)
        if is_dict:  # which SB3 converts first
            first, second = tree_map(convert, first), tree_map(convert, second)
            return DictReplayBufferSamples(first, convert(actions), second, convert(dones), convert(rewards))
        return ReplayBufferSamples(
            convert(first),
            convert(actions),
            convert(second),
            convert(dones),
            convert(rewards),
            None if discounts is None else convert(discounts),
        )

    def reset(self) -> None:
        """Remove all transitions, as SB3's buffer does."""
        with self._lock:
            super().reset()

    # -- copies ----------------------------------------------------------------------------------------------

    def take_over(self, other: CompressedReplay) -> None:
        """Take over another buffer's content and folder; the other buffer must not be used afterwards.

        A sampler is taken over with its priorities. If the other buffer has none, this one's begins anew.
        """
        replaced = self._bound_sampler
        other._checkpoints.include(self._checkpoints)
        if other.optimize_memory_usage and not hasattr(other, "next_observations"):
            vars(self).pop("next_observations", None)
        for name in vars(self).keys() | vars(other).keys():  # of only this one: the other has the default of the class
            is_timer = any(isinstance(vars(each).get(name), MethodTimer) for each in (self, other))
            if hasattr(other, name) and not is_timer and name not in KEPT_ATTRIBUTES:
                vars(self)[name] = getattr(other, name)
        if replaced is not None:
            bound = self._bound_sampler
            if bound is None:
                bound = BoundSampler(copy.deepcopy(replaced.configured), self.buffer_size, self.n_envs)
            bound.number_after(replaced)
            self._bound_sampler = bound

    def __copy__(self) -> Self:
        if self._storage is not None:  # a shallow copy would write to the arrays of the folder
            return copy.deepcopy(self)
        shallow = type(self).__new__(type(self))
        shallow.__setstate__(self.__getstate__())
        shallow._bound_sampler = copy.deepcopy(self._bound_sampler)  # of the shared arrays, both may write other rows
        return shallow

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name not in REMOVED_ATTRIBUTES})
        self._lock = new_lock()

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles are in memory, and do not write to the folders.
        attributes = super().__getstate__()
        return {name: value for name, value in attributes.items() if name not in NOT_COPIED}

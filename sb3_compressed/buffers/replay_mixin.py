"""``CompressedReplay``: the mixin that turns SB3's replay buffers into compressed ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed.arrays.batch_pool import BatchPool
from sb3_compressed.buffers.allocation import begin_allocation
from sb3_compressed.buffers.base import Methods, to_tensor
from sb3_compressed.buffers.buffer_lock import new_lock
from sb3_compressed.buffers.extended_replay import ExtendedReplay
from sb3_compressed.buffers.observation_batch import ObservationBatch, Transitions, as_indices, take
from sb3_compressed.buffers.predicted_batch import PredictedBatch
from sb3_compressed.buffers.prefetch import Prefetcher, Prefetching
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.buffers.weighted_samples import weighted_samples
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.common.warning import warn_user
from sb3_compressed.persistence.buffer_storage import StorageMode
from sb3_compressed.samplers.bound_sampler import BoundSampler

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CompressedReplay"]

#: Attributes that copies and pickles do not share.
NOT_COPIED = {"_storage", "_checkpoints", "_lock"}
#: Attributes that a buffer keeps when it takes over another one.
KEPT_ATTRIBUTES = {"_prefetcher", "_predicted_batch", "_batch_pool", "_lock"}


class CompressedReplay(Prefetching, ExtendedReplay):
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

    #: Whether SB3 draws batches uniformly, and nothing else draws random numbers meanwhile.
    _is_predictable: ClassVar[bool] = True
    #: The batch that is decoded ahead, ``None`` where that is not possible.
    _predicted_batch: PredictedBatch | None = None

    _items_per_sample = 2  # with next observations
    _observation_attributes = ("observations", "next_observations")

    def _adapt_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        handles_timeouts = arguments.get("handle_timeout_termination", True)
        if arguments.get("optimize_memory_usage") and (handles_timeouts or not self._parent_optimizes):
            return {**arguments, "optimize_memory_usage": False}
        return arguments

    def _construct_parent(self, arguments: dict[str, Any]) -> None:
        begin_allocation(self)
        super()._construct_parent(arguments)

    def _set_prefetch(self, n_batches: int) -> None:
        validate_integer("prefetch", n_batches, 0)
        if n_batches and self._bound_sampler is None:
            # Nor where no thread can decode ahead, so that a training has the same result on any machine.
            warn_user(
                f"prefetch={n_batches} has no effect without a sampler: the next batch is decoded ahead anyway, and "
                "drawn when it is sampled, as by SB3"
            )
            n_batches = 0
        if not n_batches:
            if self._is_predictable and self._new_arrays and PredictedBatch.is_possible(self.num_threads):
                self._predicted_batch = PredictedBatch()
                self._batch_pool = BatchPool(3)
            return
        if not self._is_from_this_package:
            raise ValueError(
                f"prefetch={n_batches} is not possible for {type(self).__name__}: a class from outside this package "
                "may use observations while a batch is drawn"
            )
        self._prefetcher = Prefetcher(n_batches)
        self._batch_pool = BatchPool(2 + n_batches)

    def _open_storage(self, storage: Any, mode: StorageMode) -> None:
        self._lock = new_lock()
        super()._open_storage(storage, mode)

    def discard_prefetched(self) -> None:
        """Discard the batches that were drawn ahead, for example after writing to ``rewards``."""
        super().discard_prefetched()
        if self._predicted_batch is not None:
            self._predicted_batch.discard()

    def close(self) -> None:
        """Flush and release the folder. The buffer can still be sampled, but not added to."""
        self.discard_prefetched()
        super().close()

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch, as SB3's buffer does, in the format that ``output_dtype`` and ``normalize_images`` select.

        With a sampler, the batch has two more fields after SB3's: ``weights``, importance weights ``(batch_size, 1)``
        of float32, and ``indices``, the numbers of the transitions for :meth:`update_priorities`, ``(batch_size,)`` of
        int64 in NumPy.

        :param batch_size: number of transitions to sample, 0 for an empty batch
        :param env: a ``VecNormalize`` to normalize observations and rewards with; no batches are then prefetched
        :raises BufferNotReady: if nothing was added yet
        :raises ValueError: if ``batch_size`` is negative, or a sampler returns indices that may not be drawn
        :raises TypeError: if it is not an integer
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        prefetcher = self._prefetcher
        if prefetcher is not None and env is None and self._new_arrays and self._can_draw_ahead:
            self._loop_timing.sample(batch_size, is_ready=True)
            return self._output(prefetcher.sample(partial(self._draw_ahead, batch_size), batch_size, self.device))
        predicted_batch = self._predicted_batch
        if predicted_batch is not None:
            predicted_batch.end()
        with self._lock:
            if type(batch_size) is not int or batch_size < 1 or self.pos == 0 or self.buffer_size == 1:
                self._validate_sampling(batch_size)
            if self._bound_sampler is not None or predicted_batch is None:
                self._loop_timing.sample(batch_size)
                if self._bound_sampler is not None:
                    return self._samples_of(self._draw(batch_size), env)
                return self._output(super().sample(batch_size, env=env))
            predicted_batch.observe(self.pos, self.buffer_size)
            samples = self._output(super().sample(batch_size, env=env))
            # A batch that is only left out to compare times counts as ready: most are. Where none is decoded ahead,
            # since that is slower, the training waits for all, and the codec is chosen for that.
            is_ready = predicted_batch.was_ready or predicted_batch.alternation.is_left_out_to_compare
            self._loop_timing.sample(batch_size, is_ready=is_ready)
            # With the lock: another thread may empty the buffer. Nothing here waits for the thread that decodes.
            lock = None if self._storage is None else self._lock
            predicted_batch.predict(self.pos, partial(self._predicted, batch_size), lock)
        return samples

    def _get_samples(self, batch_inds: Any, env: VecNormalize | None = None) -> Any:
        """Return the samples of some rows, of environments that are drawn here, as SB3's method does.

        :param batch_inds: rows ``(batch_size,)``
        """
        transitions = self._transitions_at(batch_inds, self._draw_envs(len(batch_inds)), env)
        if self._predicted_batch is None or self._bound_sampler is not None:
            transitions.observations.decode()
        else:
            transitions = transitions._replace(observations=self._predicted_batch.decoded(transitions.observations))
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
        """Return the observations of the transitions at some rows and environments, not located yet.

        It calls no methods that users override, as it is also called for predicted batches, which may never be sampled.
        """
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

    @property
    def _can_draw_ahead(self) -> bool:
        """Whether no other code receives observations while a batch is drawn."""
        return self._is_from_this_package and "_get_samples" not in vars(self) and self._converter(None) is not None

    def _draw_ahead(self, batch_size: int) -> Callable[[], Any]:
        """Draw a batch; return a function that decodes it to tensors in main memory, in any thread."""
        with self._lock:
            self._validate_sampling(batch_size)
            if self._bound_sampler is None:
                rows = self._draw_rows(batch_size, np.random, self.pos, is_full=self.full)
                transitions = self._transitions_at(rows, self._draw_envs(batch_size))
                add_fields = None
            else:
                draw = self._draw(batch_size)
                rows, envs = np.divmod(draw.indices, self.n_envs)
                transitions = self._transitions_at(rows, envs)
                add_fields = self._weights_and_numbers(draw)
            transitions.observations.locate()

        def complete() -> Any:
            transitions.observations.decode()
            samples = self._to_tensors(transitions, None, to_tensor)
            return samples if add_fields is None else weighted_samples(samples, *add_fields)

        return complete

    def _draw_rows(self, batch_size: int, random: Any, position: int, *, is_full: bool) -> NDArray[np.int64]:
        """Draw rows as SB3's ``sample`` does.

        :param random: ``np.random``, or a generator that draws as it does
        :param position: of the ring
        :param is_full: whether the ring is full
        """
        n_rows = self.buffer_size
        if self.optimize_memory_usage and is_full:  # the row at the position has the last next observation
            return (random.randint(1, n_rows, size=batch_size) + position) % n_rows  # type: ignore[no-any-return]
        return random.randint(0, n_rows if is_full else position, size=batch_size)  # type: ignore[no-any-return]

    def _predicted(self, batch_size: int, random: np.random.RandomState, n_rows: int) -> ObservationBatch:
        """Return the observations of the batch that SB3 draws after adding ``n_rows`` rows, not located yet."""
        position = self.pos + n_rows
        is_full = self.full or position >= self.buffer_size
        rows = self._draw_rows(batch_size, random, position % self.buffer_size, is_full=is_full)
        envs = random.randint(0, high=self.n_envs, size=(batch_size,))
        return self._observations_at(as_indices(rows), as_indices(envs))

    def reset(self) -> None:
        """Remove all transitions, as SB3's buffer does."""
        self.discard_prefetched()
        with self._lock:
            super().reset()

    # -- copies ----------------------------------------------------------------------------------------------

    def take_over(self, other: CompressedReplay) -> None:
        """Take over another buffer's content and folder; the other buffer must not be used afterwards.

        A sampler is taken over with its priorities. If the other buffer has none, this one's begins anew.
        """
        replaced = self._bound_sampler
        other._checkpoints.include(self._checkpoints)
        self.discard_prefetched()
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
        self._set_time_budgets(self._loop_timing)

    def __copy__(self) -> Self:
        if self._storage is not None:  # a shallow copy would write to the arrays of the folder
            return copy.deepcopy(self)
        shallow = type(self).__new__(type(self))
        shallow.__setstate__(self.__getstate__())
        shallow._set_time_budgets(self._loop_timing)  # of the arrays that both share
        if self._prefetcher is not None:
            shallow._prefetcher = copy.copy(self._prefetcher)  # with a queue of its own
        if self._predicted_batch is not None:
            shallow._predicted_batch = PredictedBatch()
        shallow._bound_sampler = copy.deepcopy(self._bound_sampler)  # of the shared arrays, both may write other rows
        return shallow

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lock = new_lock()

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles are in memory, and do not write to the folders.
        attributes = super().__getstate__()
        return {name: value for name, value in attributes.items() if name not in NOT_COPIED}

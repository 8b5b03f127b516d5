"""Compressed replay buffers: ``add``, ``extend``, ``sample`` and ``_get_samples`` of all, and the plain classes.

Those with n-step returns are in :mod:`.n_step`, those with hindsight replay in :mod:`.her`. A sampler is a
:class:`.BoundSampler`, and a folder a :class:`.BufferStorage`, or with its checkpoints a :class:`.CheckpointHistory`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.buffers import BaseBuffer, DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed.buffers.allocation import BaseConstructor
from sb3_compressed.buffers.arguments import require_drawn_by_parent
from sb3_compressed.buffers.array_attributes import ArrayAttribute
from sb3_compressed.buffers.array_formats import restore_formats
from sb3_compressed.buffers.base import CompressedBuffer, Methods
from sb3_compressed.buffers.buffer_from_store import buffer_from_store, open_to_load
from sb3_compressed.buffers.extend import add_steps, extend_buffer
from sb3_compressed.buffers.observations import (
    as_indices,
    encode_observations,
    read_observations,
    take,
    write_observations,
)
from sb3_compressed.buffers.parent_methods import warn_of_replaced
from sb3_compressed.buffers.sequences import SequenceSamples, sample_sequences
from sb3_compressed.buffers.tensors import as_array, tensor_converter, torch_device
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.buffers.validation import (
    kinds_of_step,
    validate_integer,
    validate_numbers,
    validate_observations,
    validate_row,
    validated_timeouts,
)
from sb3_compressed.buffers.weighted_samples import weighted_samples, weights_and_indices
from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.errors import BufferNotReady, StorageError
from sb3_compressed.persistence.buffer_repair import RepairReport
from sb3_compressed.persistence.buffer_storage import BufferStorage, StorageLocation, StorageMode
from sb3_compressed.persistence.checkpoint import CheckpointHistory
from sb3_compressed.samplers import Draw, Sampler, WithoutReplacementSampler, get_sampler
from sb3_compressed.samplers.bound_sampler import BoundSampler
from sb3_compressed.samplers.episode_table import EpisodeTable
from sb3_compressed.samplers.sequence_draw import Pad, SequenceShape
from sb3_compressed.storage.commit_writer import copy_committed

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CompressedDictReplayBuffer", "CompressedReplay", "CompressedReplayBuffer", "Transitions"]

#: What a sampler replaces.
SAMPLING: Methods = (BaseBuffer.sample, ReplayBuffer.sample)
#: Attributes that a buffer keeps when it takes over another one.
KEPT_ATTRIBUTES = {"_batch_pool"}


class Transitions(NamedTuple):
    """The transitions of a batch: where its observations are, and the other values.

    :param indices: flat indices of the transitions, ``row * n_envs + env``, ``(batch_size,)``
    :param last_indices: those of the transitions that have the next observations: the last ones of returns of several
        steps
    :param actions: actions ``(batch_size, action_dim)``
    :param dones: 1 where an episode ends, except by a time limit, else 0; ``(batch_size, 1)`` of float32
    :param rewards: rewards of one step, as they were added, or returns of several steps; ``(batch_size, 1)`` of float32
    :param discounts: by which the values of next observations are multiplied, ``(batch_size, 1)``; ``None`` for those
        of one step
    """

    indices: NDArray[np.int64]
    last_indices: NDArray[np.int64]
    actions: NDArray[Any]
    dones: NDArray[Any]
    rewards: NDArray[Any]
    discounts: NDArray[Any] | None = None


class CompressedReplay(CompressedBuffer):
    """Mixin of compressed replay buffers; it precedes SB3's class in the bases.

    Every class accepts ``optimize_memory_usage=True``, also with ``handle_timeout_termination=True``, which SB3
    rejects. Images need no extra memory for next observations, which share their payloads with observations; vectors,
    which are plain arrays, take the memory of both. SB3's own variant, with its random numbers, is used only with
    ``handle_timeout_termination=False``, and only where SB3's class supports it.
    """

    optimize_memory_usage: bool
    dones: NDArray[np.float32]
    timeouts: NDArray[np.float32]
    handle_timeout_termination: bool
    copy_info_dict: bool = False  # only SB3's hindsight buffer sets it

    _sampling_method = "sample"
    REIMPLEMENTED: ClassVar[Methods] = (
        BaseBuffer.extend,
        ReplayBuffer.add, ReplayBuffer._get_samples, DictReplayBuffer.add, DictReplayBuffer._get_samples,
    )  # fmt: skip
    #: Whether ``extend`` may write several steps in one call; otherwise it calls ``add`` for each.
    _extends_at_once: ClassVar[bool] = True
    #: Whether the parent implements ``optimize_memory_usage`` (without ``handle_timeout_termination``).
    _parent_optimizes: ClassVar[bool] = False

    observation_attributes = ("observations", "next_observations")
    next_observations: Any = ArrayAttribute()

    #: See :attr:`bound_sampler`.
    _bound_sampler: BoundSampler | None = None
    #: The folder that observations are stored in, ``None`` for a buffer in memory.
    _storage: BufferStorage | None = None
    #: What was excluded when the buffer was loaded or resumed with a repair, ``None`` without one.
    repair_report: RepairReport | None = None
    _has_warned_of_time_limits = False

    def _construct_parent(self, arguments: dict[str, Any]) -> None:
        handles_timeouts = arguments.get("handle_timeout_termination", True)
        if arguments.get("optimize_memory_usage") and (handles_timeouts or not self._parent_optimizes):
            arguments = {**arguments, "optimize_memory_usage": False}
        super()._construct_parent(arguments)

    def _set_sampler_and_storage(
        self, sampler: str | Sampler, storage: StorageLocation, storage_mode: StorageMode
    ) -> None:
        if (configured := get_sampler(sampler)) is not None:
            require_drawn_by_parent(type(self), CompressedBuffer)
            warn_of_replaced(type(self), SAMPLING)
            self._bound_sampler = BoundSampler(configured, self.buffer_size, self.n_envs)
            configured.prepare()  # rather than at the first step of the training
        if storage not in ("memory", "device"):
            self._storage = BufferStorage.open(self, storage, storage_mode)
            self.repair_report = self._storage.repair_report

    def reset(self) -> None:
        """Remove all transitions, as SB3's buffer does; its arrays stay.

        :raises ValueError: if ``buffer_size`` or ``n_envs`` were changed so that the arrays do not fit
        """
        self._require_n_envs()
        rows, has_fixed_size = len(self.actions), self._bound_sampler is not None or self._storage is not None
        if self.buffer_size > rows or (self.buffer_size < rows and has_fixed_size):
            raise ValueError(
                f"buffer_size was changed to {self.buffer_size} rows, and reset() keeps the arrays, which have {rows}: "
                "create a new buffer, or assign arrays of that size first"
            )
        with deferred_interrupts():  # after many new steps, nothing would show the sampler that there was a reset
            super().reset()
            if self._bound_sampler is not None:
                self._bound_sampler.catch_up(self)

    # -- adding ----------------------------------------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of every environment, as SB3's buffer does.

        :param obs: observations ``(n_envs, *obs_shape)``, or a dict of them
        :param next_obs: the next observations; at the end of an episode, its terminal observations
        :param action: actions ``(n_envs, action_dim)``
        :param reward: rewards ``(n_envs,)``
        :param done: whether an episode ended, ``(n_envs,)``
        :param infos: one info dict for each environment; ignored with ``handle_timeout_termination=False``, unless
            ``copy_info_dict=True``
        :raises ValueError: if an argument does not fit; the buffer is then as it was
        :raises TypeError: if an argument is not numeric; likewise
        """
        self._add(obs, next_obs, action, reward, done, infos, self._write_steps)

    def _add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any, write_steps: Callable[..., None]
    ) -> None:
        """Validate and encode a transition, then write it in one transaction.

        :param write_steps: :meth:`_write_steps`, or what else the caller writes with it
        """
        if type(self.pos) is not int:  # as NumPy's integers, which np.load returns
            self.pos = index(self.pos)
        storage = self._storage
        if storage is not None:
            storage.require_writable("added")
            storage.take_replaced_arrays(self)
        timeouts = None
        if self.handle_timeout_termination or self.copy_info_dict:  # SB3 does not read infos otherwise
            timeouts = validated_timeouts(infos, self.n_envs)
        kinds = kinds_of_step(obs, next_obs, action, reward, done)
        if kinds is None or kinds != self._array_factory.valid_kinds:
            given = (obs, next_obs), (action, reward, done)
            obs, next_obs, action, reward, done = self._validate_step(kinds, *given)
        encoded = encode_observations(self.__dict__["observations"], obs, next_obs)
        if storage is None:
            write_steps(1, encoded, action, reward, done, timeouts, infos)
            return
        storage.begin_row(self, done)
        try:
            write_steps(1, encoded, action, reward, done, timeouts, infos)
        except BaseException:  # Ctrl-C, too: a transaction is whole or not there
            storage.undo_row(self)
            raise
        storage.commit_row(self)
        if self._bound_sampler is not None and not storage.is_in_joint_commit:
            # Not before: a row whose commit fails is undone, and its priority would be lost.
            self._bound_sampler.add_rows(self, 1)

    def _write_steps(
        self, n_steps: int, encoded: Any, action: Any, reward: Any, done: Any, timeouts: Any, infos: Any
    ) -> None:
        """Write validated steps that do not wrap around, as SB3's ``add`` does, and then count them.

        After Ctrl-C in between, the next ``add`` writes to the same row.

        :param n_steps: the number of steps; if it is 1, the arguments have no axis for them
        :param encoded: observations and next observations, from :func:`.encode_observations`
        :param timeouts: whether episodes ended by a time limit, ignored with ``handle_timeout_termination=False``
        :param infos: info dicts of one step, for classes that store them
        """
        row, attributes = self.pos, self.__dict__
        end = row + n_steps
        rows = row if n_steps == 1 else slice(row, end)
        observations, (first, second) = attributes["observations"], encoded
        write_observations(observations, rows, first)
        if not self.optimize_memory_usage:
            write_observations(attributes["next_observations"], rows, second)
        else:  # the next observations of all steps but the last one are the observations of the following rows
            last = second if n_steps == 1 else tree_map(lambda part: part[-1], second)
            write_observations(observations, end % self.buffer_size, last)
        self.actions[rows] = action.reshape(-1, self.n_envs, self.action_dim)
        self.rewards[rows] = reward
        self.dones[rows] = done
        if self.handle_timeout_termination:
            self.timeouts[rows] = timeouts
        # Assigned as in SB3, since a subclass may store both elsewhere, and in this order: after Ctrl-C in between, the
        # next add repeats the last row; in the other order, all rows would be lost.
        if end == self.buffer_size:
            self.full = True
        self.pos = 0 if end == self.buffer_size else end
        if self._bound_sampler is not None and self._storage is None:
            self._bound_sampler.add_rows(self, n_steps)

    def _validated_arguments(self, *given: Any) -> tuple[Any, ...]:
        obs, next_obs, action, reward, done = given
        action = validate_numbers("action", action, self.n_envs * self.action_dim, self.n_envs)
        reward = validate_row("reward", reward, np.shape(self.rewards)[1:])
        done = validate_row("done", done, np.shape(self.dones)[1:], may_broadcast=False)
        obs = validate_observations("obs", obs, self.observations, self.observation_space, self.n_envs)
        following = self.observations if self.optimize_memory_usage else self.next_observations
        next_obs = validate_observations("next_obs", next_obs, following, self.observation_space, self.n_envs)
        return obs, next_obs, action, reward, done

    def extend(
        self,
        obs: Any = None,
        next_obs: Any = None,
        action: Any = None,
        reward: Any = None,
        done: Any = None,
        infos: Any = None,
        *further: Any,
        timeouts: Any = None,
    ) -> None:
        """Add many steps of every environment, as if each were passed to ``add``, in less time.

        Everything is validated before anything is added. In a folder, all steps are committed together, or as many at a
        time as the buffer has rows but one. If a codec raises, the steps before its call stay. Buffers with hindsight
        replay add one step after the other. If an argument is an iterator, this applies to some steps at a time. If a
        subclass overrides ``add``, each step is passed to it, as in SB3, so that it may take other arguments.

        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from sb3_compressed import CompressedReplayBuffer
        >>> buffer = CompressedReplayBuffer(
        ...     1000, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
        ... )
        >>> frames = np.zeros((101, 1, 4, 84, 84), np.uint8)
        >>> nothing = np.zeros((100, 1))
        >>> buffer.extend(frames[:-1], frames[1:], nothing, nothing, nothing == 1, timeouts=nothing == 1)
        >>> buffer.size()
        100

        :param obs: observations ``(n_steps, n_envs, *obs_shape)``, or a dict of them; as all other arguments also a
            sequence of what ``add`` takes
        :param next_obs: the next observations; at the end of an episode, its terminal observations
        :param action: actions ``(n_steps, n_envs, action_dim)``, or without the last axis if it has one element
        :param reward: rewards ``(n_steps, n_envs)``
        :param done: whether an episode ended, ``(n_steps, n_envs)``
        :param infos: for each step one info dict for each environment; ignored as by ``add``
        :param further: further arguments of the ``add`` of a subclass, for each step
        :param timeouts: whether an episode ended by a time limit, ``(n_steps, n_envs)``, instead of ``infos``
        :raises ValueError: if an argument does not fit, arguments have different numbers of steps, neither ``infos``
            nor ``timeouts`` is passed where the buffer stores time limits, or ``timeouts`` where it does not; the
            buffer is then as it was
        :raises TypeError: if an argument is not numeric, or missing; likewise
        """
        self.pos = index(self.pos)
        extend_buffer(self, (obs, next_obs, action, reward, done, infos, *further), timeouts, partial(add_steps, self))

    # -- sampling --------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch, as SB3's buffer does, in the format that ``output_dtype`` and ``normalize_images`` select.

        With a sampler, the batch has two more fields after SB3's: ``weights``, importance weights ``(batch_size, 1)``
        of float32, and ``indices``, the flat indices ``row * n_envs + env`` of the transitions, ``(batch_size,)`` of
        int64 in NumPy, for :meth:`update_priorities`.

        :param batch_size: number of transitions to sample, 0 for an empty batch
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :raises BufferNotReady: if nothing was added yet
        :raises ValueError: if ``batch_size`` is negative, or a sampler returns indices that may not be drawn
        :raises TypeError: if it is not an integer
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        if type(batch_size) is not int or batch_size < 1 or self.pos == 0 or self.buffer_size == 1:
            self._validate_sampling(batch_size)
        if self._bound_sampler is not None:
            return self._samples_of(self._draw(batch_size), env)
        return self._output(super().sample(batch_size, env=env))

    def _get_samples(self, batch_inds: Any, env: VecNormalize | None = None) -> Any:
        """Return the samples of some rows, of environments that are drawn here, as SB3's method does.

        :param batch_inds: rows ``(batch_size,)``
        """
        envs = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))  # noqa: NPY002  # what SB3 draws from
        return self._samples_at(batch_inds, envs, env)

    def _samples_at(self, rows: Any, envs: NDArray[np.int64], env: VecNormalize | None = None) -> Any:
        """Return the samples at some rows and environments, whether SB3's random numbers or a sampler chose them.

        :param rows: rows ``(batch_size,)``
        :param envs: environments ``(batch_size,)``
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        """
        self._require_n_envs()
        transitions = self._transitions_at(as_indices(rows) * self.n_envs + envs, env)
        return self._to_tensors(transitions, *self._read(transitions), env)

    def _require_n_envs(self) -> None:
        """Raise if ``n_envs`` is not that of the arrays, so that flat indices would be those of other transitions."""
        if self.actions.shape[1] != self.n_envs:
            raise ValueError(
                f"n_envs was changed to {self.n_envs}, and the arrays are of {self.actions.shape[1]} environments: "
                "create a new buffer, or assign arrays for that number first"
            )

    def _transitions_at(self, indices: NDArray[np.int64], env: VecNormalize | None = None) -> Transitions:
        """Return the transitions at some flat indices, ``(batch_size,)``.

        :param env: normalizes rewards before they are summed to returns of several steps; others are normalized in
            :meth:`_to_tensors`
        """
        dones = take(self.dones, indices) * (1 - take(self.timeouts, indices))
        return Transitions(
            indices,
            indices,
            take(self.actions, indices),
            dones.reshape(-1, 1),
            take(self.rewards, indices).reshape(-1, 1),
        )

    def _read(self, transitions: Transitions) -> tuple[Any, Any]:
        """Return the observations and next observations of a batch, decoded: arrays, or tensors of a device."""
        attributes, empty = self.__dict__, self._batch_pool.begin_batch(torch_device(self.device).type)
        observations = following = attributes["observations"]
        next_indices = transitions.last_indices
        if self.optimize_memory_usage:  # they are the observations of the next rows
            next_indices = (next_indices + self.n_envs) % (self.buffer_size * self.n_envs)
        else:
            following = attributes["next_observations"]
        return read_observations(observations, transitions.indices, following, next_indices, empty=empty)

    def _to_tensors(
        self, transitions: Transitions, obs: Any, next_obs: Any, env: VecNormalize | None = None, *, copy: bool = False
    ) -> Any:
        """Return the samples of transitions as tensors, as SB3's ``_get_samples`` does.

        :param obs: their decoded observations, and then their next observations
        :param env: normalizes observations, and rewards of one step
        :param copy: whether other code may keep these arrays, so that tensors must not share their memory
        """
        _, _, actions, dones, rewards, discounts = transitions
        is_dict = isinstance(obs, dict)
        convert = tensor_converter(self, env, copy=copy)
        if convert is None:
            convert = self.to_torch
            obs, next_obs = tree_map(as_array, obs), tree_map(as_array, next_obs)
        # In the order of SB3's ReplayBuffer, as a user's method may draw random numbers.
        if is_dict:
            obs, next_obs = self._normalize_obs(obs, env), self._normalize_obs(next_obs, env)
        else:
            next_obs, obs = self._normalize_obs(next_obs, env), self._normalize_obs(obs, env)
        if discounts is None:
            rewards = self._normalize_reward(rewards, env)
        if is_dict:  # which SB3 converts first
            obs, next_obs = tree_map(convert, obs), tree_map(convert, next_obs)
            return DictReplayBufferSamples(obs, convert(actions), next_obs, convert(dones), convert(rewards))
        return ReplayBufferSamples(
            convert(obs),
            convert(actions),
            convert(next_obs),
            convert(dones),
            convert(rewards),
            None if discounts is None else convert(discounts),
        )

    def _samples_of(self, draw: Draw, env: VecNormalize | None) -> Any:
        """Return the batch of transitions that a sampler has drawn.

        :param draw: flat indices of the transitions, and their weights
        """
        samples = self._samples_at(*np.divmod(draw.indices, self.n_envs), env)
        return weighted_samples(self._output(samples), *weights_and_indices(draw, self.device))

    def _draw(self, batch_size: int) -> Draw:
        """Draw the transitions of a batch with the sampler."""
        bound = self._bound_sampler
        assert bound is not None
        return self._in_batch_order(bound.draw(self, batch_size))

    def _in_batch_order(self, draw: Draw) -> Draw:
        """Return the transitions of a batch in the order of the batch."""
        return draw

    def _validate_sampling(self, batch_size: Any) -> None:
        """Raise if no batch of that size can be sampled."""
        validate_integer("batch_size", batch_size, 0)
        if batch_size == 0:
            return
        if self.size() == 0:
            raise BufferNotReady("cannot sample from an empty buffer: add transitions first")
        if self.full and self.buffer_size == 1 and self.optimize_memory_usage:
            raise BufferNotReady(
                "cannot sample from a buffer of one row with optimize_memory_usage=True, which reserves one row; "
                "increase buffer_size"
            )

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        stride: int = 1,
        pad: Pad = "none",
        env: Any = None,
        *,
        next_observations: bool = True,
    ) -> SequenceSamples:
        """Sample sequences of consecutive transitions, each within one episode.

        Each possible sequence has the same probability, or with ``sampler="prioritized"``, one in proportion to the
        priority of its first transition after the burn-in. Random numbers are from ``np.random``. The time it takes
        does not depend on the size of the buffer, unless sequences begin at few transitions, or at few of those with
        large priorities. Buffers with n-step returns and hindsight replay return the transitions as they were added.
        With ``handle_timeout_termination=False``, the buffer does not know where time limits end episodes, so that
        sequences continue into the next one there; a warning says so.

        :param batch_size: number of sequences, at least 1
        :param length: transitions of a sequence to train on, at least 1
        :param burn_in: transitions before them, from which a recurrent network computes its state (R2D2,
            https://openreview.net/forum?id=r1lyTjAqYX). At the beginning of an episode they are padding
        :param stride: sequences begin at the first transition of each episode, at every ``stride``-th row of the
            buffer, and with ``pad="none"`` also where they end with their episode. Other libraries call it period
        :param pad: what to do where an episode has fewer transitions. ``"none"``: only complete sequences are drawn;
            ``"end"``: sequences begin at any transition, and are padded with zeros after the end of the episode
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :param next_observations: whether to return next observations
        :raises BufferNotReady: if there is no such sequence yet
        :raises ValueError: if an argument is out of range, or longer than the buffer
        :raises TypeError: if one is not an integer, or the buffer has another sampler
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        self._require_n_envs()
        shape = SequenceShape(length, burn_in, stride, pad)
        return sample_sequences(self, batch_size, shape, env, with_next=next_observations)

    # -- samplers --------------------------------------------------------------------------------------------

    @property
    def sampler(self) -> Sampler | None:
        """The sampler of this buffer, ``None`` for SB3's own sampling."""
        return None if self._bound_sampler is None else self._bound_sampler.sampler

    @property
    def bound_sampler(self) -> BoundSampler | None:
        """The sampler with the transitions that it may draw, ``None`` for SB3's own sampling."""
        return self._bound_sampler

    @property
    def episodes(self) -> EpisodeTable | None:
        """The episodes of hindsight replay, ``None`` for other buffers."""
        return EpisodeTable.of(self)

    @property
    def n_skipped_updates(self) -> int:
        """How many updates :meth:`update_priorities` skipped since their transitions could not be drawn any more."""
        return 0 if self._bound_sampler is None else self._bound_sampler.n_skipped_updates

    def update_priorities(self, indices: ArrayLike | th.Tensor, td_errors: ArrayLike | th.Tensor) -> int:
        """Update the priorities of transitions after a training step; return how many were skipped.

        Update them before the next ``add``, which may overwrite them. Those that may not be drawn any more, such as
        episodes of hindsight replay that were overwritten in part, are skipped. Of equal indices, the last value
        counts.

        :param indices: ``indices`` of a batch, ``(n,)``
        :param td_errors: TD errors of these transitions, ``(n,)`` or ``(n, 1)``; their signs are ignored
        :raises ValueError: if shapes differ, a TD error is not finite, or an index is out of range
        :raises TypeError: if the buffer's sampler has no priorities
        """
        if self._bound_sampler is None:
            raise TypeError("update_priorities() is for buffers with a sampler, such as sampler='prioritized'")
        return self._bound_sampler.update(self, indices, td_errors)

    def iterate(
        self, batch_size: int, epochs: int = 1, *, env: VecNormalize | None = None, resume: bool = False
    ) -> Iterator[Any]:
        """Iterate over batches that together contain each transition once an epoch, in random order.

        For ``sampler="without-replacement"``. The last batch of an epoch is smaller, where the number of transitions
        is no multiple of ``batch_size``. Transitions that are added meanwhile are in the next epoch, and those that are
        overwritten before their batch are left out. :meth:`sample` continues the same epoch.

        :param batch_size: number of transitions of a batch, at least 1
        :param epochs: number of epochs
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :param resume: whether to continue an epoch that has transitions left, such as one that was interrupted and
            loaded, as the first one; if all of them were overwritten since, the first one is a new epoch
        :raises TypeError: if the buffer has another sampler
        :raises BufferNotReady: if nothing was added yet
        :raises ValueError: if ``batch_size`` is not positive, or ``epochs`` is negative
        """
        bound = self._bound_sampler
        if bound is None or not isinstance(bound.sampler, WithoutReplacementSampler):
            raise TypeError("iterate() is for buffers with sampler='without-replacement'")
        validate_integer("batch_size", batch_size, 1)
        validate_integer("epochs", epochs, 0)
        self._validate_sampling(batch_size)
        draws = bound.draws_of_epochs(self, batch_size, epochs, resume=resume)
        return (self._samples_of(self._in_batch_order(draw), env) for draw in draws)

    # -- folders ---------------------------------------------------------------------------------------------

    @cached_property
    def _checkpoints(self) -> CheckpointHistory:
        """The folders that it was saved to or loaded from."""
        return CheckpointHistory()

    @property
    def is_in_memory(self) -> bool:
        """Whether compressed observations are in memory, not in a folder."""
        return self._storage is None

    @property
    def folder(self) -> Path | None:
        """The folder with the compressed observations, ``None`` if they are in memory."""
        return None if self._storage is None else self._storage.folder

    def joint_commit(self, n_steps: int) -> AbstractContextManager[None]:
        """Commit what the block adds to the folder at once, which takes less time than after each ``add``.

        If the process is killed within the block, the folder contains nothing of it. For buffers in memory, those with
        hindsight replay, blocks within another block, and those of as many steps as the buffer has rows or more, this
        does nothing.

        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from sb3_compressed import CompressedReplayBuffer
        >>> buffer = CompressedReplayBuffer(
        ...     100, spaces.Box(0, 255, (2, 84, 84), np.uint8), spaces.Discrete(2)
        ... )
        >>> frames = np.zeros((1, 2, 84, 84), np.uint8)
        >>> with buffer.joint_commit(50):
        ...     for step in range(50):
        ...         buffer.add(frames, frames, np.array([1]), np.array([0.5]), np.array([False]), [{}])

        :param n_steps: the most steps that the block adds
        :raises StorageError: if the folder is closed or open for reading only, or when the block adds more steps
        :raises OSError: if the steps cannot be written; the buffer is then as it was before the block
        """
        return nullcontext() if self._storage is None else self._storage.joint_commit(self, n_steps)

    def flush(self) -> None:
        """Write everything to the disk, including direct writes to arrays, so that it survives a power cut.

        :raises StorageError: if the buffer is in memory, see :meth:`save_checkpoint`, or its folder is closed or open
            for reading only
        """
        if self._storage is None:
            raise StorageError("flush() is for buffers with storage=<folder>; this one is in memory")
        self._storage.flush(self)

    def close(self) -> None:
        """Flush and release the folder. The buffer can still be sampled while its files are there, but not added to."""
        if self._storage is not None:
            self._storage.close(self)

    def refresh(self) -> bool:
        """Read what another process has written to the folder since the last call; return whether it wrote anything.

        :raises StorageError: if the buffer does not follow a folder, or one of its arrays was replaced
        """
        if self._storage is None or not self._storage.is_follower:
            raise StorageError("only a buffer that follows a folder can be refreshed; see from_checkpoint")
        return self._storage.refresh(self)

    def save_checkpoint(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Save the buffer to a folder: all of it the first time, then what changed since.

        Saves are atomic: after a crash, the last complete save is still there. Arrays that were assigned to the buffer,
        such as ``rewards`` of float64, are cast to SB3's dtypes before, as a load requires them.

        :param folder: a new or empty folder, or one that this buffer was saved to or loaded from
        :param overwrite: whether to replace another buffer in the folder
        :raises StorageError: if the folder contains another buffer or other files, or the buffer could not be loaded
        :raises OSError: if it cannot be written; the folder contains the last complete state, or this one if only
            syncing it to the disk failed
        """
        path = user_path(folder).absolute()
        if self._storage is not None and self._storage.folder.resolve() == path.resolve():
            self.flush()
            return
        restore_formats(self, self._formats, self._new_arrays, self._array_factory.formats)
        self._checkpoints.save(self, path, overwrite=overwrite)

    def save_latest(self, folder: str | PathLike[str]) -> None:
        """Save to a folder, or flush a buffer that is in a folder; :meth:`copy_checkpoint` copies the result.

        :param folder: receives what changed since the last save there
        """
        if self._storage is None:
            self.save_checkpoint(folder, overwrite=True)
        else:
            self.flush()

    def copy_checkpoint(self, folder: str | PathLike[str]) -> None:
        """Copy the last save or flush to a new folder, as hard links to the same files where possible.

        :raises StorageError: if nothing was saved yet, or the folder is not empty
        :raises OSError: if it cannot be written
        """
        latest = self._storage or self._checkpoints.latest
        if latest is None:
            raise StorageError("nothing was saved yet that could be copied; see save_checkpoint")
        copy_committed(latest.store, user_path(folder))

    @classmethod
    def from_checkpoint(
        cls,
        folder: str | PathLike[str],
        *,
        buffer_size: int | None = None,
        follow: bool = False,
        repair: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load the buffer in a folder.

        :param buffer_size: number of transitions of the new buffer, ``None`` for that of the saved one; if it is
            smaller, the newest transitions are loaded
        :param follow: whether to read the folder in place instead of loading it, while another process may write to
            it; :meth:`refresh` reads what that has added
        :param repair: whether to exclude damaged transitions instead of raising; :attr:`repair_report` lists them. The
            folder does not change
        :param kwargs: arguments of the constructor that override the stored ones, such as ``device``, or ``env`` for
            hindsight replay
        :raises ValueError: if an argument is invalid
        :raises TypeError: if one is unknown, or of the wrong type
        :raises StorageError: if the folder contains no buffer, or one of another kind
        :raises CorruptStorage: if a file is damaged, or declares more than is plausible, as for
            :func:`~sb3_compressed.load_checkpoint`
        """
        kwargs["buffer_size"] = buffer_size
        return buffer_from_store(cls, open_to_load(folder, kwargs, repair=repair, follow=follow), kwargs, follow=follow)

    # -- copies ----------------------------------------------------------------------------------------------

    def take_over(self, other: CompressedReplay) -> None:
        """Take over another buffer's content and folder; the other buffer must not be used afterwards.

        A sampler is taken over with its priorities. If the other buffer has none, this one's begins anew.
        """
        replaced = self._bound_sampler
        other._checkpoints.include(self._checkpoints)
        if other.optimize_memory_usage and not hasattr(other, "next_observations"):
            vars(self).pop("next_observations", None)
        for name in vars(self).keys() | vars(other).keys():  # one without it has the default of the class
            is_timer = any(isinstance(vars(each).get(name), MethodTimer) for each in (self, other))
            if hasattr(other, name) and not is_timer and name not in KEPT_ATTRIBUTES:
                vars(self)[name] = getattr(other, name)
        self.full, self.pos = other.full, other.pos  # which a subclass may store elsewhere
        if replaced is not None and self._bound_sampler is None:
            self._bound_sampler = BoundSampler(copy.deepcopy(replaced.configuration), self.buffer_size, self.n_envs)
            self._bound_sampler.synchronize(self)

    def __copy__(self) -> Self:
        if self._storage is not None:  # a shallow copy would write to the arrays of the folder
            return copy.deepcopy(self)
        shallow = type(self).__new__(type(self))
        shallow.__setstate__(self.__getstate__())
        shallow._bound_sampler = copy.deepcopy(self._bound_sampler)  # both share arrays and may add other rows
        return shallow

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._bound_sampler is not None:
            require_drawn_by_parent(type(self), CompressedBuffer)


class CompressedReplayBuffer(CompressedReplay, ReplayBuffer, BaseConstructor):
    """SB3's ``ReplayBuffer``, compressed: for DQN, SAC, TD3, DDPG, QR-DQN, TQC, CrossQ.

    >>> from stable_baselines3 import DQN
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer)

    Arguments: those of ``ReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _parent_optimizes = True


class CompressedDictReplayBuffer(CompressedReplay, DictReplayBuffer, BaseConstructor):
    """SB3's ``DictReplayBuffer``, compressed key by key: each key has its own array, compressed or plain.

    Arguments: those of ``DictReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

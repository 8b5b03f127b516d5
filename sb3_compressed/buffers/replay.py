"""Compressed replay buffers: ``add``, ``extend``, ``sample`` and ``_get_samples`` of all, and the plain classes.

Those with n-step returns are in :mod:`.n_step`, those with hindsight replay in :mod:`.her`; what all of them do with
samplers is in :mod:`.sampler_methods`, with folders in :mod:`.storage_methods`.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed.buffers.allocation import begin_allocation
from sb3_compressed.buffers.base import Methods
from sb3_compressed.buffers.extend import Steps, add_steps
from sb3_compressed.buffers.observations import (
    as_indices,
    encode_observations,
    read_observations,
    take,
    write_observations,
)
from sb3_compressed.buffers.storage_methods import StorageMethods
from sb3_compressed.buffers.tensors import tensor_converter
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.buffers.validation import (
    kinds_of_step,
    validate_numbers,
    validate_observations,
    validate_per_env,
    validated_timeouts,
)
from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.samplers.bound_sampler import BoundSampler

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CLASSES", "CompressedDictReplayBuffer", "CompressedReplay", "CompressedReplayBuffer", "Transitions"]

#: Attributes that a buffer keeps when it takes over another one.
KEPT_ATTRIBUTES = {"_batch_pool"}


class Transitions(NamedTuple):
    """The transitions of a batch: where its observations are, and the other values.

    :param indices: flat indices of the observations, ``row * n_envs + env``, ``(batch_size,)``
    :param next_indices: those of the next observations, among the next observations of the buffer
    :param actions: actions ``(batch_size, action_dim)``
    :param dones: 1 where an episode ends, except by a time limit, else 0; ``(batch_size, 1)`` of float32
    :param rewards: rewards of one step, as they were added, or returns of several steps; ``(batch_size, 1)`` of float32
    :param discounts: by which the values of next observations are multiplied, ``(batch_size, 1)``; ``None`` for those
        of one step
    """

    indices: NDArray[np.int64]
    next_indices: NDArray[np.int64]
    actions: NDArray[Any]
    dones: NDArray[Any]
    rewards: NDArray[Any]
    discounts: NDArray[Any] | None = None


class CompressedReplay(StorageMethods):
    """Mixin of compressed replay buffers; it precedes SB3's class in the bases.

    Every class accepts ``optimize_memory_usage=True``, also with ``handle_timeout_termination=True``, which SB3
    rejects. Images need no extra memory for next observations, which share their payloads with observations; vectors,
    which are plain arrays, take the memory of both. SB3's own variant, with its random numbers, is used only with
    ``handle_timeout_termination=False``, and only where SB3's class supports it.
    """

    handle_timeout_termination: bool
    copy_info_dict: bool = False  # only SB3's hindsight buffer sets it

    _sampling_method = "sample"
    REIMPLEMENTED: ClassVar[Methods] = (
        ReplayBuffer.add, ReplayBuffer._get_samples, DictReplayBuffer.add, DictReplayBuffer._get_samples
    )  # fmt: skip
    #: Whether the parent implements ``optimize_memory_usage`` (without ``handle_timeout_termination``).
    _parent_optimizes: ClassVar[bool] = False

    _observation_attributes = ("observations", "next_observations")

    def _construct_parent(self, arguments: dict[str, Any]) -> None:
        handles_timeouts = arguments.get("handle_timeout_termination", True)
        if arguments.get("optimize_memory_usage") and (handles_timeouts or not self._parent_optimizes):
            arguments = {**arguments, "optimize_memory_usage": False}
        begin_allocation(self)
        super()._construct_parent(arguments)

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
        storage = self._storage
        if storage is not None:
            storage.require_writable("added")
            storage.take_replaced_arrays(self)
        timeouts = None
        if self.handle_timeout_termination or self.copy_info_dict:  # SB3 does not read infos otherwise
            timeouts = validated_timeouts(infos, self.n_envs)
        kinds = kinds_of_step(obs, next_obs, action, reward, done)
        if kinds is None or kinds != self._validated_kinds:
            given = (obs, next_obs), (action, reward, done)
            obs, next_obs, action, reward, done = self._validate_step(kinds, *given)
        encoded = encode_observations(self.__dict__["observations"], obs, next_obs)
        if storage is None:
            self._write_steps(1, encoded, action, reward, done, timeouts, infos)
            return
        storage.begin_row(self, done)
        try:
            # Rows of a joint commit are not undone one by one.
            with deferred_interrupts() if storage.is_in_joint_commit else nullcontext():
                self._write_steps(1, encoded, action, reward, done, timeouts, infos)
        except BaseException:  # Ctrl-C, too: a transaction is whole or not there
            storage.undo_row(self)
            raise
        storage.commit_row(self)
        if self._bound_sampler is not None and not storage.is_in_joint_commit:
            # Not before: a row whose commit fails is undone, and its priority would be lost.
            self._bound_sampler.add_rows(self, 1)

    def _write_steps(
        self, n_steps: int, encoded: list[Any], action: Any, reward: Any, done: Any, timeouts: Any, infos: Any
    ) -> None:
        """Write validated steps that do not wrap around, as SB3's ``add`` does, and then count them.

        After Ctrl-C in between, the next ``add`` writes to the same row.

        :param n_steps: the number of steps; if it is 1, the arguments have no axis for them
        :param encoded: observations and next observations, from :func:`.encode_observations` or :func:`.encode_steps`
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
        # In one call: after Ctrl-C between the two, every later add would fail.
        attributes.update(pos=end % self.buffer_size, full=self.full or end == self.buffer_size)
        if self._bound_sampler is not None and self._storage is None:
            self._bound_sampler.add_rows(self, n_steps)

    @property
    def _adds_each_step(self) -> bool:
        """Whether a user's class or buffer adds each step itself, so that ``extend`` must call ``add``."""
        own, here = type(self), CompressedReplay
        return own.add is not here.add or own._write_steps is not here._write_steps or "add" in vars(self)

    def _validated_arguments(self, *given: Any) -> tuple[Any, ...]:
        obs, next_obs, action, reward, done = given
        action = validate_numbers("action", action, self.n_envs * self.action_dim, self.n_envs)
        reward = validate_per_env("reward", reward, self.n_envs)
        done = validate_per_env("done", done, self.n_envs, may_broadcast=False)
        obs = validate_observations("obs", obs, self.observations, self.observation_space, self.n_envs)
        next_obs = validate_observations("next_obs", next_obs, self.observations, self.observation_space, self.n_envs)
        return obs, next_obs, action, reward, done

    def extend(
        self,
        obs: Any,
        next_obs: Any,
        action: Any,
        reward: Any,
        done: Any,
        infos: Sequence[Any] | None = None,
        *,
        timeouts: Any = None,
    ) -> None:
        """Add many steps of every environment, as if each were passed to ``add``, in less time.

        Everything is validated before anything is added. In a folder, all steps are committed together, or as many at a
        time as the buffer has rows but one. If a codec raises, the steps before its call stay. Buffers with hindsight
        replay, and subclasses that override ``add``, add one step after the other.

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
        :param timeouts: whether an episode ended by a time limit, ``(n_steps, n_envs)``, instead of ``infos``
        :raises ValueError: if an argument does not fit, or neither ``infos`` nor ``timeouts`` is passed where the
            buffer stores time limits, or ``timeouts`` where it does not; the buffer is then as it was
        :raises TypeError: if an argument is not numeric; likewise
        """
        add_steps(self, Steps(obs, next_obs, action, reward, done, timeouts), infos)

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
        transitions = self._transitions_at(rows, envs, env)
        return self._to_tensors(transitions, *self._read(transitions), env)

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
            indices,
            self._next_indices(rows, envs),
            take(self.actions, indices),
            dones.reshape(-1, 1),
            take(self.rewards, indices).reshape(-1, 1),
        )

    def _next_indices(self, rows: NDArray[np.int64], envs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the next observations of transitions are; see :class:`Transitions`."""
        if self.optimize_memory_usage:  # they are the observations of the next rows
            rows = (rows + 1) % self.buffer_size
        return rows * self.n_envs + envs

    def _read(self, transitions: Transitions) -> tuple[Any, Any]:
        """Return the observations and next observations of a batch, decoded."""
        attributes = self.__dict__
        observations = attributes["observations"]
        following = observations if self.optimize_memory_usage else attributes["next_observations"]
        return read_observations(
            observations,
            transitions.indices,
            following,
            transitions.next_indices,
            empty=self._batch_pool.begin_batch(self.device.type),
        )

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
        # In the order of SB3's ReplayBuffer, as a user's method may draw random numbers.
        if is_dict:
            obs, next_obs = self._normalize_obs(obs, env), self._normalize_obs(next_obs, env)
        else:
            next_obs, obs = self._normalize_obs(next_obs, env), self._normalize_obs(obs, env)
        if discounts is None:
            rewards = self._normalize_reward(rewards, env)
        convert = tensor_converter(self, env, copy=copy)
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
            self._require_no_own_get_samples()


class CompressedReplayBuffer(CompressedReplay, ReplayBuffer):
    """SB3's ``ReplayBuffer``, compressed: for DQN, SAC, TD3, DDPG, QR-DQN, TQC, CrossQ.

    >>> from stable_baselines3 import DQN
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer)

    Arguments: those of ``ReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _parent_optimizes = True


class CompressedDictReplayBuffer(CompressedReplay, DictReplayBuffer):
    """SB3's ``DictReplayBuffer``, compressed key by key: each key has its own array, compressed or plain.

    Arguments: those of ``DictReplayBuffer``, and those of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """


#: Names in this module of the classes whose folders can be loaded.
CLASSES = (
    "CompressedDictReplayBuffer",
    "CompressedHerReplayBuffer",
    "CompressedNStepReplayBuffer",
    "CompressedReplayBuffer",
)
#: The modules of classes that pickles up to version 0.3 import from here.
MOVED = {"CompressedHerReplayBuffer": "her", "CompressedNStepReplayBuffer": "n_step"}


def __getattr__(name: str) -> Any:
    if name in MOVED:
        return getattr(importlib.import_module(f"sb3_compressed.buffers.{MOVED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

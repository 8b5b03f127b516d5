"""``ExtendedReplay``: the part of compressed replay buffers that adds transitions, one step or many in one call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.stored_replay import StoredReplay
from sb3_compressed.buffers.validation import (
    kinds_of_step,
    validate_infos,
    validate_numbers,
    validate_observations,
    validate_per_env,
)
from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.common.tree_map import leaves, tree_map

__all__ = ["CHUNK_STEPS", "ExtendedReplay"]

#: The most bytes of observations, without the next ones, that are encoded in one call, and the most steps.
CHUNK_NBYTES, CHUNK_STEPS = 4_000_000, 32


class Steps(NamedTuple):
    """Steps of all environments that follow each other, each field with the axes ``(n_steps, n_envs, ...)``.

    :param timeouts: whether episodes ended by a time limit, ``None`` where the buffer does not store that
    """

    obs: Any
    next_obs: Any
    action: Any
    reward: Any
    done: Any
    timeouts: Any

    def at(self, index: int | slice) -> Steps:
        """Return some steps, or one without the axis of steps."""
        return Steps(*[None if field is None else tree_map(lambda part: part[index], field) for field in self])


class ExtendedReplay(StoredReplay):
    """The part of :class:`.CompressedReplay` that adds transitions, one step or many in one call."""

    handle_timeout_termination: bool
    copy_info_dict: bool = False  # only SB3's hindsight buffer sets it
    #: Whether steps are written again that Ctrl-C interrupted.
    _is_writing_again: bool = False

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
        with self._lock:
            storage = self._storage
            if storage is not None:  # before anything is written
                storage.wait_to_write("added")
                storage.take_replaced_arrays(self)
            if self.handle_timeout_termination or self.copy_info_dict:  # SB3 does not read them otherwise
                validate_infos(infos, self.n_envs)
            kinds = kinds_of_step(obs, next_obs, action, reward, done)
            if kinds is None or kinds != self._validated_kinds:
                given = (obs, next_obs), (action, reward, done)
                obs, next_obs, action, reward, done = self._validate_step(kinds, *given)
            observations = self.__dict__["observations"]
            # The usual case directly, for speed.
            encode = observations.encode_rows if type(observations) is CompressedArray else self._encode
            encoded = encode(obs, next_obs)
            timeouts = None
            if self.handle_timeout_termination:
                timeouts = np.array([info.get("TimeLimit.truncated", False) for info in infos])
            if storage is None:
                self._write_whole(1, encoded, action, reward, done, timeouts, infos)
            else:
                # Before it is written: an interrupted step is committed with the next one, a refused one is undone.
                storage.begin_row(self, done)
                self._write_whole(1, encoded, action, reward, done, timeouts, infos)
                storage.commit_row(self)

    def _write_whole(self, n_steps: int, *values: Any) -> None:
        """Write validated steps, all of their values even if Ctrl-C comes in between, and let the sampler know.

        :param values: what :meth:`_write_steps` takes
        """
        before, bound = self._state_before_writing(), self._bound_sampler
        n_written = 0 if bound is None else bound.n_written + n_steps
        try:
            self._write_steps(n_steps, *values)
            if bound is not None:
                bound.n_written = n_written
        except Exception:  # such as that of a full disk: nothing was written
            raise
        except BaseException:  # Ctrl-C: rows must not mix old and new values
            with deferred_interrupts():
                self.__dict__.update(before, _is_writing_again=True)
                try:
                    self._write_steps(n_steps, *values)
                finally:
                    self._is_writing_again = False
                if bound is not None:
                    bound.n_written = n_written
            raise

    def _state_before_writing(self) -> dict[str, Any]:
        """Return the attributes that are reset before interrupted steps are written again."""
        return {"pos": self.pos}

    def _write_steps(
        self, n_steps: int, encoded: Any, action: Any, reward: Any, done: Any, timeouts: Any, infos: Any
    ) -> None:
        """Write validated steps that do not wrap around, as SB3's ``add`` does.

        :param n_steps: the number of steps; if it is 1, the arguments have no axis for them
        :param encoded: observations and next observations, from ``_encode``
        :param timeouts: whether episodes ended by a time limit, ignored with ``handle_timeout_termination=False``
        :param infos: info dicts of one step, for classes that store them
        """
        row, attributes = self.pos, self.__dict__
        end = row + n_steps
        rows = row if n_steps == 1 else slice(row, end)
        observations = attributes["observations"]
        if not self.optimize_memory_usage:
            self._write(encoded, (observations, rows), (attributes["next_observations"], rows))
        elif n_steps == 1:
            self._write(encoded, (observations, row), (observations, end % self.buffer_size))
        else:  # observations of the following steps replace all next observations but the last one
            self._write(encoded, (observations, rows))
            self._write(_last_next_observation(encoded), (observations, end % self.buffer_size))
        self.actions[rows] = action.reshape(-1, self.n_envs, self.action_dim)
        self.rewards[rows] = reward
        self.dones[rows] = done
        if self.handle_timeout_termination:
            self.timeouts[rows] = timeouts
        # At once: interrupted between both, the buffer could never be added to again.
        attributes.update(pos=end % self.buffer_size, full=self.full or end == self.buffer_size)

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
        steps, n_steps = self._steps_of(Steps(obs, next_obs, action, reward, done, timeouts), infos)
        if not n_steps:
            return
        with self._lock:
            is_valid = self._validates_at_once(steps.at(0), n_steps)
        if not is_valid:
            for step in range(n_steps):
                obs, next_obs, action, reward, done, _ = steps.at(step)
                self._validated_arguments(obs, next_obs, action, reward, done)
        storage = self._storage
        if storage is not None:
            storage.require_writable("added")
        most = n_steps if storage is None else max(self.buffer_size - 1, 1)
        is_joint = storage is not None and storage.is_in_joint_commit
        for first in range(0, n_steps, most):
            part = slice(first, min(first + most, n_steps))
            with nullcontext() if is_joint else self.joint_commit(part.stop - part.start):
                if is_valid and (storage is None or storage.is_in_joint_commit):
                    self._extend_at_once(steps.at(part))
                else:
                    for step in range(part.start, part.stop):
                        self.add(*steps.at(step)[:-1], self._infos_of(step, infos, steps.timeouts))

    def _steps_of(self, given: Steps, infos: Sequence[Any] | None) -> tuple[Steps, int]:
        """Return the arguments of :meth:`extend` as arrays, and the number of steps; infos are validated.

        :raises ValueError: if they have different numbers of steps, or infos do not fit
        :raises TypeError: if time limits are not numeric
        """
        steps = Steps._make([*map(_stacked, given[:-1]), given.timeouts])
        n_steps = _n_steps(steps, infos)
        if n_steps:
            steps = steps._replace(timeouts=self._validated_timeouts(infos, given.timeouts, n_steps))
        return steps, n_steps

    def _validated_timeouts(self, infos: Sequence[Any] | None, timeouts: Any, n_steps: int) -> NDArray[np.bool_] | None:
        """Validate info dicts and time limits; return the latter, ``None`` if the buffer does not store them.

        :raises ValueError: if they do not fit
        :raises TypeError: if time limits are not numeric
        """
        if infos is not None and timeouts is not None:
            raise ValueError("pass infos or timeouts, not both")
        if self.copy_info_dict and infos is None:
            raise ValueError("infos are needed with copy_info_dict=True")
        if infos is not None and (self.handle_timeout_termination or self.copy_info_dict):
            for each in infos:
                validate_infos(each, self.n_envs)
        if not self.handle_timeout_termination:
            if timeouts is not None:
                raise ValueError(
                    "a buffer with handle_timeout_termination=False stores no time limits: pass no timeouts, or "
                    "construct it without that argument"
                )
            return None
        if infos is not None:
            limits = [bool(info.get("TimeLimit.truncated", False)) for each in infos for info in each]
            return np.array(limits, np.bool_).reshape(n_steps, self.n_envs)
        if timeouts is None:
            raise ValueError(
                "pass infos, or timeouts: whether each episode ended by a time limit, (n_steps, n_envs); "
                "handle_timeout_termination=False needs neither"
            )
        ended = np.asarray(timeouts)
        if ended.dtype.kind not in "biuf":  # the buffer's own are float32
            raise TypeError(f"timeouts must be booleans, got an array of {ended.dtype}")
        if ended.shape != (n_steps, self.n_envs):
            raise ValueError(f"timeouts must have the shape ({n_steps}, {self.n_envs}), got {ended.shape}")
        return ended.astype(np.bool_)

    def _infos_of(self, step: int, infos: Sequence[Any] | None, timeouts: NDArray[np.bool_] | None) -> Any:
        """Return the info dicts of a step."""
        if infos is not None:
            return infos[step]
        ended = np.zeros(self.n_envs, np.bool_) if timeouts is None else timeouts[step]
        return [{"TimeLimit.truncated": bool(each)} for each in ended]

    def _validates_at_once(self, step: Steps, n_steps: int) -> bool:
        """Return whether the first one of many steps is valid as it is, and so all, which have its types and shapes.

        :raises ValueError: if it is not valid
        :raises TypeError: if it is not numeric
        """
        obs, next_obs, action, reward, done, _ = step
        kinds = kinds_of_step(obs, next_obs, action, reward, done)
        if kinds is None or kinds != self._validated_kinds:
            self._validate_step(kinds, (obs, next_obs), (action, reward, done))
        if n_steps == 1 or kinds is None or kinds != self._validated_kinds:
            return False
        own, here = type(self), ExtendedReplay
        if own.add is not here.add or own._write_steps is not here._write_steps or "add" in vars(self):
            return False  # of a subclass, which adds each step itself
        # Nothing may be broadcast: with an axis of steps, other axes would meet.
        n_values = [math.prod(array.shape[1:]) for array in leaves(self.observations)]
        is_complete = np.shape(reward) == np.shape(done) == (self.n_envs,)
        return is_complete and all([part.size for part in leaves(each)] == n_values for each in (obs, next_obs))

    def _extend_at_once(self, steps: Steps) -> None:
        """Add valid steps, some of them in each call of the codecs."""
        n_steps = len(steps.reward)
        step_nbytes = max(sum(part.nbytes for part in leaves(steps.at(0).obs)), 1)
        most = min(max(CHUNK_NBYTES // step_nbytes, 1), CHUNK_STEPS)
        first = 0
        while first < n_steps:
            with self._lock:
                n = min(most, n_steps - first, self.buffer_size - self.pos)
                self._add_chunk(steps.at(slice(first, first + n)), n)
            first += n

    def _add_chunk(self, steps: Steps, n_steps: int) -> None:
        """Add steps that do not wrap around."""
        obs, next_obs, action, reward, done, timeouts = steps.at(0) if n_steps == 1 else steps
        encode = CompressedArray.encode_rows if n_steps == 1 else CompressedArray.encode_steps
        encoded = self._encode(obs, next_obs, encode=encode)
        if self._storage is not None:
            self._storage.count_joint_rows(n_steps)
        self._write_whole(n_steps, encoded, action, reward, done, timeouts, None)


def _stacked(values: Any) -> Any:
    """Return what ``add`` takes for several steps as arrays with an axis of steps, or a dict of arrays."""
    if isinstance(values, np.ndarray | CompressedArray):  # of the latter, parts are decoded
        return values
    if isinstance(values, Mapping):
        return {key: _stacked(part) for key, part in values.items()}
    steps = [*values]
    if steps and isinstance(steps[0], Mapping):
        return {key: np.stack([step[key] for step in steps]) for key in steps[0]}
    return np.asarray(steps)


def _last_next_observation(encoded: Any) -> Any:
    """Return the next observation of the last one of several steps that were encoded."""
    if isinstance(encoded, dict):
        return {key: [parts[1][-1]] for key, parts in encoded.items()}
    return [encoded[1][-1]]


def _n_steps(steps: Steps, infos: Sequence[Any] | None) -> int:
    """Return the number of steps.

    :raises ValueError: if the arguments have different ones
    """
    given = {**steps._asdict(), "infos": infos}
    lengths = {name: [*map(len, leaves(values))] for name, values in given.items() if values is not None}
    if any(each != len(steps.reward) for found in lengths.values() for each in found):
        listed = ", ".join(f"{' and '.join(map(str, found))} of {name}" for name, found in lengths.items())
        raise ValueError(f"all arguments must have the same number of steps, got {listed}")
    return len(steps.reward)

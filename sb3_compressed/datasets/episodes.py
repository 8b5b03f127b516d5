"""A replay buffer episode by episode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.persistence.ring_resize import rows_by_age

__all__ = ["Trajectory", "trajectories"]

#: Transitions of which observations are compared at a time, to find episodes that end without a word.
AT_ONCE = 256


@dataclass(frozen=True)
class Trajectory:
    """Consecutive transitions of one environment, an episode or what there is of one.

    Nothing is decoded before it is asked for.

    :param env: the environment's index
    :param rows: rows of the buffer, ``(n_steps,)``, the oldest first
    :param has_begin: whether it begins with the first observation of an episode; the first trajectory of a ring that
        went round begins where older transitions were overwritten. (A buffer that got more room after that has no
        memory of it, and takes that trajectory for one with a begin.)
    :param has_end: whether the episode ended, terminated or truncated; the last trajectory may be going on
    """

    env: int
    rows: NDArray[np.int64]
    has_begin: bool
    has_end: bool
    _buffer: ReplayBuffer = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def observations(self) -> Any:
        """Observations ``(n_steps + 1, *obs_shape)``, the last one after the last step; of a Dict space a dict."""
        return self.part(0, len(self)).observations

    @property
    def actions(self) -> NDArray[Any]:
        """Actions as they are stored, ``(n_steps, *action_shape)``, in the dtype of the action space.

        SB3's off-policy algorithms store actions of Box spaces scaled to -1 to 1.
        """
        space = self._buffer.action_space
        actions = self._buffer.actions[self.rows, self.env]
        found: NDArray[Any] = actions.reshape(len(self), *(space.shape or ())).astype(space.dtype, copy=False)
        return found

    @property
    def rewards(self) -> NDArray[np.float32]:
        """Rewards ``(n_steps,)``."""
        rewards: NDArray[np.float32] = self._buffer.rewards[self.rows, self.env]
        return rewards

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Whether the episode was over after each step because of what happened in it, ``(n_steps,)``."""
        return self._flags(self._buffer.dones) & ~self._flags(self._buffer.timeouts)

    @property
    def truncations(self) -> NDArray[np.bool_]:
        """Whether the episode was cut off after each step, as by a time limit, ``(n_steps,)``.

        A buffer with ``handle_timeout_termination=False`` does not know it: all ends are terminations there.
        """
        return self._flags(self._buffer.dones) & self._flags(self._buffer.timeouts)

    def _flags(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        flags: NDArray[np.bool_] = array[self.rows, self.env].astype(np.bool_)
        return flags

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space that observations are of."""
        return self._buffer.observation_space

    @property
    def buffer(self) -> ReplayBuffer:
        """The buffer that it is in."""
        return self._buffer

    @property
    def total_reward(self) -> float:
        """The sum of the rewards, as they are stored: a wrapper may have clipped them."""
        return float(self.rewards.sum(dtype=np.float64))

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The space that actions are of."""
        return self._buffer.action_space

    def part(self, first: int, last: int) -> Part:
        """Return the steps from ``first`` up to ``last``, decoded."""
        rows = self.rows[first:last]
        end = _next_observation(self._buffer, rows[-1:], self.env)
        observations = _observation(self._buffer, rows, self.env)
        if isinstance(observations, dict):
            observations = {key: np.concatenate([observations[key], end[key]]) for key in observations}
        else:
            observations = np.concatenate([observations, end])
        return Part(
            observations,
            self.actions[first:last],
            self.rewards[first:last],
            self.terminations[first:last],
            self.truncations[first:last],
        )


@dataclass(frozen=True)
class Part:
    """Steps of a trajectory, decoded.

    :param observations: ``(n_steps + 1, *obs_shape)``, or a dict of them
    :param actions: ``(n_steps, *action_shape)``
    :param rewards: ``(n_steps,)``
    :param terminations: ``(n_steps,)``
    :param truncations: ``(n_steps,)``
    """

    observations: Any
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]


def trajectories(buffer: ReplayBuffer) -> Iterator[Trajectory]:
    """Yield what a replay buffer holds as episodes, environment by environment, the oldest first.

    An episode ends where the buffer says that it is done, and where the next observation stored is not the one that
    follows, as after training was resumed with a new episode. Works for SB3's own buffers, too.

    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from sb3_compressed import CompressedReplayBuffer, trajectories
    >>> buffer = CompressedReplayBuffer(100, spaces.Box(0, 255, (2, 84, 84), np.uint8), spaces.Discrete(2))
    >>> frames = np.zeros((1, 2, 84, 84), np.uint8)
    >>> for step in range(5):
    ...     buffer.add(frames, frames, np.array([1]), np.array([0.5]), np.array([step == 2]), [{}])
    >>> [(len(episode), episode.has_end) for episode in trajectories(buffer)]
    [(3, True), (2, False)]

    :param buffer: the buffer; it must not be added to meanwhile
    """
    rows = rows_by_age(buffer.pos, buffer.buffer_size, full=buffer.full)
    if buffer.full and buffer.optimize_memory_usage:  # the oldest has lost its observation to the newest
        rows = rows[1:]
    for env in range(buffer.n_envs):
        dones = buffer.dones[rows, env].astype(np.bool_)
        ends = dones | ~_continues(buffer, rows, env)
        bounds = [0, *(np.flatnonzero(ends) + 1).tolist()]
        if len(rows) and bounds[-1] != len(rows):
            bounds.append(len(rows))
        for begin, end in pairwise(bounds):
            has_begin = begin > 0 or not buffer.full
            yield Trajectory(env, rows[begin:end], has_begin, bool(dones[end - 1]), buffer)


def _continues(buffer: ReplayBuffer, rows: NDArray[np.int64], env: int) -> NDArray[np.bool_]:
    """Tell for each row that is not done whether the observation of the row after it is its next one, bit for bit."""
    continues = np.ones(len(rows), np.bool_)
    is_open = ~buffer.dones[rows[:-1], env].astype(np.bool_) & ~_share_slots(buffer, rows, env)
    unknown = np.flatnonzero(is_open)  # the others need not be decoded
    for first in range(0, len(unknown), AT_ONCE):
        some = unknown[first : first + AT_ONCE]
        following = _observation(buffer, rows[some + 1], env)
        next_ones = _next_observation(buffer, rows[some], env)
        if not isinstance(following, dict):
            following, next_ones = {"": following}, {"": next_ones}
        for key, values in following.items():
            n = len(values)
            same = values.reshape(n, -1).view(np.uint8) == next_ones[key].reshape(n, -1).view(np.uint8)
            continues[some] &= same.all(axis=1)
    return continues


def _share_slots(buffer: ReplayBuffer, rows: NDArray[np.int64], env: int) -> NDArray[np.bool_]:
    """Tell for each row but the last whether its next observation and the one after it are known to be one slot."""
    if buffer.optimize_memory_usage:  # there are no others
        return np.ones(max(len(rows) - 1, 0), np.bool_)
    shared = np.ones(max(len(rows) - 1, 0), np.bool_)
    arrays: Any = buffer.observations
    of_next: Any = buffer.next_observations
    keys = arrays if isinstance(arrays, dict) else None
    for ours, theirs in [(arrays[key], of_next[key]) for key in keys] if keys else [(arrays, of_next)]:
        if not (isinstance(ours, CompressedArray) and isinstance(theirs, CompressedArray)):
            return np.zeros_like(shared)
        shared &= ours.slots[rows[1:], env] == theirs.slots[rows[:-1], env]
    return shared


def _observation(buffer: ReplayBuffer, rows: NDArray[np.int64], env: int) -> Any:
    return _read(buffer, buffer.observations, rows, env)


def _next_observation(buffer: ReplayBuffer, rows: NDArray[np.int64], env: int) -> Any:
    if buffer.optimize_memory_usage:  # SB3's variant, in which they are the observations of the rows behind
        return _read(buffer, buffer.observations, (rows + 1) % buffer.buffer_size, env)
    return _read(buffer, buffer.next_observations, rows, env)


def _read(buffer: ReplayBuffer, arrays: Any, rows: NDArray[np.int64], env: int) -> Any:
    """Return observations in the shape of their space."""
    envs = np.full(len(rows), env)
    if not isinstance(arrays, dict):
        return _shaped(np.ascontiguousarray(arrays[rows, envs]), buffer.observation_space)
    parts = buffer.observation_space.spaces  # type: ignore[attr-defined]
    return {key: _shaped(np.ascontiguousarray(array[rows, envs]), parts[key]) for key, array in arrays.items()}


def _shaped(values: NDArray[Any], space: spaces.Space[Any]) -> NDArray[Any]:
    return values.reshape(len(values), *(space.shape or ()))

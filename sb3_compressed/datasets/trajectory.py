"""``trajectories``: the episodes of a replay buffer, and their steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.common.tree_map import leaves, tree_map
from sb3_compressed.persistence.ring_resize import rows_by_age

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["Trajectory", "TrajectoryPart", "add_steps", "trajectories"]

#: Observations that are decoded at a time to find where episodes end without ``done``.
CHUNK_SIZE = 256


@dataclass(frozen=True)
class Trajectory:
    """Consecutive transitions of one environment: an episode, or the part of it that the buffer still has.

    Observations are decoded when they are read.

    :param env: index of the environment
    :param rows: rows of the buffer, ``(n_steps,)``, oldest first
    :param has_begin: whether it starts with the first observation of the episode; false if the ring has overwritten the
        beginning. (A full ring that was resized does not store this, and its first trajectory counts as complete.)
    :param has_end: whether the episode terminated or was truncated; the last one of each environment may not have ended
    :param buffer: the buffer with the transitions
    """

    env: int
    rows: NDArray[np.int64]
    has_begin: bool
    has_end: bool
    buffer: ReplayBuffer = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def observations(self) -> Any:
        """Observations ``(n_steps + 1, *obs_shape)`` including the one after the last step; for a Dict space a dict."""
        return self.part(0, len(self)).observations

    @property
    def actions(self) -> NDArray[Any]:
        """Actions as stored, ``(n_steps, *action_shape)``, in the dtype of the action space.

        SB3's off-policy algorithms store actions of Box spaces scaled to [-1, 1].
        """
        space = self.buffer.action_space
        actions = self.buffer.actions[self.rows, self.env]
        shaped: NDArray[Any] = actions.reshape(len(self), *(space.shape or ())).astype(space.dtype, copy=False)
        return shaped

    @property
    def rewards(self) -> NDArray[np.float32]:
        """Rewards ``(n_steps,)``."""
        rewards: NDArray[np.float32] = self.buffer.rewards[self.rows, self.env]
        return rewards

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Whether the episode terminated with each step, ``(n_steps,)``."""
        return self._flags(self.buffer.dones) & ~self._flags(self.buffer.timeouts)

    @property
    def truncations(self) -> NDArray[np.bool_]:
        """Whether the episode was truncated after each step, for example by a time limit, ``(n_steps,)``.

        Buffers with ``handle_timeout_termination=False`` do not store this: there, all ends are terminations.
        """
        return self._flags(self.buffer.dones) & self._flags(self.buffer.timeouts)

    def _flags(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        flags: NDArray[np.bool_] = array[self.rows, self.env].astype(np.bool_)
        return flags

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The observation space of the buffer."""
        return self.buffer.observation_space

    @property
    def total_reward(self) -> float:
        """The sum of the stored rewards, which a wrapper may have clipped."""
        return float(self.rewards.sum(dtype=np.float64))

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The action space of the buffer."""
        return self.buffer.action_space

    def part(self, first: int, last: int) -> TrajectoryPart:
        """Decode the steps from ``first`` up to, but not including, ``last``."""
        rows = self.rows[first:last]
        observations = _read(self.buffer, self.buffer.observations, rows, self.env)
        end = _next_observation(self.buffer, rows[-1:], self.env)
        return TrajectoryPart(
            tree_map(lambda *both: np.concatenate(both), observations, end),
            self.actions[first:last],
            self.rewards[first:last],
            self.terminations[first:last],
            self.truncations[first:last],
        )

    def parts(self, n_steps: int) -> Iterator[tuple[TrajectoryPart, bool]]:
        """Decode all steps, ``n_steps`` at a time, and yield them with whether they are the last ones.

        The last observation of a part is also the first one of the next part.
        """
        for first in range(0, len(self), n_steps):
            last = min(first + n_steps, len(self))
            yield self.part(first, last), last == len(self)


@dataclass(frozen=True)
class TrajectoryPart:
    """Decoded steps of a trajectory.

    :param observations: ``(n_steps + 1, *obs_shape)``, or a dict of such arrays
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
    """Yield the episodes of a replay buffer, environment by environment, oldest first. SB3's own buffers work, too.

    An episode ends where ``dones`` is set, and where the next observation of a transition differs from the observation
    of the transition after it, for example because training was resumed with a new episode.

    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from sb3_compressed import CompressedReplayBuffer
    >>> from sb3_compressed.datasets import trajectories
    >>> buffer = CompressedReplayBuffer(
    ...     100, spaces.Box(0, 255, (2, 84, 84), np.uint8), spaces.Discrete(2)
    ... )
    >>> frames = np.zeros((1, 2, 84, 84), np.uint8)
    >>> for step in range(5):
    ...     buffer.add(frames, frames, np.array([1]), np.array([0.5]), np.array([step == 2]), [{}])
    >>> [(len(episode), episode.has_end) for episode in trajectories(buffer)]
    [(3, True), (2, False)]

    :param buffer: the buffer; do not add to it during the iteration
    :raises TypeError: if it is a distributed buffer, whose transitions are in other processes
    """
    if not hasattr(buffer, "dones"):
        raise TypeError(
            f"the transitions of a {type(buffer).__name__} are in other processes; load_checkpoint opens the folder of "
            "each of its rings, shard-*/ring-*"
        )
    rows = rows_by_age(buffer.pos, buffer.buffer_size, full=buffer.full)
    if buffer.full and buffer.optimize_memory_usage:  # the newest transition overwrote the oldest observation
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
    """Return for each row that is not done whether its next observation is, bit for bit, the next row's observation."""
    continues = np.ones(len(rows), np.bool_)
    if buffer.optimize_memory_usage:  # next observations are not stored separately
        return continues
    is_open = np.flatnonzero(~buffer.dones[rows[:-1], env].astype(np.bool_))
    for ours, theirs in leaves(tree_map(lambda *arrays: arrays, buffer.observations, buffer.next_observations)):
        unknown = is_open[continues[is_open]]
        if isinstance(ours, CompressedArray) and isinstance(theirs, CompressedArray):  # nearly all share their slots
            unknown = unknown[ours.references[rows[unknown + 1], env] != theirs.references[rows[unknown], env]]
        for first in range(0, len(unknown), CHUNK_SIZE):
            some = unknown[first : first + CHUNK_SIZE]
            continues[some] = _are_equal(ours, rows[some + 1], theirs, rows[some], env)
    return continues


def _are_equal(
    array: Any, rows: NDArray[np.int64], other: Any, other_rows: NDArray[np.int64], env: int
) -> NDArray[np.bool_]:
    """Return for each of some rows of an array whether its item is, bit for bit, that of a row of another array."""
    values, other_values = (
        np.ascontiguousarray(each[each_rows, np.full(len(rows), env)]).reshape(len(rows), -1).view(np.uint8)
        for each, each_rows in ((array, rows), (other, other_rows))
    )
    are_equal: NDArray[np.bool_] = (values == other_values).all(axis=1)
    return are_equal


def _next_observation(buffer: ReplayBuffer, rows: NDArray[np.int64], env: int) -> Any:
    if buffer.optimize_memory_usage:  # SB3 reads them from the next rows' observations
        return _read(buffer, buffer.observations, (rows + 1) % buffer.buffer_size, env)
    return _read(buffer, buffer.next_observations, rows, env)


def _read(buffer: ReplayBuffer, arrays: Any, rows: NDArray[np.int64], env: int) -> Any:
    """Decode observations, in the shape of their space."""
    envs = np.full(len(rows), env)

    def read(array: Any, space: spaces.Space[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(array[rows, envs]).reshape(len(rows), *(space.shape or ()))

    return tree_map(read, arrays, buffer.observation_space)


def add_steps(buffer: ReplayBuffer, episode: Any) -> None:
    """Add the steps of a decoded episode to a replay buffer of one environment, at once if it is in a folder.

    :param episode: a :class:`TrajectoryPart`, or an episode of Minari: ``observations`` ``(n_steps + 1, ...)`` or a
        dict of such arrays, ``actions``, ``rewards``, ``terminations`` and ``truncations``
    """
    obs: Any = tree_map(lambda values: values[:-1, np.newaxis], episode.observations)
    next_obs: Any = tree_map(lambda values: values[1:, np.newaxis], episode.observations)
    if isinstance(obs, dict) and not isinstance(buffer, CompressedReplay):  # extend of SB3 takes a dict for each step
        obs, next_obs = ([dict(zip(each, step)) for step in zip(*each.values())] for each in (obs, next_obs))
    terminations, truncations = np.asarray(episode.terminations), np.asarray(episode.truncations)
    infos = [[{"TimeLimit.truncated": bool(each)}] for each in truncations & ~terminations]
    columns = episode.actions, episode.rewards, terminations | truncations
    buffer.extend(obs, next_obs, *(np.asarray(column)[:, np.newaxis] for column in columns), infos)

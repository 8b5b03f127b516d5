""":class:`RecordBuffer`: what a policy sees and does, step by step, in a compressed recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed.buffers.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_compressed.buffers.validation import validate_infos, validate_per_env
from sb3_compressed.datasets.episodes import Trajectory
from sb3_compressed.datasets.transitions import transitions
from sb3_compressed.persistence.loading import load_checkpoint
from sb3_compressed.persistence.ring_resize import resize
from sb3_compressed.recording.parts import NamedParts, Parts, batch_of, feature_space_of, joined, joined_space

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RecordBuffer"]

#: Steps that a recording without a size has room for at first; then twice as many, and so on.
FIRST_STEPS = 1024
#: Steps of an episode that are decoded at a time.
AT_ONCE = 256


@dataclass(frozen=True)
class _Step:
    """A step of all environments, as it was passed.

    :param obs: observations and features
    :param next_obs: the observations that followed, at an episode's end its last ones
    """

    obs: Parts
    next_obs: Parts
    action: NDArray[Any]
    reward: NDArray[Any]
    done: NDArray[np.bool_]
    infos: list[dict[str, Any]]


class RecordBuffer:
    """A recording of observations, actions, rewards and, if wished, features of each step, compressed.

    It takes what a ``VecEnv`` returns, and puts it into a compressed replay buffer, :attr:`buffer`: all that works with
    those works with a recording. ``trajectories(recording.buffer)`` are its episodes, ``export_minari`` makes a dataset
    of them, ``save_checkpoint`` a folder.

    >>> from stable_baselines3 import PPO
    >>> from sb3_compressed.datasets import trajectories
    >>> from sb3_compressed.recording import RecordBuffer
    >>> model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0)
    >>> env = model.get_env()
    >>> recording = RecordBuffer(env.observation_space, env.action_space)
    >>> obs, done = env.reset(), [False]
    >>> while not done[0]:
    ...     action, _ = model.predict(obs)
    ...     new_obs, reward, done, infos = env.step(action)
    ...     recording.record(obs, action, new_obs, reward, done, infos)
    ...     obs = new_obs
    >>> [episode] = trajectories(recording.buffer)
    >>> len(episode.observations) - len(episode.actions)
    1

    Features, as the latent vectors of a policy or its values, belong to the observation that they are computed from:
    the recording's observations are dicts then, of ``"observation"`` and ``"features"``. Those of a Dict space keep
    their keys, observations and features alike. What features the observation behind a step has is known with the
    step after it, so a step arrives in :attr:`buffer` one call later; the last observation of an episode has zeros.

    :param observation_space: what observations are of; for rendered frames, the space of those
    :param action_space: what actions are of, stored as they are passed
    :param buffer_size: number of transitions it has room for, after which the oldest are overwritten; ``None`` for a
        recording that grows
    :param n_envs: number of environments that are recorded at once
    :param feature_space: what features are of: a space, or the number of float32 numbers that they are
    :param options: further arguments of :class:`~sb3_compressed.CompressedReplayBuffer`, as ``compression_method``, or
        ``storage=<folder>`` to record into a folder, with ``resume=True`` to go on there
    :raises ValueError: if an argument does not fit
    """

    #: Whether observations are kept.
    keeps_observations: ClassVar[bool] = True

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        buffer_size: int | None = None,
        *,
        n_envs: int = 1,
        feature_space: int | spaces.Space[Any] | None = None,
        **options: Any,
    ) -> None:
        if n_envs < 1 or (buffer_size is not None and buffer_size < n_envs):
            raise ValueError(f"a recording is of a step of each environment at least, got {buffer_size=}, {n_envs=}")
        self.observation_space = observation_space
        self.action_space = action_space
        self.n_envs = n_envs
        self.feature_space = feature_space_of(feature_space)
        self._observations = NamedParts("observation", observation_space if self.keeps_observations else None)
        self._features = NamedParts("features", self.feature_space)
        self._grows = buffer_size is None
        if buffer_size is None:
            goes_on = options.get("resume") and options.get("storage", "memory") != "memory"
            buffer_size = _n_steps_in(options["storage"]) if goes_on else FIRST_STEPS * n_envs
        space = joined_space(self._observations, self._features)
        cls = CompressedDictReplayBuffer if isinstance(space, spaces.Dict) else CompressedReplayBuffer
        self._buffer = cls(buffer_size, space, action_space, n_envs=n_envs, handle_timeout_termination=True, **options)
        #: The step that waits for the features of the next one.
        self._waiting: _Step | None = None

    @property
    def buffer(self) -> CompressedReplayBuffer | CompressedDictReplayBuffer:
        """The compressed replay buffer that holds the recording, always the same object."""
        return self._buffer

    def __len__(self) -> int:
        """Return how many transitions :attr:`buffer` holds, of all environments."""
        return int(self._buffer.size() * self.n_envs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} transitions of {self.n_envs} environments)"

    # -- recording -------------------------------------------------------------------------------------------

    def record(
        self,
        obs: Any,
        action: Any,
        new_obs: Any,
        reward: Any,
        done: Any,
        infos: Sequence[Mapping[str, Any]] | Mapping[str, Any],
        *,
        features: Any = None,
    ) -> None:
        """Record a step of every environment, in the order ``obs, action, *env.step(action)``.

        A ``VecEnv`` starts a new episode at once where one ends: what is in ``new_obs`` belongs to that, and the last
        observation is ``infos[i]["terminal_observation"]``, which is taken where it is there. ``"TimeLimit.truncated"``
        says whether the end is a truncation. For one environment, the leading axis may be missing everywhere, and
        ``infos`` may be its dict.

        :param obs: observations that actions were chosen for, ``(n_envs, *obs_shape)``, or a dict of them
        :param action: actions ``(n_envs, *action_shape)``
        :param new_obs: observations after the step, as ``obs``
        :param reward: rewards ``(n_envs,)``
        :param done: whether an episode ended, ``(n_envs,)``
        :param infos: one info dict for each environment
        :param features: features of ``obs``, ``(n_envs, *feature_shape)``, or a dict of them
        :raises ValueError: if something does not fit; the recording is then as it was
        :raises TypeError: if something has no numbers; the same
        """
        step = self._checked(obs, action, new_obs, reward, done, infos, features)
        if self.feature_space is None:
            self._write(step, {})
            return
        if self._waiting is not None:
            self._write(self._waiting, {name: step.obs[name] for name in self._features.spaces})
        self._waiting = step
        if step.done.all():
            self.finish()

    def finish(self) -> None:
        """Let the last step arrive in :attr:`buffer`, also in the middle of an episode.

        That matters for recordings with features only: call it before environments are reset in the middle of an
        episode. What is recorded afterwards begins another trajectory.
        """
        if self._waiting is not None:
            self._write(self._waiting, {name: np.zeros_like(self._waiting.obs[name]) for name in self._features.spaces})
            self._waiting = None

    def add_episode(self, episode: Trajectory) -> None:
        """Add an episode of another recording or of a replay buffer, as of the one that a policy was trained with.

        :param episode: what :func:`~sb3_compressed.datasets.trajectories` yields
        :raises ValueError: if it is of other spaces than the buffer of this recording, or that is of several
            environments
        """
        if self.n_envs != 1:
            raise ValueError(f"episodes are added to recordings of one environment, this one is of {self.n_envs}")
        ours = self._buffer.observation_space, self.action_space
        theirs = episode.observation_space, episode.action_space
        if ours != theirs:
            raise ValueError(f"the episode has observations and actions of {theirs}, the recording of {ours}")
        self.finish()
        for first in range(0, len(episode), AT_ONCE):
            for transition in transitions(episode.part(first, min(first + AT_ONCE, len(episode)))):
                self._add(*transition)

    def close(self) -> None:
        """Finish, and let go of the folder that the recording may be in. It can still be read."""
        self.finish()
        self._buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- to the buffer ---------------------------------------------------------------------------------------

    def _checked(self, obs: Any, action: Any, new_obs: Any, reward: Any, done: Any, infos: Any, features: Any) -> _Step:
        """Return a step as copies in the shapes and dtypes of the spaces, or raise."""
        n_envs = self.n_envs
        if n_envs == 1 and isinstance(infos, Mapping):
            infos = [infos]
        if not isinstance(infos, Sequence) or len(infos) != n_envs:
            raise ValueError(f"infos must be {n_envs} dicts, one for each environment, got {infos!r}")
        validate_infos(infos, n_envs)
        if (features is None) != (self.feature_space is None):
            given = "no features were passed" if features is None else "features were passed"
            raise ValueError(f"{given}, and feature_space of the recording is {self.feature_space}")
        ends = validate_per_env("done", done, n_envs, may_broadcast=False).astype(np.bool_)
        return _Step(
            {**self._observations.batch("obs", obs, n_envs), **self._features.batch("features", features, n_envs)},
            self._last_observations(self._observations.batch("new_obs", new_obs, n_envs), ends, infos),
            batch_of("action", action, self.action_space, n_envs),
            validate_per_env("reward", reward, n_envs).copy(),
            ends,
            [{"TimeLimit.truncated": bool(info.get("TimeLimit.truncated", False))} for info in infos],
        )

    def _last_observations(self, new_obs: Parts, done: NDArray[np.bool_], infos: Any) -> Parts:
        """Return new observations with the last ones of episodes that ended in their places."""
        for env in np.flatnonzero(done):
            last = infos[env].get("terminal_observation")
            if last is not None:
                for name, values in self._observations.batch(f"infos[{env}]['terminal_observation']", last, 1).items():
                    new_obs[name][env] = values[0]
        return new_obs

    def _write(self, step: _Step, next_features: Parts) -> None:
        """Write a step whose next observations have these features, or zeros where the episode is over."""
        after = {name: values.copy() for name, values in next_features.items()}
        for values in after.values():
            values[step.done] = 0
        space = self._buffer.observation_space
        obs, next_obs = (joined(parts, space, self.n_envs) for parts in (step.obs, {**step.next_obs, **after}))
        self._add(obs, next_obs, step.action, step.reward, step.done, step.infos)

    def _add(self, *transition: Any) -> None:
        if self._grows and self._buffer.full:
            resize(self._buffer, 2 * self._buffer.buffer_size * self.n_envs)
        self._buffer.add(*transition)


def _n_steps_in(folder: Any) -> int:
    """Return how many transitions the buffer in a folder has room for."""
    buffer = load_checkpoint(folder, follow=True)
    try:
        return int(buffer.buffer_size * buffer.n_envs)
    finally:
        buffer.close()

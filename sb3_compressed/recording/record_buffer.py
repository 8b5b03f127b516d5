"""``RecordBuffer`` records the steps of environments in a compressed buffer; two variants record less."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces

from sb3_compressed.buffers.arguments import storage_mode_of
from sb3_compressed.buffers.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_compressed.buffers.resize import resize
from sb3_compressed.buffers.validation import validate_infos, validate_per_env
from sb3_compressed.common.paths import user_path
from sb3_compressed.datasets.trajectory import Trajectory, add_steps
from sb3_compressed.persistence.restoring import require_buffer
from sb3_compressed.recording.named_spaces import (
    Arrays,
    NamedSpaces,
    merge_arrays,
    merge_spaces,
    to_feature_space,
    validate_batch,
)
from sb3_compressed.step import Step, with_last_observations
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.damaged_store import open_damaged

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DummyRecordBuffer", "FramelessRecordBuffer", "RecordBuffer"]

#: Steps for which a growing recording has space at first. The size doubles whenever it is full.
INITIAL_STEPS = 1024
#: Steps of an episode that are decoded at a time.
CHUNK_SIZE = 256


class RecordBuffer:
    """Records observations, actions, rewards and optional features of each step, compressed.

    :meth:`record` takes the output of ``VecEnv.step`` and adds it to a compressed replay buffer, :attr:`buffer`. Pass
    this to ``trajectories`` for the episodes, to ``export_minari`` for a dataset, or to ``save_checkpoint``.

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

    Features, such as latent vectors or values of a policy, belong to the observation that they were computed from. With
    features, the recorded observations are dicts with ``"observation"`` and ``"features"``; parts of Dict spaces keep
    their keys. The features of the next observation arrive with the next step, so :attr:`buffer` receives each step one
    call later; the last observation of an episode has features of zeros.

    :param observation_space: space of the observations, or of rendered frames
    :param action_space: space of the actions, which are stored unscaled
    :param buffer_size: number of transitions, after which the oldest are overwritten; ``None`` for a recording that
        grows
    :param n_envs: number of environments
    :param feature_space: space of the features, or their number if they are a float32 vector
    :param options: further arguments of :class:`~sb3_compressed.CompressedReplayBuffer`, such as
        ``compression_method``, or ``storage=<folder>`` to record into a folder, with ``resume=True`` to append
    :raises ValueError: if an argument is invalid
    """

    #: Whether observations are recorded.
    keeps_observations: ClassVar[bool] = True
    #: Whether anything is recorded.
    keeps_steps: ClassVar[bool] = True

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
        if not self.keeps_steps:
            buffer_size, options = n_envs, {}
        if n_envs < 1 or (buffer_size is not None and buffer_size < n_envs):
            raise ValueError(f"n_envs must be positive, and buffer_size at least n_envs, got {buffer_size=}, {n_envs=}")
        self.observation_space = observation_space
        self.action_space = action_space
        self.n_envs = n_envs
        self.feature_space = to_feature_space(feature_space)
        self._observations = NamedSpaces("observation", observation_space if self.keeps_observations else None)
        self._features = NamedSpaces("features", self.feature_space)
        self._grows = buffer_size is None
        if buffer_size is None:
            mode = storage_mode_of(options.get("storage_mode", "create"), {**options})
            is_resumed = mode in ("resume", "repair") and options.get("storage", "memory") != "memory"
            buffer_size = INITIAL_STEPS * n_envs
            if is_resumed:
                buffer_size = _stored_buffer_size(options["storage"], is_damaged=mode == "repair")
        space = merge_spaces(self._observations, self._features)
        cls = CompressedDictReplayBuffer if isinstance(space, spaces.Dict) else CompressedReplayBuffer
        self._buffer = cls(buffer_size, space, action_space, n_envs=n_envs, handle_timeout_termination=True, **options)
        #: A step that is written when the features of the next observation are known.
        self._waiting: Step | None = None

    @property
    def buffer(self) -> CompressedReplayBuffer | CompressedDictReplayBuffer:
        """The compressed replay buffer with the recording, always the same object."""
        return self._buffer

    def __len__(self) -> int:
        """Return the number of transitions in :attr:`buffer`, of all environments."""
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
        """Record a step of every environment: ``record(obs, action, *env.step(action))``.

        A ``VecEnv`` resets an environment as soon as its episode ends: ``new_obs`` then belongs to the next episode,
        and the last observation is ``infos[i]["terminal_observation"]``, which is recorded if it exists.
        ``"TimeLimit.truncated"`` distinguishes truncation from termination. For one environment, the leading axis may
        be omitted everywhere, and ``infos`` may be a dict.

        :param obs: observations before the step, ``(n_envs, *obs_shape)`` or a dict of such arrays
        :param action: actions ``(n_envs, *action_shape)``
        :param new_obs: observations after the step, like ``obs``
        :param reward: rewards ``(n_envs,)``
        :param done: whether each episode ended, ``(n_envs,)``
        :param infos: one info dict per environment
        :param features: features of ``obs``, ``(n_envs, *feature_shape)`` or a dict of such arrays
        :raises ValueError: if an argument does not fit its space; the recording is unchanged
        :raises TypeError: if an argument is not numeric; the recording is unchanged
        """
        step = self._validate(obs, action, new_obs, reward, done, infos, features)
        if self.feature_space is None:
            self._write(step, {})
            return
        if self._waiting is not None:
            self._write(self._waiting, {name: step.obs[name] for name in self._features.spaces})
        self._waiting = step
        if step.done.all():
            self.finish()

    def finish(self) -> None:
        """Write the last step to :attr:`buffer`, even in the middle of an episode.

        Only recordings with features delay a step. Call this before you reset environments in the middle of an episode;
        the next step then starts another trajectory.
        """
        if self._waiting is not None:
            self._write(self._waiting, {name: np.zeros_like(self._waiting.obs[name]) for name in self._features.spaces})
            self._waiting = None

    def add_episode(self, episode: Trajectory) -> None:
        """Add an episode of another recording or of any replay buffer, for example the one of a training.

        :param episode: an episode from :func:`~sb3_compressed.datasets.trajectories`
        :raises ValueError: if its spaces differ from those of :attr:`buffer`, or this recording has several
            environments
        """
        if self.n_envs != 1:
            raise ValueError(f"add_episode needs a recording of one environment, this one has n_envs={self.n_envs}")
        ours = self._buffer.observation_space, self.action_space
        theirs = episode.observation_space, episode.action_space
        if ours != theirs:
            raise ValueError(f"the episode must have the recording's spaces {ours}, got {theirs}")
        self.finish()
        for part, _ in episode.parts(CHUNK_SIZE):
            self._make_room(len(part.rewards))
            add_steps(self._buffer, part)

    def close(self) -> None:
        """Finish and release the folder, if the recording is in one. The recording remains readable."""
        self.finish()
        self._buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- writing to the buffer ---------------------------------------------------------------------------------------

    def _validate(self, obs: Any, action: Any, new_obs: Any, reward: Any, done: Any, infos: Any, features: Any) -> Step:
        """Return copies of the arguments in the shapes and dtypes of their spaces, or raise."""
        n_envs = self.n_envs
        if n_envs == 1 and isinstance(infos, Mapping):
            infos = [infos]
        validate_infos(infos, n_envs)
        infos = [*infos]
        if (features is None) != (self.feature_space is None):
            given = "no features were passed" if features is None else "features were passed"
            raise ValueError(f"{given}, but the feature_space of the recording is {self.feature_space}")
        ends = validate_per_env("done", done, n_envs, may_broadcast=False).astype(np.bool_)
        next_obs = self._observations.validate("new_obs", new_obs, n_envs)

        def last_observation(value: Any) -> Arrays:
            arrays = self._observations.validate("terminal_observation", value, 1)
            return {name: values[0] for name, values in arrays.items()}

        return Step(
            self._observations.validate("obs", obs, n_envs) | self._features.validate("features", features, n_envs),
            with_last_observations(next_obs, ends, infos, last_observation),
            validate_batch("action", action, self.action_space, n_envs),
            validate_per_env("reward", reward, n_envs).copy(),
            ends,
            [{"TimeLimit.truncated": bool(info.get("TimeLimit.truncated", False))} for info in infos],
        )

    def _write(self, step: Step, next_features: Arrays) -> None:
        """Write a step with the features of its next observations, which are zeros where an episode ended."""
        next_features = {name: values.copy() for name, values in next_features.items()}
        for values in next_features.values():
            values[step.done] = 0
        space = self._buffer.observation_space
        obs = merge_arrays(step.obs, space, self.n_envs)
        next_obs = merge_arrays({**step.next_obs, **next_features}, space, self.n_envs)
        self._make_room(1)
        self._buffer.add(obs, next_obs, step.action, step.reward, step.done, step.infos)

    def _make_room(self, n_steps: int) -> None:
        while self._grows and self._buffer.size() + n_steps > self._buffer.buffer_size:
            resize(self._buffer, 2 * self._buffer.buffer_size * self.n_envs)


class FramelessRecordBuffer(RecordBuffer):
    """Records actions, rewards and features, but no observations, which are not even validated.

    The features are the observations of :attr:`buffer`; without features, these are empty.

    The arguments are those of :class:`RecordBuffer`.
    """

    keeps_observations: ClassVar[bool] = False


class DummyRecordBuffer(FramelessRecordBuffer):
    """Accepts the same calls and records nothing: the buffer stays empty, and no folder is created.

    >>> from gymnasium import spaces
    >>> from sb3_compressed.recording import DummyRecordBuffer, RecordBuffer
    >>> is_enabled = False
    >>> recording = (RecordBuffer if is_enabled else DummyRecordBuffer)(
    ...     spaces.Discrete(16), spaces.Discrete(4)
    ... )
    >>> recording.record([0], [1], [4], [0.0], [False], [{}])
    >>> len(recording)
    0

    The arguments are those of :class:`RecordBuffer`.
    """

    keeps_steps: ClassVar[bool] = False

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def add_episode(self, episode: Trajectory) -> None:
        """Do nothing."""


def _stored_buffer_size(folder: Any, *, is_damaged: bool) -> int:
    """Return the number of transitions for which the buffer in a folder has space."""
    store = open_damaged(user_path(folder), writable=False) if is_damaged else ArrayStore.open(user_path(folder))
    try:
        require_buffer(store)
        return math.prod(store.specs["actions"].shape[:2])
    finally:
        store.close()

"""``RecordBuffer`` records the steps of environments in a compressed buffer; a variant omits observations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces

from sb3_compressed.arrays.cast import cast_values
from sb3_compressed.buffers.buffer_from_store import open_to_load
from sb3_compressed.buffers.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_compressed.buffers.resize import resize
from sb3_compressed.buffers.validation import validate_infos, validate_row
from sb3_compressed.common.spaces import space_dtype
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.datasets.trajectory import Trajectory, add_steps
from sb3_compressed.persistence.buffer_storage import StorageLocation, StorageMode
from sb3_compressed.persistence.restoring import require_buffer
from sb3_compressed.step import Step, with_last_observations

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FramelessRecordBuffer", "RecordBuffer"]

#: Steps for which a growing recording has space at first. The size doubles whenever it is full.
INITIAL_STEPS = 1024
#: Steps of an episode that are decoded at a time.
CHUNK_SIZE = 256


class RecordBuffer:
    """Records observations, actions, rewards and optional features of each step, compressed.

    :meth:`record` takes the output of ``VecEnv.step`` and adds it to a compressed replay buffer, :attr:`buffer`. Pass
    this to ``trajectories`` for the episodes, to ``export_minari`` for a dataset, or to ``save_checkpoint``.

    Features, such as latent vectors or values of a policy, belong to the observation that they were computed from. With
    features, the recorded observations are dicts with ``"observation"`` and ``"features"``; parts of Dict spaces keep
    their keys. The features of the next observation arrive with the next step, so :attr:`buffer` receives each step one
    call later; the last observation of an episode has features of zeros.

    :param observation_space: space of the observations
    :param action_space: space of the actions, which are stored unscaled
    :param buffer_size: number of transitions, after which the oldest are overwritten; ``None`` for a recording that
        grows
    :param n_envs: number of environments
    :param feature_space: space of the features, or their number if they are a float32 vector
    :param options: further arguments of :class:`~sb3_compressed.CompressedReplayBuffer`, such as
        ``compression_method``, or ``storage=<folder>`` to record into a folder, with ``storage_mode="resume"`` to
        append
    :raises ValueError: if an argument is invalid
    """

    #: Whether observations are recorded.
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
            raise ValueError(f"n_envs must be positive, and buffer_size at least n_envs, got {buffer_size=}, {n_envs=}")
        if isinstance(feature_space, int | np.integer) and feature_space > 0:
            feature_space = spaces.Box(-np.inf, np.inf, (int(feature_space),), np.float32)
        if not isinstance(feature_space, spaces.Space | None):
            raise ValueError(
                f"feature_space must be a space or a positive number of float32 features, got {feature_space!r}"
            )
        self.observation_space, self.action_space, self.n_envs = observation_space, action_space, n_envs
        self.feature_space: spaces.Space[Any] | None = feature_space
        space: spaces.Space[Any] = observation_space
        if not self.keeps_observations:
            space = spaces.Box(0, 0, (0,), np.uint8) if feature_space is None else feature_space
        elif feature_space is not None:
            observations, features = _by_name("observation", observation_space), _by_name("features", feature_space)
            if shared := sorted(observations.keys() & features.keys()):
                raise ValueError(
                    f"observations and features both have parts named {shared}; pass a Dict space with other names"
                )
            space = spaces.Dict({**observations, **features})
        self._grows = buffer_size is None
        mode = options.pop("storage_mode", "create")
        if buffer_size is None:
            buffer_size = _stored_buffer_size(options.get("storage", "memory"), mode) or INITIAL_STEPS * n_envs
        cls = CompressedDictReplayBuffer if isinstance(space, spaces.Dict) else CompressedReplayBuffer
        self._buffer = cls(
            buffer_size,
            space,
            action_space,
            n_envs=n_envs,
            handle_timeout_termination=True,
            storage_mode=mode,
            **options,
        )
        #: A step that is written when the features of the next observation are known, with arrays by name.
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
        n_envs, space = self.n_envs, self.observation_space if self.keeps_observations else None
        infos_of_envs: Any = [infos] if n_envs == 1 and isinstance(infos, Mapping) else infos
        validate_infos(infos_of_envs, n_envs)
        if (features is None) != (self.feature_space is None):
            given = "no features were passed" if features is None else "features were passed"
            raise ValueError(f"{given}, but the feature_space of the recording is {self.feature_space}")
        done = validate_row("done", done, (n_envs,), may_broadcast=False).astype(np.bool_)

        def last_observation(value: Any) -> Any:
            return tree_map(lambda array: array[0], _copy("terminal_observation", value, space, 1))

        next_obs = _copy("new_obs", new_obs, space, n_envs)
        step = Step(
            _by_name("observation", _copy("obs", obs, space, n_envs))
            | _by_name("features", _copy("features", features, self.feature_space, n_envs)),
            _by_name("observation", with_last_observations(next_obs, done, infos_of_envs, last_observation)),
            _copy("action", action, self.action_space, n_envs),
            validate_row("reward", reward, (n_envs,)).copy(),
            done,
            [{"TimeLimit.truncated": bool(info.get("TimeLimit.truncated", False))} for info in infos_of_envs],
        )
        if self.feature_space is None:
            self._write(step)
            return
        if self._waiting is not None:
            self._write(self._waiting, step.obs)
        self._waiting = step
        if done.all():
            self.finish()

    def finish(self) -> None:
        """Write the last step to :attr:`buffer`, even in the middle of an episode.

        Only recordings with features delay a step. Call this before you reset environments in the middle of an episode;
        the next step then starts another trajectory.
        """
        if self._waiting is not None:
            self._write(self._waiting)
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

    def _write(self, step: Step, following: Mapping[str, Any] | None = None) -> None:
        """Add a step to the buffer; features of the next observations are in ``following`` unless the episode ended."""
        obs: Any = step.obs
        next_obs: Any = {**step.next_obs}
        for name in _by_name("features", self.feature_space):
            next_obs[name] = np.zeros_like(obs[name])
            if following is not None:
                next_obs[name][~step.done] = following[name][~step.done]
        if not isinstance(self._buffer.observation_space, spaces.Dict):
            nothing = np.zeros((self.n_envs, 0), np.uint8)
            obs, next_obs = (next(iter(each.values()), nothing) for each in (obs, next_obs))
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


def _by_name(name: str, value: Any) -> dict[str, Any]:
    """Return the parts of a Dict space or of its values by their keys; any other space or value by one name."""
    if isinstance(value, spaces.Dict):
        return dict(value.spaces)
    return {} if value is None else value if isinstance(value, dict) else {name: value}


def _copy(argument: str, value: Any, space: spaces.Space[Any] | None, n_envs: int) -> Any:
    """Return a copy of the values of all environments, ``(n_envs, *shape)``, in the dtype of their space, or raise.

    Without a space, they are ignored: this is a dict without parts.
    """
    if space is None:
        return {}
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            got = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{argument} must be a dict with the keys {sorted(space.spaces)}, got {got}")
        return {key: _copy(f"{argument}[{key!r}]", value[key], part, n_envs) for key, part in space.spaces.items()}
    values, shape = np.asarray(value), (n_envs, *(space.shape or ()))
    if n_envs == 1 and values.shape == shape[1:]:
        values = values[np.newaxis]
    if values.shape != shape:
        raise ValueError(f"{argument} must have the shape {shape}, got {values.shape}")
    try:
        return np.array(cast_values(values, space_dtype(space)))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None


def _stored_buffer_size(storage: StorageLocation, mode: StorageMode) -> int | None:
    """Return the number of transitions for which the buffer in a folder that is resumed has space."""
    if mode not in ("resume", "repair") or storage == "memory":
        return None
    with closing(open_to_load(storage, {}, repair=mode == "repair")) as store:
        require_buffer(store)
        return math.prod(store.specs["actions"].shape[:2])

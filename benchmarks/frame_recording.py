"""Record the observations of vectorized environments to a file, and play them back as SB3 adds them to buffers."""

from __future__ import annotations

import copy
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_envs import wrap_as_sb3
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from sb3_compressed.common.spaces import space_parts
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.step import Step, with_last_observations
from sb3_compressed.storage.spaces import space_from_data, space_to_data

__all__ = [
    "Playback",
    "Policy",
    "Recording",
    "play",
    "random_policy",
    "write_recording",
]

Policy = Callable[[Any], Any]
"""Returns actions for observations."""


@dataclass(frozen=True)
class Recording:
    """A zstd-compressed file: a line of metadata, then per step the newest frames, the terminal frames and the dones.

    Frames are recorded before stacking, so stacks take no additional space.
    """

    path: Path
    n_envs: int
    n_stack: int  # frames per observation
    frame_space: spaces.Space[Any]  # recorded space of one environment
    action_space: spaces.Space[Any]

    @classmethod
    def open(cls, path: Path) -> Recording:
        """Return the recording in a file."""
        with _reader(path) as file:
            metadata = json.loads(_read_line(file))
        frame_space, action_space = space_from_data(metadata["frames"]), space_from_data(metadata["actions"])
        return cls(path, metadata["n_envs"], metadata["n_stack"], frame_space, action_space)

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space of the observations yielded by :func:`play`."""
        return wrap_as_sb3(Playback(self), self.n_stack).observation_space


def write_recording(
    path: Path,
    env: VecEnv,
    n_steps: int,
    *,
    n_stack: int = 1,
) -> Recording:
    """Record environments with random actions, and close them.

    :param path: the file, which appears when it is complete
    :param env: environments, not yet stacked or transposed
    :param n_steps: steps of all environments
    :param n_stack: frames per observation, for :func:`play`
    """
    policy = random_policy(env.action_space, env.num_envs)
    metadata = {
        "n_envs": env.num_envs,
        "n_stack": n_stack,
        "frames": space_to_data(env.observation_space),
        "actions": space_to_data(env.action_space),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        with unfinished.open("wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as file:
            file.write(json.dumps(metadata).encode() + b"\n")
            wrapped = wrap_as_sb3(Recorder(env, file), n_stack)
            obs: Any = wrapped.reset()
            for _ in range(n_steps):
                obs, *_ = wrapped.step(policy(obs))
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
        env.close()
    return Recording.open(path)


def random_policy(space: spaces.Space[Any], n_envs: int) -> Policy:
    """Return a policy that draws the same random actions each time."""
    space = copy.deepcopy(space)
    space.seed(0)
    return lambda obs: np.stack([space.sample() for _ in range(n_envs)])


class Recorder(VecEnvWrapper):
    """Environments whose frames are written to a file before they are stacked."""

    def __init__(self, env: VecEnv, file: zstandard.ZstdCompressionWriter) -> None:
        super().__init__(env)
        self._file = file

    def _write(self, frames: Any) -> None:
        for key, space in space_parts(self.observation_space).items():
            self._file.write(np.asarray(frames if key is None else frames[key], space.dtype).tobytes())

    def reset(self) -> Any:
        """Write the first frames."""
        frames = self.venv.reset()
        self._write(frames)
        return frames

    def step_wait(self) -> Any:
        """Write the next frames, the same with the terminal ones, and the dones."""
        step: Any = self.venv.step_wait()
        frames, _, dones, infos = step
        self._write(frames)
        self._write(with_last_observations(frames, dones, infos))
        self._file.write(np.asarray(dones, dtype=np.bool_).tobytes())
        return step


class Playback(VecEnv):
    """A recording as environments that ignore actions, for SB3's own wrappers to stack and transpose."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.n_envs, recording.frame_space, recording.action_space)
        self._path = recording.path
        self._file: Any = None

    def _read_frames(self) -> Any:
        parts = space_parts(self.observation_space)
        frames = {key: self._read(space.shape or (), space.dtype) for key, space in parts.items()}
        return frames if isinstance(self.observation_space, spaces.Dict) else frames[None]

    def _read(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Read an array ``(n_envs, *shape)``."""
        array = np.empty((self.num_envs, *shape), dtype=dtype)
        if array.nbytes and self._file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
            raise EOFError("end of the recording")
        return array

    def reset(self) -> Any:
        """Return the first frames."""
        self.close()
        self._file = _reader(self._path)
        _read_line(self._file)
        return self._read_frames()

    def step_async(self, actions: Any) -> None:
        """Do nothing."""

    def step_wait(self) -> Any:
        """Return the next frames, with terminal frames in the infos."""
        frames, last, dones = self._read_frames(), self._read_frames(), self._read((), np.bool_)
        infos: list[dict[str, Any]] = [
            {"terminal_observation": tree_map(itemgetter(i), last), "TimeLimit.truncated": False} if done else {}
            for i, done in enumerate(dones)
        ]
        return frames, np.zeros(self.num_envs, np.float32), dones, infos

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: D102
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: D102
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:  # noqa: D102
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: D102
        raise NotImplementedError


def play(recording: Recording) -> Iterator[Step]:
    """Yield the steps of a recording as SB3's off-policy algorithms add them: as views of channel-last memory.

    Rewards are serial numbers, which identify transitions.
    """
    n_envs = recording.n_envs
    env = wrap_as_sb3(Playback(recording), recording.n_stack)
    policy = random_policy(recording.action_space, n_envs)
    obs = env.reset()
    try:
        for serial in itertools.count(step=n_envs):  # pragma: no branch  # exact as float32 up to 2**24
            actions = policy(obs)
            try:
                new_obs, _, dones, infos = env.step(actions)
            except EOFError:
                return
            rewards = np.arange(serial, serial + n_envs, dtype=np.float32)
            yield Step(obs, with_last_observations(new_obs, dones, infos), actions, rewards, dones, infos)
            obs = copy.deepcopy(new_obs)
    finally:
        env.close()


def _reader(path: Path) -> zstandard.ZstdDecompressionReader:
    return zstandard.ZstdDecompressor().stream_reader(path.open("rb"), closefd=True)


def _read_line(file: Any) -> bytes:
    """Read the first line and nothing after it."""
    return b"".join(iter(lambda: file.read(1), b"\n"))

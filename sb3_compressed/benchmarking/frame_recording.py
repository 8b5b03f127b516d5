"""Real observations, recorded once: what a vectorised environment shows, step by step, in one file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zstandard
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecFrameStack, VecTransposeImage

from sb3_compressed.benchmarking.benchmark_envs import ShownEnv, random_actions
from sb3_compressed.benchmarking.tree_map import Observations, mapped, part
from sb3_compressed.dtypes import space_parts
from sb3_compressed.storage.spaces import space_from_data, space_to_data

__all__ = ["Player", "Recording", "Step", "as_trained_on", "check_memory", "play", "random_player", "write_recording"]

MOST_MEMORY = 0.8  # of what is free, for one buffer

Player = Callable[[Any], Any]
"""Chooses actions for observations."""


@dataclass
class Step:
    """The arguments of one ``add`` of a replay buffer."""

    obs: Observations
    next_obs: Observations
    action: NDArray[Any]
    reward: NDArray[np.float32]  # serial numbers, so that every transition can be told from all others
    done: NDArray[np.bool_]
    infos: list[dict[str, Any]]


@dataclass(frozen=True)
class Recording:
    """A zstd-compressed file: what it is of, then rows of the newest frames, those that episodes ended with, the ends.

    Frames are recorded before they are stacked, so that a recording of stacks takes no more than its newest frames.
    """

    path: Path
    n_envs: int
    n_stack: int  # frames in an observation
    frame_space: spaces.Space[Any]  # of what is recorded of one environment
    action_space: spaces.Space[Any]

    @classmethod
    def open(cls, path: Path) -> Recording:
        """Return the recording in a file."""
        with _reader(path) as file:
            about = json.loads(_line(file))
        of_frames, of_actions = space_from_data(about["frames"]), space_from_data(about["actions"])
        return cls(path, about["n_envs"], about["n_stack"], of_frames, of_actions)

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space of the observations that :func:`play` yields."""
        return as_trained_on(Playback(self), self.n_stack).observation_space


def write_recording(
    path: Path,
    env: VecEnv,
    n_steps: int,
    *,
    n_stack: int = 1,
    act: Player | None = None,
    on_step: Callable[[], object] = lambda: None,
) -> Recording:
    """Play and record, and close the environments.

    :param path: the file, which is there once it is complete
    :param env: environments, without stacking and transposing
    :param n_steps: how many steps of all of them are played
    :param n_stack: how many frames are stacked to an observation, for who plays and for who reads
    :param act: who plays; at random if left out
    :param on_step: called after each step
    """
    act = act or random_player(env)
    about = {
        **{"n_envs": env.num_envs, "n_stack": n_stack},
        **{"frames": space_to_data(env.observation_space), "actions": space_to_data(env.action_space)},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        with unfinished.open("wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as file:
            file.write(json.dumps(about).encode() + b"\n")
            played = as_trained_on(Recorder(env, file), n_stack)
            obs: Any = played.reset()
            for _ in range(n_steps):
                obs, *_ = played.step(act(obs))
                on_step()
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
        env.close()
    return Recording.open(path)


def check_memory(env: VecEnv, n_stack: int, n_steps: int) -> None:
    """Find out before the work is done whether SB3's own replay buffer of that many steps fits into memory.

    :raises ValueError: if it does not
    """
    parts = space_parts(as_trained_on(env, n_stack).observation_space).values()
    of_observation = sum(math.prod(space.shape or ()) * np.dtype(space.dtype).itemsize for space in parts)
    of_step = 2 * env.num_envs * of_observation
    free = psutil.virtual_memory().available
    if of_step * n_steps > MOST_MEMORY * free:
        most = int(MOST_MEMORY * free / of_step) * env.num_envs
        raise ValueError(
            f"SB3's own buffer, to compare with, would take {of_step * n_steps / 1e9:.1f} GB of {free / 1e9:.1f} GB: "
            f"measure no more than {most:,} transitions"
        )


def random_player(env: VecEnv) -> Player:
    """Return who plays at random, the same each time."""
    rng = np.random.default_rng(0)
    return lambda obs: random_actions(env.action_space, env.num_envs, rng)


def as_trained_on(env: VecEnv, n_stack: int) -> VecEnv:
    """Put SB3's wrappers around environments as its algorithms do: stacked, then transposed views of the stacks."""
    if n_stack > 1 and not all(isinstance(space, spaces.Box) for space in space_parts(env.observation_space).values()):
        raise ValueError(f"frames of {env.observation_space} cannot be stacked")
    stacked = VecFrameStack(env, n_stack) if n_stack > 1 else env
    images: Any = [space for space in space_parts(stacked.observation_space).values() if is_image_space(space)]
    is_transposed = all(is_image_space_channels_first(space) for space in images)
    return stacked if is_transposed else VecTransposeImage(stacked)


class Recorder(VecEnvWrapper):
    """Environments whose newest frames are written to a file on their way to what stacks them."""

    def __init__(self, env: VecEnv, file: zstandard.ZstdCompressionWriter) -> None:
        super().__init__(env)
        self._file = file

    def reset(self) -> Any:
        """Write the first frames."""
        frames: Any = self.venv.reset()
        for key, space in space_parts(self.observation_space).items():
            self._file.write(np.asarray(part(frames, key), space.dtype).tobytes())
        return frames

    def step_wait(self) -> Any:
        """Write the next frames, the frames that episodes ended with, and the ends."""
        step: Any = self.venv.step_wait()
        frames, _, dones, infos = step
        for key, space in space_parts(self.observation_space).items():
            both = np.stack([part(frames, key)] * 2).astype(space.dtype, copy=False)
            for env in np.flatnonzero(dones):  # as the environment returned it, of whatever dtype
                both[1, env] = part(infos[env]["terminal_observation"], key)
            self._file.write(both.tobytes())
        self._file.write(np.asarray(dones, dtype=np.bool_).tobytes())
        return step


class Playback(ShownEnv):
    """A recording as an environment, so that SB3's own wrappers stack and transpose it as they do in training."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.n_envs, recording.frame_space, recording.action_space)
        self._path = recording.path
        self._file: Any = None

    def _read_frames(self, *shape: int) -> Any:
        """Read frames of all environments, and ``shape`` of these."""
        space = self.observation_space
        read = {
            key: self._read(*shape, self.num_envs, *(each.shape or ()), dtype=each.dtype)
            for key, each in space_parts(space).items()
        }
        return read if isinstance(space, spaces.Dict) else read[None]

    def _read(self, *shape: int, dtype: Any) -> NDArray[Any]:
        array = np.empty(shape, dtype=dtype)
        if array.nbytes and self._file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
            raise EOFError("the recording is at its end")
        return array

    def reset(self) -> Any:
        """Return the first frames."""
        self.close()
        self._file = _reader(self._path)
        _line(self._file)
        return self._read_frames()

    def step_wait(self) -> Any:
        """Return the next frames, with the frames that episodes ended with in the infos."""
        both = self._read_frames(2)
        frames, last = mapped(itemgetter(0), both), mapped(itemgetter(1), both)
        dones = self._read(self.num_envs, dtype=np.bool_)
        infos: list[dict[str, Any]] = [
            {"terminal_observation": mapped(itemgetter(i), last), "TimeLimit.truncated": False} if done else {}
            for i, done in enumerate(dones)
        ]
        return frames, np.zeros(self.num_envs, np.float32), dones, infos

    def close(self) -> None:
        """Close the recording."""
        if self._file is not None:
            self._file.close()


def play(recording: Recording) -> Iterator[Step]:
    """Yield the steps of a recording as SB3's off-policy algorithms add them: channel-last memory, transposed views."""
    n_envs = recording.n_envs
    env = as_trained_on(Playback(recording), recording.n_stack)
    rng = np.random.default_rng(0)
    obs: Any = env.reset()
    serial = np.arange(n_envs, dtype=np.float32)
    try:
        while True:
            actions = random_actions(recording.action_space, n_envs, rng)
            try:
                step: Any = env.step(actions)
            except EOFError:
                return
            new_obs, _, dones, infos = step
            next_obs = mapped(_copy, new_obs)
            for i in np.flatnonzero(dones):
                mapped(partial(_put, i), next_obs, infos[i]["terminal_observation"])
            yield Step(obs, next_obs, actions, serial, dones, infos)
            obs = mapped(_copy, new_obs)
            serial = serial + n_envs  # exact up to 2**24
    finally:
        env.close()


def _copy(array: NDArray[Any]) -> NDArray[Any]:
    return array.copy(order="K")


def _put(index: Any, array: NDArray[Any], value: Any) -> None:
    array[index] = value


def _reader(path: Path) -> zstandard.ZstdDecompressionReader:
    return zstandard.ZstdDecompressor().stream_reader(path.open("rb"), closefd=True)


def _line(file: Any) -> bytes:
    """Read the first line, and nothing after it."""
    return b"".join(iter(lambda: file.read(1), b"\n"))

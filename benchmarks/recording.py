"""Real observations, recorded once and cached: what a vectorised environment shows, step by step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from gymnasium import spaces
from numpy.typing import NDArray
from sources import CACHE, Source, as_trained_on, random_actions
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

N_ACTIONS = 18  # of a game: its recording says nothing of them, and buffers hold all of the console's


@dataclass
class Step:
    """The arguments of one ``add`` of a replay buffer."""

    obs: NDArray[Any]
    next_obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]  # serial numbers, so that every transition can be told from all others
    done: NDArray[np.bool_]
    infos: list[dict[str, Any]]


@dataclass(frozen=True)
class Recording:
    """A file of zstd-compressed rows: the newest frames, the frames episodes ended with, and the ends."""

    path: Path
    source: Source
    n_envs: int

    @property
    def frame_space(self) -> spaces.Box:
        """The space of what is recorded of one environment."""
        if self.source.is_game:
            return spaces.Box(0, 255, (84, 84, 1), np.uint8)
        about = json.loads(self._about.read_text())
        low, high = (0, 255) if about["dtype"] == "uint8" else (-np.inf, np.inf)
        return spaces.Box(low, high, tuple(about["shape"]), about["dtype"])

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The space of actions."""
        if self.source.is_game:
            return spaces.Discrete(N_ACTIONS)
        actions = json.loads(self._about.read_text())["actions"]
        return spaces.Discrete(actions) if isinstance(actions, int) else spaces.Box(-1, 1, tuple(actions))

    @property
    def observation_space(self) -> spaces.Box:
        """The space of the observations that :func:`play` yields."""
        *size, channels = self.frame_space.shape
        low, high = self.frame_space.low.min(), self.frame_space.high.max()
        shape = (channels * self.source.n_stack, *size) if size else (channels,)
        return spaces.Box(low, high, shape, self.frame_space.dtype)

    @property
    def _about(self) -> Path:
        return self.path.with_suffix(".json")

    def write(self, n_steps: int) -> None:
        """Play and record."""
        env = self.source.make(self.n_envs)
        space, actions = env.observation_space, env.action_space
        act = self._player(actions)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.source.is_game:
            shown = int(actions.n) if isinstance(actions, spaces.Discrete) else list(actions.shape or ())
            self._about.write_text(json.dumps({"shape": space.shape, "dtype": str(space.dtype), "actions": shown}))
        partial = self.path.with_suffix(f".{os.getpid()}")
        with partial.open("wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as file:
            played = as_trained_on(Recorder(env, file), self.source)
            obs: Any = played.reset()
            for _ in range(n_steps):
                obs, *_ = played.step(act(obs))
        played.close()
        partial.rename(self.path)

    def _player(self, actions: spaces.Space[Any]) -> Callable[[Any], Any]:
        """Return what chooses actions for observations."""
        if self.source.training_steps:
            from policies import player

            return player(self.source)
        rng = np.random.default_rng(0)
        return lambda obs: random_actions(actions, self.n_envs, rng)


def record(name: str, n_envs: int, n_steps: int) -> Recording:
    """Return a recording of a source with at least that many steps, made if there is none yet."""
    beginning = f"{name.replace(':', '-')}-{n_envs}envs-"
    for path in sorted(CACHE.glob(f"{beginning}*steps.zst")):
        if int(path.stem.removeprefix(beginning).removesuffix("steps")) >= n_steps:
            return Recording(path, Source(name), n_envs)
    recording = Recording(CACHE / f"{beginning}{n_steps}steps.zst", Source(name), n_envs)
    recording.write(n_steps)
    return recording


class Recorder(VecEnvWrapper):
    """Environments whose newest frames are written to a file on their way to what stacks them."""

    def __init__(self, env: VecEnv, file: zstandard.ZstdCompressionWriter) -> None:
        super().__init__(env)
        self._file = file

    def reset(self) -> Any:
        """Write the first frames."""
        frames: Any = self.venv.reset()
        self._file.write(np.asarray(frames).tobytes())
        return frames

    def step_wait(self) -> Any:
        """Write the next frames, the frames that episodes ended with, and the ends."""
        step: Any = self.venv.step_wait()
        frames, _, dones, infos = step
        last = [infos[i]["terminal_observation"] if done else frames[i] for i, done in enumerate(dones)]
        self._file.write(np.stack([frames, np.stack(last)]).tobytes())
        self._file.write(np.asarray(dones, dtype=np.bool_).tobytes())
        return step


class Playback(VecEnv):
    """A recording as an environment, so that SB3's own wrappers stack and transpose it as they do in training."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.n_envs, recording.frame_space, recording.action_space)
        self._file = zstandard.ZstdDecompressor().stream_reader(recording.path.open("rb"), closefd=True)
        self._shape = (recording.n_envs, *recording.frame_space.shape)
        self._dtype = recording.frame_space.dtype

    def _read(self, *shape: int, dtype: Any) -> NDArray[Any]:
        array = np.empty(shape, dtype=dtype)
        if self._file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
            raise EOFError("the recording is at its end")
        return array

    def reset(self) -> NDArray[Any]:
        """Return the first frames."""
        return self._read(*self._shape, dtype=self._dtype)

    def step_async(self, actions: Any) -> None:
        """Do nothing: what happens next is recorded."""

    def step_wait(self) -> Any:
        """Return the next frames, with the frames that episodes ended with in the infos."""
        frames, last = self._read(2, *self._shape, dtype=self._dtype)
        dones = self._read(self.num_envs, dtype=np.bool_)
        infos: list[dict[str, Any]] = [
            {"terminal_observation": last[i], "TimeLimit.truncated": False} if done else {}
            for i, done in enumerate(dones)
        ]
        return frames, np.zeros(self.num_envs, np.float32), dones, infos

    def close(self) -> None:
        """Close the recording."""
        self._file.close()  # type: ignore[no-untyped-call]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: D102
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: D102
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:  # noqa: D102
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: D102
        return [False] * self.num_envs


def play(recording: Recording) -> Iterator[Step]:
    """Yield the steps of a recording as SB3's off-policy algorithms add them: channel-last memory, transposed views."""
    n_envs = recording.n_envs
    env = as_trained_on(Playback(recording), recording.source)
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
            next_obs = new_obs.copy(order="K")
            for i in np.flatnonzero(dones):
                next_obs[i] = infos[i]["terminal_observation"]
            yield Step(obs, next_obs, actions, serial, dones, infos)
            obs = new_obs.copy(order="K")
            serial = serial + n_envs  # exact up to 2**24
    finally:
        env.close()

"""Real game frames, recorded once and cached: what a vectorised Atari environment shows, step by step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import zstandard
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

N_STACK = 4
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sb3-compressed"


@dataclass
class Step:
    """The arguments of one ``add`` of a replay buffer."""

    obs: NDArray[np.uint8]
    next_obs: NDArray[np.uint8]
    action: NDArray[np.int64]
    reward: NDArray[np.float32]
    done: NDArray[np.bool_]
    infos: list[dict[str, Any]]


def record(game: str, n_envs: int, n_steps: int) -> Path:
    """Play a game at random with SB3's preprocessing and keep its single frames.

    :return: a file of zstd-compressed rows, each the newest frames, the frames episodes ended with, and the ends
    """
    path = CACHE / f"{game}-{n_envs}envs-{n_steps}steps.zst"
    if path.exists():
        return path
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = make_atari_env(f"{game}NoFrameskip-v4", n_envs=n_envs, seed=0)
    rng = np.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    with partial.open("wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as file:
        file.write(np.asarray(env.reset()).tobytes())
        for _ in range(n_steps):
            frames: Any
            frames, _, dones, infos = env.step(rng.integers(env.action_space.n, size=n_envs))  # type: ignore[attr-defined]
            last = [infos[i]["terminal_observation"] if dones[i] else frames[i] for i in range(n_envs)]
            file.write(np.stack([frames, np.stack(last)]).tobytes())
            file.write(np.asarray(dones, dtype=np.bool_).tobytes())
    env.close()
    partial.rename(path)
    return path


class Playback(VecEnv):
    """A recording as an environment, so that SB3's own wrappers stack and transpose it as they do in training."""

    def __init__(self, path: Path, n_envs: int) -> None:
        box = spaces.Box(0, 255, (84, 84, 1), np.uint8)
        super().__init__(n_envs, box, spaces.Discrete(18))
        self._file = zstandard.ZstdDecompressor().stream_reader(path.open("rb"))
        self._shape = (n_envs, 84, 84, 1)

    def _read(self, *shape: int, dtype: Any = np.uint8) -> NDArray[Any]:
        array = np.empty(shape, dtype=dtype)
        if self._file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
            raise EOFError("the recording is at its end")
        return array

    def reset(self) -> NDArray[Any]:
        """Return the first frames."""
        return self._read(*self._shape)

    def step_async(self, actions: Any) -> None:
        """Do nothing: what happens next is recorded."""

    def step_wait(self) -> Any:
        """Return the next frames, with the frames that episodes ended with in the infos."""
        frames, last = self._read(2, *self._shape)
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


def play(path: Path, n_envs: int) -> Iterator[Step]:
    """Yield the steps of a recording as SB3's off-policy algorithms add them: channel-last memory, transposed views."""
    env = VecTransposeImage(VecFrameStack(Playback(path, n_envs), N_STACK))
    rng = np.random.default_rng(0)
    obs: Any = env.reset()
    while True:
        actions = rng.integers(18, size=n_envs)
        try:
            step: Any = env.step(actions)
        except EOFError:
            return
        new_obs, rewards, dones, infos = step
        next_obs = new_obs.copy(order="K")
        for i in np.flatnonzero(dones):
            next_obs[i] = infos[i]["terminal_observation"]
        yield Step(obs, next_obs, actions, rewards, dones, infos)
        obs = new_obs.copy(order="K")

"""Environments to record: those of users by their id, and recorded frames in the place of one."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_compressed.dtypes import space_parts

__all__ = ["FramesEnv", "ShownEnv", "is_atari", "load_frames", "make_env", "random_actions", "register_atari"]

ARRAYS = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary
INSTALL_ATARI = "pip install 'sb3-compressed[atari]'"


def register_atari() -> None:
    """Let gymnasium know the ALE games, if they are installed."""
    if find_spec("ale_py"):
        import ale_py

        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for every environment


def is_atari(env_id: str) -> bool:
    """Return whether an environment is an ALE game that shows its screen.

    :raises ValueError: if there is no such environment; the message lists names near it
    """
    spec = _spec(env_id)
    return "ale_py" in str(spec.entry_point) and spec.kwargs.get("obs_type", "rgb") != "ram"


def make_env(env_id: str, n_envs: int, *, atari: bool) -> VecEnv:
    """Return environments as SB3's users make them, with seed 0, without stacking and transposing.

    :param atari: whether they get the preprocessing of ``make_atari_env``
    :raises ValueError: if there is no such environment, or SB3's buffers do not take its observations
    :raises ImportError: if what it needs is not installed
    """
    _spec(env_id)
    if atari and not find_spec("cv2"):
        raise ImportError(f"the preprocessing of Atari games needs OpenCV: {INSTALL_ATARI}")
    try:
        env = (make_atari_env if atari else make_vec_env)(env_id, n_envs=n_envs, seed=0)
    except gym.error.DependencyNotInstalled as error:  # names the command itself
        raise ImportError(f"{env_id}: {error}") from error
    except NotImplementedError as error:  # of spaces in spaces
        raise ValueError(f"{env_id} is nothing for SB3's buffers: {error}") from error
    except (AttributeError, AssertionError) as error:
        if not atari:
            raise
        raise ValueError(f"{env_id} cannot be wrapped as an Atari game: {error}") from error
    if not all(isinstance(space, ARRAYS) for space in space_parts(env.observation_space).values()):
        env.close()
        raise ValueError(
            f"{env_id} shows {env.observation_space}, which SB3's buffers do not take: observations are arrays, or a "
            "Dict of arrays"
        )
    return env


def _spec(env_id: str) -> Any:
    register_atari()
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            import_module(module)
        return gym.spec(name)
    except ImportError as error:
        raise ValueError(f"{env_id} cannot be found: {error}") from error
    except gym.error.Error as error:
        known = {name.lower(): name for name in gym.registry}
        near = difflib.get_close_matches(env_id.lower(), known, n=5, cutoff=0.5)
        advice = f"did you mean {' or '.join(known[name] for name in near)}?" if near else str(error)
        missing = "" if find_spec("ale_py") else f" For ALE games: {INSTALL_ATARI}."
        raise ValueError(
            f"there is no environment {env_id!r}; {advice}{missing} One of your own is found as 'module:id'"
        ) from error


def random_actions(space: spaces.Space[Any], n_envs: int, rng: np.random.Generator) -> Any:
    """Return an action of each environment, drawn from a generator of our own."""
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=n_envs) + space.start
    if isinstance(space, spaces.Box) and space.is_bounded():
        return rng.uniform(space.low, space.high, (n_envs, *space.shape)).astype(space.dtype)
    space.seed(int(rng.integers(2**31)))
    return np.stack([space.sample() for _ in range(n_envs)])


class ShownEnv(VecEnv):
    """Environments that show what is known before, whatever is done in them."""

    @abstractmethod
    def reset(self) -> NDArray[Any]:
        """Return the first frames."""

    def step_async(self, actions: Any) -> None:
        """Do nothing: what happens next is known."""

    @abstractmethod
    def step_wait(self) -> Any:
        """Return the next frames."""

    def close(self) -> None:
        """Do nothing."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: D102
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: D102
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:  # noqa: D102
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: D102
        return [False] * self.num_envs


class FramesEnv(ShownEnv):
    """Recorded observations ``(steps, n_envs, *obs_shape)`` as an environment of one endless episode."""

    def __init__(self, frames: NDArray[Any]) -> None:
        low, high = (0, 255) if frames.dtype == np.uint8 else (-np.inf, np.inf)
        shape = frames.shape[2:]
        kind: Any = frames.dtype.type
        if frames.dtype.kind in "iub" and frames.dtype != np.uint8:
            low, high = frames.min(), frames.max()
        super().__init__(frames.shape[1], spaces.Box(low, high, shape, kind), spaces.Discrete(2))
        self._frames = frames
        self._now = 0

    def reset(self) -> NDArray[Any]:
        """Return the first frames."""
        self._now = 0
        first: NDArray[Any] = self._frames[0]
        return first

    def step_wait(self) -> Any:
        """Return the next frames."""
        self._now += 1
        dones = np.zeros(self.num_envs, np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in dones]
        return self._frames[self._now], np.zeros(self.num_envs, np.float32), dones, infos


def load_frames(path: Path, n_envs: int | None = None) -> NDArray[Any]:
    """Return observations of a file of NumPy as ``(steps, n_envs, *obs_shape)``; nothing is unpickled.

    :param path: ``.npy``, or ``.npz`` with one array or one named ``observations``; of shape ``(steps, *obs_shape)``
    :param n_envs: how many environments are side by side in it, ``(steps, n_envs, *obs_shape)``
    :raises ValueError: if it is something else
    """
    with path.open("rb") as file:  # which NumPy leaves open where it raises
        try:
            loaded: Any = np.load(file, allow_pickle=False)
        except (EOFError, ValueError, BadZipFile) as error:  # NumPy advises to unpickle what it does not know
            raise ValueError(f"{path} is no file of NumPy that holds numbers") from error
        if isinstance(loaded, np.lib.npyio.NpzFile):
            names = loaded.files
            if len(names) != 1 and "observations" not in names:
                raise ValueError(f"{path} holds the arrays {', '.join(names)}; name one of them 'observations'")
            loaded = loaded["observations" if len(names) > 1 else names[0]]
    frames: NDArray[Any] = loaded[:, np.newaxis] if n_envs is None and loaded.ndim else loaded
    if frames.ndim < 3 or frames.shape[1] != (n_envs or 1):
        expected = "(steps, *obs_shape)" if n_envs is None else f"(steps, {n_envs}, *obs_shape)"
        raise ValueError(f"{path} must hold an array {expected}, it holds one of shape {loaded.shape}")
    if frames.dtype.kind not in "biuf":
        raise ValueError(f"{path} must hold numbers, it holds {frames.dtype}")
    return frames

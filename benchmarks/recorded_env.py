"""Environments that replay recorded frames, and a network to match: a training that is as fast as one on a GPU.

Neither the environment nor the network takes much time then, so that of the buffer dominates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from frame_recording import Playback, Recording
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_envs import wrap_as_sb3
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv

__all__ = ["MAX_NBYTES", "TINY_NETWORK", "SubsampledPixels", "make_recorded", "n_recorded_steps"]

#: Of all frames in memory. A longer training repeats them.
MAX_NBYTES = 500_000_000
STRIDE = 8
DISCRETE, CONTINUOUS = spaces.Discrete(4), spaces.Box(-1, 1, (3,), np.float32)


class RecordedEnv(Playback):
    """A recording in memory as environments without an end, which ignore actions and have random rewards.

    :param recording: its first ``n_steps`` steps are loaded, as large as one copy of their frames
    :param action_space: the space of the actions
    """

    def __init__(self, recording: Recording, n_steps: int, action_space: spaces.Space[Any]) -> None:
        super().__init__(recording)
        self.action_space = action_space
        shape, dtype = recording.frame_space.shape or (), recording.frame_space.dtype
        self._frames: NDArray[Any] = np.empty((n_steps + 1, self.num_envs, *shape), dtype)
        self._dones = np.zeros((n_steps, self.num_envs), np.bool_)
        self._last: dict[int, NDArray[Any]] = {}  # terminal frames, by the step
        self._frames[0] = super().reset()
        for step in range(n_steps):
            self._frames[step + 1], last, self._dones[step] = (
                self._read_frames(),
                self._read_frames(),
                self._read_dones(),
            )
            if self._dones[step].any():
                self._last[step] = last
        self.close()
        rewards = np.random.default_rng(0).integers(-1, 2, (n_steps, self.num_envs))
        self._rewards = rewards.astype(np.float32)
        self._step = 0

    def _read_dones(self) -> NDArray[np.bool_]:
        return self._read((), np.bool_)

    def reset(self) -> Any:
        """Return the first frames."""
        self._step = 0
        return self._frames[0].copy()

    def step_wait(self) -> Any:
        """Return copies of the next frames, as ``DummyVecEnv`` does; after the last ones, episodes end."""
        step, is_at_end = self._step, self._step + 1 == len(self._dones)
        self._step = 0 if is_at_end else step + 1
        dones = self._dones[step] | is_at_end
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if dones.any():
            last = self._last.get(step, self._frames[step + 1])
            for env in np.flatnonzero(dones):
                infos[env] = {"terminal_observation": last[env], "TimeLimit.truncated": False}
        return self._frames[self._step].copy(), self._rewards[step], dones, infos


class SubsampledPixels(BaseFeaturesExtractor):
    """Every eighth pixel in both directions, without weights."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        channels, height, width = observation_space.shape or ()
        super().__init__(observation_space, channels * -(-height // STRIDE) * -(-width // STRIDE))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """Return features of channel-first images, which are not normalized."""
        return observations[..., ::STRIDE, ::STRIDE].flatten(1) / 255


#: Arguments of any policy of SB3.
TINY_NETWORK: dict[str, Any] = {
    "features_extractor_class": SubsampledPixels,
    "normalize_images": False,
    "net_arch": [32],
}


def n_recorded_steps(space: spaces.Space[Any], n_envs: int, n_steps: int) -> int:
    """Return how many steps to record for a training of ``n_steps`` steps of all environments.

    :param space: space of the recorded frames of one environment
    """
    step_nbytes = n_envs * int(np.prod(space.shape or ())) * np.dtype(space.dtype).itemsize
    return max(1, min(n_steps, MAX_NBYTES // step_nbytes))


def make_recorded(recording: Recording, n_steps: int, *, is_continuous: bool) -> VecEnv:
    """Return environments with stacked and transposed images, for a training of ``n_steps`` steps of all of them.

    :param is_continuous: whether actions are vectors, otherwise integers
    """
    n_loaded = n_recorded_steps(recording.frame_space, recording.n_envs, n_steps)
    env = RecordedEnv(recording, n_loaded, CONTINUOUS if is_continuous else DISCRETE)
    return wrap_as_sb3(env, recording.n_stack)

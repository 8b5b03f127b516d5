"""cpprb with both of its memory features, as an experienced user would configure it.

``stack_compress`` stores each frame of stacked observations once, and ``next_of`` takes next observations from the
following observations, so there is about one uncompressed frame per transition, in one array. Both require sequential
transitions of one episode, frames on the last axis and a call at episode ends. So every environment has its own buffer,
as the documentation of cpprb recommends, and batches are drawn from all of them. Sampled observations have their frames
last and are converted to tensors of SB3's layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from cpprb import ReplayBuffer
from frame_recording import Recording

from adapters.sb3_adapters import Batch, ReplayAdapter
from sb3_compressed.step import Step


class CpprbAdapter(ReplayAdapter):
    """One buffer per environment."""

    def __init__(self, recording: Recording, rows: int) -> None:
        space = recording.observation_space
        self._is_stacked = recording.n_stack > 1
        self._rng = np.random.default_rng()
        shape = space.shape or ()
        if self._is_stacked:
            channels, *rest = shape
            shape = (*rest, channels)
        actions = {"shape": recording.action_space.shape or 1, "dtype": recording.action_space.dtype}
        fields = {
            "obs": {"shape": shape, "dtype": space.dtype},
            "act": actions,
            "rew": {"dtype": np.float32},
            "done": {"dtype": np.float32},
        }
        memory = {"next_of": "obs", **({"stack_compress": "obs"} if self._is_stacked else {})}
        self._buffers = [ReplayBuffer(rows, fields, **memory) for _ in range(recording.n_envs)]

    def _frames_last(self, obs: Any) -> Any:
        return np.moveaxis(obs, 0, -1) if self._is_stacked else obs

    def add(self, step: Step) -> None:  # noqa: D102
        for i, buffer in enumerate(self._buffers):
            obs, next_obs = self._frames_last(step.obs[i]), self._frames_last(step.next_obs[i])
            buffer.add(obs=obs, act=step.action[i], rew=step.reward[i], next_obs=next_obs, done=step.done[i])
            if step.done[i]:
                buffer.on_episode_end()

    def sample(self, batch_size: int) -> Any:  # noqa: D102
        sizes = self._rng.multinomial(batch_size, [1 / len(self._buffers)] * len(self._buffers))
        parts = [buffer.sample(size) for buffer, size in zip(self._buffers, sizes) if size]
        batch = {key: th.as_tensor(np.concatenate([part[key] for part in parts])) for key in parts[0]}
        if self._is_stacked:
            batch.update({key: batch[key].permute(0, 3, 1, 2).contiguous() for key in ("obs", "next_obs")})
        return batch

    def read(self, batch: Any) -> Batch:  # noqa: D102
        return Batch(batch["obs"].numpy(), batch["next_obs"].numpy(), batch["rew"].numpy().ravel())


def make_replay(method: str, recording: Recording, rows: int) -> CpprbAdapter:
    """Return the adapter."""
    return CpprbAdapter(recording, rows)

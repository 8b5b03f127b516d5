"""What buffers store of a fixed run, as digests: ``python stored_digests.py`` prints them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch as th
from gathering import loaded_slots
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed import CompressedReplayBuffer, CompressedRolloutBuffer

N_ENVS, N_STEPS, N_ROWS = 2, 2_400, 2_000
IMAGES = spaces.Box(0, 255, (3, 24, 24), np.uint8)
STACKS = spaces.Box(0, 255, (4, 32, 32), np.uint8)


def scenes(channels: int, side: int) -> Iterator[NDArray[np.uint8]]:
    """Yield frames ``(n_envs, side, side, channels)`` of a few scenes, and of noise between them."""
    rng = np.random.default_rng(0)
    for number in range(N_STEPS):
        if number % 600 == 0:
            background = np.repeat(rng.integers(0, 256, (side, side // 4, channels), np.uint8), 4, axis=1)
        frames = np.stack([background] * N_ENVS)
        for frame in frames:
            row, column = rng.integers(0, side - 6, 2)
            frame[row : row + 6, column : column + 6] = rng.integers(0, 256, channels)
        yield rng.integers(0, 256, frames.shape, np.uint8) if number % 600 > 550 else frames


def observations(space: spaces.Box) -> Iterator[NDArray[np.uint8]]:
    """Yield observations of all environments in channel-last memory, as ``VecTransposeImage`` returns them."""
    if space is IMAGES:
        for frames in scenes(3, 24):
            yield frames.transpose(0, 3, 1, 2)
        return
    stack = np.zeros((N_ENVS, 32, 32, 4), np.uint8)
    for frames in scenes(1, 32):
        stack = np.concatenate([stack[..., 1:], frames], axis=-1)
        yield stack.transpose(0, 3, 1, 2)


def replay_digest(space: spaces.Box, *, is_disturbed: bool, **options: Any) -> str:
    """Return the digest of what a replay buffer stores.

    :param is_disturbed: whether there are pauses, batches and statistics between some steps
    """
    buffer = CompressedReplayBuffer(N_ROWS * N_ENVS, space, spaces.Discrete(2), "cpu", N_ENVS, **options)
    run = observations(space)
    obs, nothing = next(run), np.zeros(N_ENVS)
    for number, next_obs in enumerate(run):
        buffer.add(obs, next_obs, nothing, nothing, nothing, [{}] * N_ENVS)
        obs = next_obs
        if is_disturbed and number % 16 == 3:
            buffer.sample(300)
        if is_disturbed and number % 200 == 30:
            time.sleep(0.003)  # so that whatever depends on time has it
            repr(buffer)
    return digest_of(buffer.observations, buffer.next_observations)


def rollout_digest(space: spaces.Box, *, is_disturbed: bool, **options: Any) -> str:
    """Return the digest of what a rollout buffer stores."""
    buffer = CompressedRolloutBuffer(256, space, spaces.Discrete(2), "cpu", n_envs=N_ENVS, **options)
    nothing = np.zeros(N_ENVS)
    for number, obs in zip(range(256), observations(space), strict=False):
        buffer.add(obs, nothing, nothing, nothing, th.zeros(N_ENVS), th.zeros(N_ENVS))
        if is_disturbed and number % 100 == 30:
            time.sleep(0.003)
    return digest_of(buffer.observations)


def digest_of(*arrays: Any) -> str:
    """Return a digest of all payloads, of the codecs that they refer to, and of how slots share them."""
    found, numbers = hashlib.sha256(), dict[int, int]()
    for part in (part for slots in loaded_slots(*arrays) for slot in slots.ravel() for part in parts(slot)):
        is_new = id(part) not in numbers
        found.update(b"%d" % numbers.setdefault(id(part), len(numbers)))
        if is_new:
            found.update(part if isinstance(part, bytes) else json.dumps(part.get_config()).encode())
    return found.hexdigest()


def parts(slot: Any) -> tuple[Any, ...]:
    """Return payloads and handles of codecs in a slot."""
    return () if slot is None else slot if isinstance(slot, tuple) else (slot,)


def digests(*, is_disturbed: bool = False, **options: Any) -> dict[str, str]:
    """Return the digests of all kinds of buffers."""
    found = {}
    for name, space in (("images", IMAGES), ("stacks", STACKS)):
        found[f"replay, {name}"] = replay_digest(space, is_disturbed=is_disturbed, **options)
        found[f"rollout, {name}"] = rollout_digest(space, is_disturbed=is_disturbed, **options)
    return found


if __name__ == "__main__":
    print(json.dumps(digests()))

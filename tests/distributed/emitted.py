"""What environments emit in these tests: each transition is determined by its number, so that any can be verified.

The number of a transition is its action and its reward. Kinds are observation spaces as SB3 delivers them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from support import Transition

#: As in Atari games: a space's bounds alone are more than Ray sends with a call.
SIZE = 84
STACK = spaces.Box(0, 255, (4, SIZE, SIZE), np.uint8)
#: Numbers of transitions, which float32 represents exactly.
NUMBERS = spaces.Discrete(1_000_000)
SPACES: dict[str, spaces.Space[Any]] = {
    "images": STACK,
    "transposed": STACK,  # channel-first views of channel-last memory, as VecTransposeImage delivers them
    "channel-last": spaces.Box(0, 255, (SIZE, SIZE, 4), np.uint8),
    "rgb": spaces.Box(0, 255, (6, SIZE, SIZE), np.uint8),  # two frames
    "floats": spaces.Box(0, 1, (2, SIZE, SIZE), np.float32),
    "vector": spaces.Box(-np.inf, np.inf, (9,), np.float32),
    "small": spaces.Box(-1, 1, (3,), np.float64),
    "number": NUMBERS,
    "dict": spaces.Dict(
        {
            "image": STACK,
            "map": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),
            "vector": spaces.Box(-np.inf, np.inf, (9,), np.float64),
            "level": spaces.Discrete(1000),
        }
    ),
}
EPISODE = 37  # steps
PICTURES = np.kron(np.random.default_rng(0).integers(0, 4, (257, SIZE // 4, SIZE // 4)), np.ones((4, 4))).astype(
    np.uint8
)


def frames(first: int, n: int) -> NDArray[np.uint8]:
    """Return consecutive frames ``(n, SIZE, SIZE)``, of which each differs from those before."""
    shown = PICTURES[np.arange(first, first + n) % len(PICTURES)] * 60
    for frame, number in zip(shown, range(first, first + n), strict=True):
        frame.flat[number % frame.size] = number * 7 % 251
    return shown


def observation(kind: str, number: int, env: int = 0) -> Any:
    """Return the observation before a transition."""
    number += 10_000 * env
    if kind == "dict":
        return {
            "image": observation("images", number),
            "map": np.repeat(np.moveaxis(frames(number // 8, 1), 0, -1), 3, axis=-1),
            "vector": observation("vector", number).astype(np.float64),
            "level": np.array(number % 1000),
        }
    if kind == "channel-last":
        return np.moveaxis(frames(number, 4), 0, -1)
    if kind == "rgb":
        return np.repeat(frames(number, 2), 3, axis=0) + np.array([0, 1, 2] * 2, np.uint8)[:, np.newaxis, np.newaxis]
    if kind == "floats":
        return frames(number, 2).astype(np.float32) / 255
    if kind == "vector":
        return np.sin(np.arange(9) * number).astype(np.float32)
    if kind == "small":
        return np.cos(np.arange(3) * number)
    if kind == "number":
        return np.array(number)
    return frames(number, 4)


def observations(kind: str, number: int, n_envs: int) -> Any:
    """Return the observations before the transitions of that number in all environments."""
    each = [observation(kind, number, env) for env in range(n_envs)]
    if kind == "dict":
        return {key: np.stack([one[key] for one in each]) for key in each[0]}
    if kind == "transposed":
        return np.ascontiguousarray(np.stack(each).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return np.stack(each)


def transition(kind: str, number: int, n_envs: int = 1, *, action: int | None = None) -> Transition:
    """Return the arguments of one ``add``.

    :param action: the action and reward of the first environment, ``number`` if it is ``None``; further ones follow it
    """
    first = number if action is None else action
    done = np.array([(number + env) % EPISODE == EPISODE - 1 for env in range(n_envs)])
    infos = [{"TimeLimit.truncated": bool(number % 2)} if each else {} for each in done]
    actions = np.arange(first, first + n_envs)
    return Transition(
        observations(kind, number, n_envs), observations(kind, number + 1, n_envs), actions.reshape(-1, 1),
        actions.astype(np.float32), done, infos,
    )  # fmt: skip


def add_to(buffer: Any, kind: str, numbers: Iterable[int], n_envs: int = 1) -> None:
    """Add transitions to a buffer or a writer."""
    for number in numbers:
        transition(kind, number, n_envs).add_to(buffer)


def sb3_buffer(kind: str, n_rows: int, n_envs: int, **options: Any) -> ReplayBuffer:
    """Return SB3's own buffer."""
    cls: Any = DictReplayBuffer if kind == "dict" else ReplayBuffer
    buffer: ReplayBuffer = cls(n_rows * n_envs, SPACES[kind], NUMBERS, device="cpu", n_envs=n_envs, **options)
    return buffer

"""An environment whose transitions can be verified: each follows from its identity and its actions.

A frame states which environment has emitted it (its *source*: one environment of one process), the episode, the step,
and the action before it; its other pixels, the reward and the end of the episode follow from these. Observations are
stacks of the last four frames.
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from distributed.ledger import new_record

SIZE, N_STACK, N_ACTIONS = 84, 4, 5
SPACE = spaces.Box(0, 255, (N_STACK, SIZE, SIZE), np.uint8)
ACTIONS = spaces.Discrete(N_ACTIONS)
#: What the first row of a frame begins with: source, episode, step, the action before.
HEADER = struct.Struct("<QIIB")
FIRST = 255  # the action before the first frame of an episode


class Identity(NamedTuple):
    """Which frame it is.

    :param action: the action that led to it, ``FIRST`` for the first one of an episode
    """

    source: int
    episode: int
    step: int
    action: int


class EpisodeEnd(NamedTuple):
    """How an episode ends."""

    length: int
    is_truncated: bool


def episode_end(source: int, episode: int) -> EpisodeEnd:
    """Return how an episode ends."""
    number = crc32(HEADER.pack(source, episode, 0, 1))
    return EpisodeEnd(5 + number % 40, bool(number >> 16 & 1))


def reward(source: int, episode: int, step: int, action: int) -> float:
    """Return the reward of a step: a small integer."""
    return float(crc32(HEADER.pack(source, episode, step, action)) % 100)


@lru_cache(256)
def _background(source: int, episode: int) -> NDArray[np.uint8]:
    pattern = np.random.default_rng((source, episode)).integers(0, 256, (SIZE, SIZE // 4), np.uint8)
    return np.repeat(pattern, 4, axis=1)


def frame(identity: Identity) -> NDArray[np.uint8]:
    """Return a frame, ``(SIZE, SIZE)``."""
    picture = _background(identity.source, identity.episode).copy()
    header = HEADER.pack(*identity)
    picture[2 + identity.step % (SIZE - 2)] = crc32(header) % 251
    picture[0, : HEADER.size] = np.frombuffer(header, np.uint8)
    return picture


def identify(picture: NDArray[np.uint8]) -> Identity:
    """Return the identity of a frame.

    :raises AssertionError: if it differs from the frame that has that identity
    """
    identity = Identity(*HEADER.unpack(picture[0, : HEADER.size].tobytes()))
    assert np.array_equal(picture, frame(identity)), f"{identity} was emitted otherwise"
    return identity


def identify_stack(observation: NDArray[np.uint8]) -> list[Identity]:
    """Return the identities of the frames of an observation.

    :raises AssertionError: if these frames were not emitted together
    """
    identities = [identify(picture) for picture in observation]
    newest = identities[-1]
    for age, each in enumerate(reversed(identities)):
        assert each[:3] == (newest.source, newest.episode, max(newest.step - age, 0)), (age, each, newest)
        assert (each.action == FIRST) == (each.step == 0)
    return identities


def check_transition(
    observation: NDArray[np.uint8], action: int, summed_reward: float, next_observation: NDArray[np.uint8], done: bool,
    *, n_steps: int = 1, gamma: float = 1.0,
) -> Identity:  # fmt: skip
    """Compare a sampled transition with what the environment has emitted, and return its identity.

    :param done: whether the episode has terminated
    :param n_steps: the most steps that its return has; fewer only where an episode or the known rows end
    :param gamma: discount factor of the return
    :raises AssertionError: if it was not emitted
    """
    first = identify_stack(observation)[-1]
    stack = identify_stack(next_observation)
    last = stack[-1]
    length, is_truncated = episode_end(first.source, first.episode)
    n = last.step - first.step
    assert (last.source, last.episode) == (first.source, first.episode)
    assert 1 <= n <= n_steps <= N_STACK
    assert last.step <= length
    actions = [each.action for each in stack[-n:]]
    assert actions[0] == action
    rewards = [reward(first.source, first.episode, first.step + k, each) for k, each in enumerate(actions)]
    assert summed_reward == sum(gamma**k * each for k, each in enumerate(rewards))
    assert done == (last.step == length and not is_truncated), (first, last, length, is_truncated, done)
    return first


def check_samples(samples: Any, *, n_steps: int = 1, gamma: float = 1.0) -> list[Identity]:
    """Check the transitions of a batch of SB3, see :func:`check_transition`."""
    arrays = [
        tensor.cpu().numpy()
        for tensor in (
            samples.observations, samples.actions, samples.rewards, samples.next_observations, samples.dones
        )
    ]  # fmt: skip
    return [
        check_transition(
            observation, int(action.item()), summed.item(), after, bool(done.item()), n_steps=n_steps, gamma=gamma
        )
        for observation, action, summed, after, done in zip(*arrays, strict=True)
    ]


class CheckableEnv(gym.Env[Any, Any]):
    """The environment.

    :param ledger: the folder that records what was acknowledged, see :mod:`distributed.ledger`; ``None`` for none
    :param steps_per_call: a collector steps it so often in each call, and returns when shards have acknowledged that
    """

    observation_space, action_space = SPACE, ACTIONS

    def __init__(self, ledger: Path | None = None, steps_per_call: int = 1) -> None:
        self.source = int.from_bytes(os.urandom(8), "little")
        self._record = None if ledger is None else new_record(ledger, self.source)
        self._steps_per_call = steps_per_call
        self._n_steps = 0
        self._episode = self._step = -1
        self._frames: list[NDArray[np.uint8]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode. Seeds change nothing."""
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        self._frames = [self._frame(FIRST)] * N_STACK
        return np.stack(self._frames), {}

    def step(self, action: Any) -> Any:
        """Emit the next frame."""
        if self._record is not None and self._n_steps % self._steps_per_call == 0:
            self._record.acknowledge(self._n_steps)  # the collector was called again
        action = int(action)
        value = reward(self.source, self._episode, self._step, action)
        self._n_steps += 1
        self._step += 1
        self._frames = [*self._frames[1:], self._frame(action)]
        length, is_truncated = episode_end(self.source, self._episode)
        is_end = self._step == length
        return np.stack(self._frames), value, is_end and not is_truncated, is_end and is_truncated, {}

    def _frame(self, action: int) -> NDArray[np.uint8]:
        return frame(Identity(self.source, self._episode, self._step, action))


def serial(source: int, episode: int, step: int) -> int:
    """Return the number of a step of an environment."""
    return _begin(source, episode) + step


@lru_cache(4096)
def _begin(source: int, episode: int) -> int:
    if episode > 400:  # within the limit of recursion
        _begin(source, episode - 400)
    return 0 if episode == 0 else _begin(source, episode - 1) + episode_end(source, episode - 1).length

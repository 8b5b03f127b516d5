"""Helpers of several tests: real environments, transitions recorded from them, and comparison of batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, IdentityEnvMultiBinary, IdentityEnvMultiDiscrete
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer

gym.register_envs(ale_py)


def atari_env(
    game: str = "Breakout", n_envs: int = 4, *, transpose: bool = True, max_steps: int = 300, seed: int = 0
) -> VecEnv:
    """Return a game as SB3's users set it up: four stacked frames, with time limits short enough to be reached."""
    env_kwargs = {"max_episode_steps": max_steps}
    env = make_atari_env(f"{game}NoFrameskip-v4", n_envs=n_envs, seed=seed, env_kwargs=env_kwargs)
    stacked = VecFrameStack(env, n_stack=4)
    return VecTransposeImage(stacked) if transpose else stacked


class ConsoleObservation(gym.ObservationWrapper[Any, Any, Any]):
    """An ALE game as a Dict observation: the screen, the console's memory and the lives left."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        assert env.observation_space.shape is not None
        self.observation_space = spaces.Dict(
            {
                "screen": spaces.Box(0, 255, env.observation_space.shape, np.uint8),
                "ram": spaces.Box(0, 255, (128,), np.uint8),
                "lives": spaces.Discrete(10),
            }
        )

    def observation(self, observation: Any) -> dict[str, Any]:
        """Add the memory and the lives to the screen."""
        ale = self.env.unwrapped.ale  # type: ignore[attr-defined]
        return {"screen": observation, "ram": ale.getRAM(), "lives": ale.lives()}


def console_game(game: str = "Breakout", max_steps: int = 300) -> gym.Env[Any, Any]:
    """Return a game with Dict observations of an image, a vector and a discrete part."""
    env = gym.make(f"{game}NoFrameskip-v4", max_episode_steps=max_steps)
    env = gym.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True, grayscale_newaxis=True)
    return ConsoleObservation(env)


def console_env(n_envs: int = 2, game: str = "Breakout", max_steps: int = 300) -> VecEnv:
    """Return several of them."""
    return make_vec_env(partial(console_game, game, max_steps), n_envs=n_envs, seed=0)


@dataclass
class Transition:
    """The arguments of one call of a replay buffer's ``add``."""

    obs: Any
    next_obs: Any
    action: np.ndarray[Any, Any]
    reward: np.ndarray[Any, Any]
    done: np.ndarray[Any, Any]
    infos: list[dict[str, Any]]

    def add_to(self, buffer: Any) -> None:
        """Add a copy of it, since SB3's Dict buffers write into the dicts that they get."""
        buffer.add(*copy.deepcopy((self.obs, self.next_obs, self.action, self.reward, self.done, self.infos)))

    def add_to_rollout(self, buffer: RolloutBuffer, episode_start: Any, rng: np.random.Generator, **extra: Any) -> None:
        """Add it as a step of a rollout, with random values and log probabilities."""
        value, log_prob = (th.as_tensor(rng.standard_normal(buffer.n_envs), dtype=th.float32) for _ in range(2))
        buffer.add(copy.deepcopy(self.obs), self.action, self.reward, episode_start, value, log_prob, **extra)


def record(env: VecEnv, n_steps: int) -> list[Transition]:
    """Play at random and return the transitions, as SB3's off-policy algorithms would store them."""
    env.seed(0)
    env.action_space.seed(0)
    obs = env.reset()
    transitions = []
    for _ in range(n_steps):
        action = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        new_obs, reward, done, infos = env.step(action)
        next_obs: Any = copy.deepcopy(new_obs)
        for i in np.flatnonzero(done):
            terminal = infos[i]["terminal_observation"]
            if isinstance(next_obs, dict):
                for key in next_obs:
                    next_obs[key][i] = terminal[key]
            else:
                next_obs[i] = terminal
        transitions.append(Transition(obs, next_obs, action, reward, done, infos))
        obs = copy.deepcopy(new_obs)
    env.close()
    return transitions


Stream = tuple[spaces.Space[Any], spaces.Space[Any], int, list[Transition]]
"""Observation space, action space, number of environments, transitions."""

GOALS: dict[str, Callable[[], VecEnv]] = {
    "bits": partial(make_vec_env, BitFlippingEnv, n_envs=2, env_kwargs={"n_bits": 4, "image_obs_space": True}),
    "goal-bits": partial(make_vec_env, BitFlippingEnv, n_envs=2, env_kwargs={"n_bits": 20, "max_steps": 9}),
}
ENVIRONMENTS: dict[str, Callable[[], VecEnv]] = {
    "atari": partial(atari_env, "Breakout", 4),
    "atari-single": partial(atari_env, "Pong", 1, max_steps=40),
    "atari-channel-last": partial(atari_env, "Breakout", 2, transpose=False),
    "console": console_env,
    "pendulum": partial(make_vec_env, "Pendulum-v1", n_envs=3),
    "cart": partial(make_vec_env, "CartPole-v1", n_envs=4),
    "acrobot": partial(make_vec_env, "Acrobot-v1", n_envs=1, env_kwargs={"max_episode_steps": 90}),
    "discrete": partial(make_vec_env, "FrozenLake-v1", n_envs=2),
    "multi-discrete": partial(make_vec_env, IdentityEnvMultiDiscrete, n_envs=2),
    "multi-binary": partial(make_vec_env, IdentityEnvMultiBinary, n_envs=2),
    **GOALS,
}
N_STEPS = 340


@cache
def recorded(name: str) -> Stream:
    """Return transitions of one of the environments above."""
    env = ENVIRONMENTS[name]()
    return env.observation_space, env.action_space, env.num_envs, record(env, N_STEPS)


def new_buffer(cls: Any, stream: Stream | str, n_rows: int, device: str = "cpu", **options: Any) -> Any:
    """Return an empty buffer for a stream, or that of a name, of a class of this package or of SB3."""
    space, action_space, n_envs, _ = stream = recorded(stream) if isinstance(stream, str) else stream
    if issubclass(cls, HerReplayBuffer) and "env" not in options:
        [options["env"]] = [env() for name, env in GOALS.items() if recorded(name)[0] == space]
        options["env"].reset()  # it computes rewards from a state
    return cls(n_rows * n_envs, space, action_space, device=device, n_envs=n_envs, **options)


def compressed_class(space: spaces.Space[Any]) -> type[Any]:
    """Return the compressed replay buffer for observations of a space."""
    return CompressedDictReplayBuffer if isinstance(space, spaces.Dict) else CompressedReplayBuffer


def add_all(transitions: Iterable[Transition], *buffers: Any) -> None:
    """Add transitions to each of the buffers."""
    for transition in transitions:
        for buffer in buffers:
            transition.add_to(buffer)


def filled(
    stream: Stream | str, n_steps: int | None = 60, n_rows: int = 100, /, cls: Any = None, **options: Any
) -> Any:
    """Return a buffer with the first steps of a stream, compressed unless a class is passed."""
    stream = recorded(stream) if isinstance(stream, str) else stream
    buffer = new_buffer(cls or compressed_class(stream[0]), stream, n_rows, **options)
    add_all(stream[-1][:n_steps], buffer)
    return buffer


def assert_same_batch(ours: Any, theirs: Any) -> None:
    """Assert that two batches have the same type, and their fields the same dtype, shape, device and values."""
    assert type(ours) is type(theirs)
    for name in theirs._fields:
        _assert_same(getattr(ours, name), getattr(theirs, name), name)


def _assert_same(ours: Any, theirs: Any, name: str) -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            _assert_same(ours[key], theirs[key], f"{name}[{key!r}]")
    elif isinstance(theirs, tuple):  # recurrent states
        for our_part, their_part in zip(ours, theirs, strict=True):
            _assert_same(our_part, their_part, name)
    elif theirs is None:
        assert ours is None
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, name
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert (ours.dtype, ours.shape, ours.device) == (theirs.dtype, theirs.shape, theirs.device), name
        assert ours.cpu().numpy().tobytes() == theirs.cpu().numpy().tobytes(), name


def same_draws(*samplers: Callable[[], Any], seed: int) -> list[Any]:
    """Call each with NumPy's global generator in the same state, and assert that they leave it in the same state."""
    results, states = [], []
    for sampler in samplers:
        np.random.seed(seed)  # noqa: NPY002  # what SB3 draws from
        results.append(sampler())
        states.append(np.random.get_state(legacy=False)["state"])  # noqa: NPY002
    for state in states[1:]:
        assert state["pos"] == states[0]["pos"]
        np.testing.assert_array_equal(state["key"], states[0]["key"])
    return results


def n_episode_ends(transitions: Sequence[Transition]) -> int:
    """Count the episode ends among transitions."""
    return int(sum(transition.done.sum() for transition in transitions))


class ImageEnv(gym.Env[Any, Any]):
    """Spaces of an image environment, for a ``VecNormalize`` around them; it is never stepped."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space


@contextmanager
def draws_replaced(**functions: Any) -> Iterator[None]:
    """Replace functions of ``np.random``, so that code gets chosen numbers."""
    with pytest.MonkeyPatch.context() as patch:
        for name, function in functions.items():
            patch.setattr(np.random, name, function)
        yield


def batch_at(buffer: Any, rows: Any, envs: Any, env: Any = None) -> Any:
    """Return the batch that a buffer's ``_get_samples`` creates for chosen rows and environments."""
    with draws_replaced(randint=lambda *args, **kwargs: envs):
        return buffer._get_samples(rows, env=env)

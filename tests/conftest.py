"""Fixtures for all tests: data of real environments, recorded once a process."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import drawn_examples  # noqa: F401  # sets the defaults of hypothesis for all tests
import numpy as np
import pytest
import torch as th
from fork_server import import_package
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, IdentityEnvMultiBinary, IdentityEnvMultiDiscrete
from stable_baselines3.common.vec_env import VecEnv
from support import Transition, atari_env, console_env, record

import_package()  # pytest-xdist imports this file before it starts processes: kernels are compiled once

th.set_num_threads(1)  # the tests run in as many processes as there are cores

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell, which its children would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)

Stream = tuple[spaces.Space[Any], spaces.Space[Any], int, list[Transition]]
"""Observation space, action space, number of environments, transitions."""

ENVIRONMENTS: dict[str, Callable[[], VecEnv]] = {
    "atari": partial(atari_env, "Breakout", 4),
    "atari-single": partial(atari_env, "Pong", 1, max_steps=40),
    "atari-channel-last": partial(atari_env, "Breakout", 2, transpose=False),
    "console": console_env,
    "bits": partial(make_vec_env, BitFlippingEnv, n_envs=2, env_kwargs={"n_bits": 4, "image_obs_space": True}),
    "pendulum": partial(make_vec_env, "Pendulum-v1", n_envs=3),
    "cart": partial(make_vec_env, "CartPole-v1", n_envs=4),
    "acrobot": partial(make_vec_env, "Acrobot-v1", n_envs=1, env_kwargs={"max_episode_steps": 90}),
    "goal-bits": partial(make_vec_env, BitFlippingEnv, n_envs=2, env_kwargs={"n_bits": 20, "max_steps": 9}),
    "discrete": partial(make_vec_env, "FrozenLake-v1", n_envs=2),
    "multi-discrete": partial(make_vec_env, IdentityEnvMultiDiscrete, n_envs=2),
    "multi-binary": partial(make_vec_env, IdentityEnvMultiBinary, n_envs=2),
}
N_STEPS = 340

_recorded: dict[str, Stream] = {}


def recorded(name: str) -> Stream:
    """Return transitions of one of the environments above."""
    if name not in _recorded:
        env = ENVIRONMENTS[name]()
        _recorded[name] = env.observation_space, env.action_space, env.num_envs, record(env, N_STEPS)
    return _recorded[name]


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Begin each test with the same random numbers, whatever its process has run before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
    th.manual_seed(0)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> Stream:
    """Return the transitions of the environment that the test is parametrised with, ``atari`` where it is not."""
    return recorded(getattr(request, "param", "atari"))

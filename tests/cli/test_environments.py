"""Environments get the wrappers of a training; those that SB3 cannot train on are refused with a reason."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_compressed.cli.environments import environment_spec, is_game, make_env, off_policy_algorithm, policy

PONG = "PongNoFrameskip-v4"
BOX = spaces.Box(-1, 1, (3,))
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)


def test_environment_equals_that_of_a_model() -> None:
    environment_spec(PONG)
    ours = make_env(PONG, 2, atari=True, n_stack=4)
    model = DQN("CnnPolicy", VecFrameStack(make_atari_env(PONG, 2, 0), 4), buffer_size=10, device="cpu")
    theirs = model.get_env()
    assert theirs is not None
    assert ours.observation_space == theirs.observation_space
    obs, expected = ours.reset(), theirs.reset()
    assert isinstance(obs, np.ndarray)
    assert isinstance(expected, np.ndarray)
    assert obs.strides == expected.strides
    np.testing.assert_array_equal(obs, expected)
    ours.close()
    theirs.close()


def test_error_for_a_missing_dependency_of_an_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**options: Any) -> Any:
        raise gym.error.DependencyNotInstalled("run `pip install some-game`")

    monkeypatch.setattr(gym.envs.registration, "registry", {**gym.registry})
    gym.register("Missing-v0", entry_point=make)
    with pytest.raises(ImportError, match="Missing-v0: run `pip install"):
        make_env("Missing-v0", 1, atari=False, n_stack=1)


def test_wrappers_that_do_not_fit_raise() -> None:
    with pytest.raises(ValueError, match="CartPole-v1 is not an Atari game"):
        make_env("CartPole-v1", 1, atari=True, n_stack=4)
    with pytest.raises(ValueError, match=r"Discrete\(16\) cannot be stacked"):
        make_env("FrozenLake-v1", 1, atari=False, n_stack=4)


def test_games_are_those_with_images() -> None:
    assert [is_game(environment_spec(name)) for name in (PONG, "CartPole-v1")] == [True, False]
    gym.register("PongRam-v0", entry_point=gym.spec(PONG).entry_point, kwargs={"obs_type": "ram"})
    assert not is_game(environment_spec("PongRam-v0"))


def test_algorithm_and_policy_depend_on_the_spaces() -> None:
    assert [off_policy_algorithm(space) for space in (spaces.Discrete(2), BOX)] == ["DQN", "SAC"]
    with pytest.raises(ValueError, match="--n-steps"):
        off_policy_algorithm(spaces.MultiDiscrete([2, 3]))
    assert [policy(space) for space in (IMAGE, BOX, spaces.Dict({"image": IMAGE}))] == [
        "CnnPolicy",
        "MlpPolicy",
        "MultiInputPolicy",
    ]

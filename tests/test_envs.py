"""``make_env``: Atari environments as an SB3 model wraps them."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from sb3_compressed.envs import make_env

GAME = "BreakoutNoFrameskip-v4"


def test_environment_equals_that_of_a_model() -> None:
    ours = make_env(GAME, 2, seed=3)
    model = DQN("CnnPolicy", VecFrameStack(make_atari_env(GAME, 2, 3), 4), buffer_size=10, device="cpu")
    theirs = model.get_env()
    assert theirs is not None
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    for action in (1, 2, 3, 0) * 5:
        for of_ours, of_theirs in zip(ours.step(np.full(2, action))[:3], theirs.step(np.full(2, action))[:3]):
            np.testing.assert_array_equal(of_ours, of_theirs)
    assert DQN("CnnPolicy", ours, buffer_size=10, device="cpu").get_env() is ours, "a model adds no wrapper"


@pytest.mark.parametrize(("frame_stack", "cls"), [(1, DummyVecEnv), (2, SubprocVecEnv)])
def test_options_are_passed_to_the_helpers(frame_stack: int, cls: type[VecEnv]) -> None:
    env = make_env(
        GAME, 2, frame_stack=frame_stack, vec_env_cls=cls, env_kwargs={"max_episode_steps": 9},
        wrapper_kwargs={"screen_size": 42},
    )  # fmt: skip
    assert isinstance(env.unwrapped, cls)
    assert env.observation_space.shape == (frame_stack, 42, 42)
    env.reset()
    ended = [env.step(np.zeros(2, dtype=int))[2] for _ in range(9)]
    assert np.any(ended, axis=0).all(), "after nine steps of the game, four per step of the environment"
    env.close()


def test_a_game_that_skips_frames_itself_warns() -> None:
    with pytest.warns(UserWarning, match="Pong-v4 skips frames itself"):
        make_env("Pong-v4").close()
    make_env("Pong-v4", env_kwargs={"frameskip": 1}).close()  # a warning fails this test
    make_env("Pong-v4", wrapper_kwargs={"frame_skip": 1}).close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"frame_stack": 0}, ValueError, "frame_stack .* got 0"),
        ({"n_envs": 0}, ValueError, "n_envs .* got 0"),
        ({"frame_stack": 4.0}, TypeError, "pass 4"),
        ({"framestack": 4}, TypeError, "framestack"),
    ],
)
def test_invalid_arguments_raise(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_env(GAME, **options)


def test_missing_packages_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ImportError, match=r"need ale_py, .* pip install '.\[atari\]'"):
        make_env(GAME)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "stable_baselines3.common.envs:FrozenLake-v1"])
def test_environment_that_is_not_an_atari_game_raises(env_id: str) -> None:
    with pytest.raises(ValueError, match=f"{env_id} is not an Atari game but a .*make_vec_env"):
        make_env(env_id)


@pytest.mark.parametrize("env_id", ["BreakotuNoFrameskip-v4", "Breakout", "ALE/Breakout", "Breakout-v5"])
def test_unknown_environment_raises_the_error_of_gymnasium_with_a_suggestion(env_id: str) -> None:
    with pytest.raises(gym.error.UnregisteredEnv, match=r"Did you mean.*BreakoutNoFrameskip"):
        make_env(env_id)

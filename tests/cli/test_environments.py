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


class Words(gym.Env[Any, Any]):
    """Has the observation space that a test sets, or fails."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as in the base class
    action_space = spaces.Discrete(2)
    observation_space: Any
    error: Exception | None

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> type[Words]:
    """Register the environment, and return its class."""
    monkeypatch.setattr(gym.envs.registration, "registry", {**gym.registry})
    gym.register("Words-v0", f"{__name__}:Words")
    monkeypatch.setattr(Words, "observation_space", BOX, raising=False)
    monkeypatch.setattr(Words, "error", None, raising=False)
    return Words


OTHER_SPACES: list[spaces.Space[Any]] = [spaces.Text(5), spaces.Dict({"outer": spaces.Dict({"inner": BOX})})]
if hasattr(spaces, "OneOf"):  # since Gymnasium 1.0
    OTHER_SPACES.append(spaces.OneOf([spaces.Discrete(3), BOX]))


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


@pytest.mark.parametrize("space", OTHER_SPACES, ids=lambda space: type(space).__name__)
def test_observations_that_are_no_arrays_are_refused(
    space: Any, words: type[Words], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "observation_space", space)
    with pytest.raises(ValueError, match=rf"observation space of Words-v0, {type(space).__name__}\("):
        make_env("Words-v0", 1, atari=False, n_stack=1)


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (gym.error.DependencyNotInstalled("run `pip install some-game`"), ImportError, "Words-v0: run `pip install"),
        (AttributeError("a bug of the environment"), AttributeError, "^a bug of the environment"),
    ],
)
def test_errors_of_an_environment_name_what_is_missing(
    error: Exception, expected: type[Exception], message: str, words: type[Words], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "error", error)
    with pytest.raises(expected, match=message):
        make_env("Words-v0", 1, atari=False, n_stack=1)


def test_wrappers_that_do_not_fit_raise() -> None:
    with pytest.raises(ValueError, match="SB3's Atari preprocessing does not support CartPole-v1"):
        make_env("CartPole-v1", 1, atari=True, n_stack=4)
    with pytest.raises(ValueError, match=r"Discrete\(16\) cannot be stacked"):
        make_env("FrozenLake-v1", 1, atari=False, n_stack=4)


def test_environments_with_similar_names_are_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym, "registry", dict.fromkeys(["Asterix-v0", "CartPole-v0", "CartPole-v1"]))
    with pytest.raises(ValueError, match="did you mean CartPole-v1 or CartPole-v0"):
        environment_spec("cartpol-v1")
    with pytest.raises(ValueError, match="unknown environment 'Krafter-v0'; Environment `Krafter` doesn't exist"):
        environment_spec("Krafter-v0")  # similar to Asterix-v0 by its version alone


def test_games_without_frame_skip_are_suggested_first() -> None:
    with pytest.raises(ValueError, match=f"did you mean {PONG} or "):
        environment_spec("pong")


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

"""Collectors choose actions as SB3's algorithms do, except that environments explore independently."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray
from sb3_contrib import QRDQN, TQC
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv

from sb3_compressed.distributed.exploration import EpsilonLadder, ExplorationConfig, Explorer

N_ENVS = 3
N_STEPS = 60
LEARNING_STARTS = 25  # steps


def small() -> dict[str, Any]:
    """Return arguments of small algorithms; SB3 writes to its policy_kwargs."""
    return {"policy_kwargs": {"net_arch": [16]}, "device": "cpu", "buffer_size": 1000}


def pendulum(n_envs: int = N_ENVS) -> VecEnv:
    """Return environments with actions in [-2, 2] and short episodes, whose ends reset action noise."""
    return make_vec_env(lambda: TimeLimit(PendulumEnv(), 17), n_envs=n_envs)


def normal_noise() -> NormalActionNoise:
    return NormalActionNoise(np.zeros(1), 0.4 * np.ones(1))


def ornstein_uhlenbeck_noise() -> OrnsteinUhlenbeckActionNoise:
    return OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.9 * np.ones(1), initial_noise=0.7 * np.ones(1))


CONTINUOUS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "sac": lambda: (SAC, {}),
    "tqc": lambda: (TQC, {}),
    "td3-normal": lambda: (TD3, {"action_noise": normal_noise()}),
    "ddpg-ou": lambda: (DDPG, {"action_noise": ornstein_uhlenbeck_noise()}),
}


def explored(explorer: Explorer, env: VecEnv, learning_starts: int) -> NDArray[Any]:
    """Step environments as a collector does; return the actions for the buffer, ``(N_STEPS, n_envs, n)``."""
    set_random_seed(5)
    env.seed(5)
    explorer.action_space.seed(5)
    observations = env.reset()
    stored = []
    for step in range(N_STEPS):
        actions, buffer_actions = explorer.actions(observations, is_warmup=step * env.num_envs < learning_starts)
        assert np.all(np.abs(actions) <= 2)
        np.testing.assert_allclose(actions, 2 * buffer_actions, rtol=1e-6, atol=1e-6)
        observations, _, dones, _ = env.step(actions)
        explorer.end_episodes(dones)
        stored.append(buffer_actions)
    return np.stack(stored)


@pytest.mark.parametrize(("name", "n_envs"), [*((name, N_ENVS) for name in CONTINUOUS), ("ddpg-ou", 1)])
def test_continuous_actions_are_those_of_sb3(name: str, n_envs: int) -> None:
    algorithm, arguments = CONTINUOUS[name]()
    model = algorithm(
        "MlpPolicy",
        pendulum(n_envs),
        learning_starts=LEARNING_STARTS * n_envs,
        train_freq=N_STEPS,
        gradient_steps=0,
        **small(),
        **arguments,
    )
    config = pickle.loads(pickle.dumps(ExplorationConfig.from_model(model)))
    explorer = Explorer(model.policy, config, n_envs)

    model.env.seed(5)
    model.action_space.seed(5)
    set_random_seed(5)
    model.learn(N_STEPS * n_envs)
    expected = model.replay_buffer.actions[:N_STEPS]

    np.testing.assert_array_equal(explored(explorer, pendulum(n_envs), LEARNING_STARTS * n_envs), expected)


def cart_pole_model(algorithm: type[DQN] | type[QRDQN] = DQN, n_envs: int = N_ENVS) -> Any:
    return algorithm("MlpPolicy", make_vec_env("CartPole-v1", n_envs=n_envs), **small())


MODEL = cart_pole_model()
WRONG: list[Any] = [1.5, -0.1, math.nan, "schedule"]


def random_observations(n: int = N_ENVS, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-1, 1, (n, 4)).astype(np.float32)


@pytest.mark.parametrize("algorithm", [DQN, QRDQN])
def test_discrete_actions_are_greedy_or_random(algorithm: type[DQN] | type[QRDQN]) -> None:
    model = cart_pole_model(algorithm)
    observations = random_observations()
    greedy = model.policy.predict(observations)[0]

    actions, buffer_actions = Explorer(model.policy, ExplorationConfig(EpsilonLadder(0.0)), N_ENVS).actions(
        observations
    )
    np.testing.assert_array_equal(actions, greedy)
    np.testing.assert_array_equal(buffer_actions, greedy)
    assert actions.dtype == greedy.dtype

    model.exploration_rate = 1.0
    model.action_space.seed(7)
    explorer = Explorer(model.policy, ExplorationConfig(EpsilonLadder(1.0)), N_ENVS)
    explorer.action_space.seed(7)
    for _ in range(10):
        np.testing.assert_array_equal(explorer.actions(observations)[0], model.predict(observations)[0])


def test_environments_explore_independently_with_their_own_probability() -> None:
    model = cart_pole_model()
    observations = np.repeat(random_observations(1), N_ENVS, axis=0)
    greedy = model.policy.predict(observations)[0][0]
    ladder = EpsilonLadder(base=0.8, alpha=2.0)
    explorer = Explorer(model.policy, ExplorationConfig(ladder), N_ENVS, seed=0)
    n = 3000
    differs = np.stack([explorer.actions(observations)[0] for _ in range(n)]) != greedy
    # Half of the random actions of two are the greedy one.
    expected = 0.5 * np.array([ladder.epsilon(env, N_ENVS) for env in range(N_ENVS)])
    tolerance = 5 * np.sqrt(expected * (1 - expected) / n)
    assert np.all(np.abs(differs.mean(axis=0) - expected) < tolerance)
    joint = expected[0] * expected[1]
    assert abs(np.mean(differs[:, 0] & differs[:, 1]) - joint) < 5 * np.sqrt(joint / n)


def test_equal_seeds_give_equal_actions_and_collectors_differ() -> None:
    model = cart_pole_model()

    def actions(seed: int | tuple[int, ...] | None, collector: int = 0) -> Any:
        np.random.seed(None)  # noqa: NPY002  # the global generator is not used
        explorer = Explorer(
            model.policy,
            ExplorationConfig(EpsilonLadder(0.5, alpha=0.0)),
            N_ENVS,
            collector=collector,
            n_collectors=2,
            seed=seed,
        )
        found = [explorer.actions(random_observations(seed=i), is_warmup=i < 20)[0] for i in range(60)]
        return np.concatenate(found).tolist()

    assert actions(3) == actions(3)
    assert actions((3, 1)) == actions((3, 1))
    different = [actions(3), actions(3, collector=1), actions(4), actions((3, 1)), actions(None), actions(None)]
    assert len({tuple(each) for each in different}) == len(different)


def test_ladder_is_that_of_ape_x() -> None:
    ladder = EpsilonLadder()
    for n in (2, 5, 360):
        expected = [0.4 ** (1 + 7 * i / (n - 1)) for i in range(n)]
        assert [ladder.epsilon(i, n) for i in range(n)] == pytest.approx(expected)
    assert ladder.epsilon(0, 1) == 0.4
    steeper = EpsilonLadder(base=0.5, alpha=9)
    assert ExplorationConfig.from_model(MODEL, steeper) == ExplorationConfig(steeper)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda: EpsilonLadder(base=1.5), "base"),
        (lambda: EpsilonLadder(base=math.nan), "base"),
        (lambda: EpsilonLadder(alpha=-1), "alpha"),
        (lambda: EpsilonLadder(alpha=math.inf), "alpha"),
        *((partial(ExplorationConfig.from_model, MODEL, each), "exploration") for each in WRONG),
    ],
)
def test_wrong_configurations_are_errors(wrong: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        wrong()


def test_random_actions_of_continuous_algorithms_are_refused() -> None:
    model = TD3("MlpPolicy", pendulum(), **small())
    for epsilon in (0.1, EpsilonLadder()):
        with pytest.raises(ValueError, match="TD3 does not explore with random actions"):
            ExplorationConfig.from_model(model, epsilon)
    with pytest.warns(UserWarning, match="action_noise"):
        ExplorationConfig.from_model(model)
    with pytest.raises(ValueError, match="gSDE"):
        ExplorationConfig.from_model(SAC("MlpPolicy", pendulum(), use_sde=True, **small()))


def test_multi_discrete_actions() -> None:
    space = spaces.MultiDiscrete([3, 4])
    model = cart_pole_model()
    policy = model.policy
    policy.action_space = space
    explorer = Explorer(policy, ExplorationConfig(EpsilonLadder(1.0)), 5)
    actions, _ = explorer.actions(random_observations(5))
    assert actions.shape == (5, 2)
    assert all(space.contains(action) for action in actions)

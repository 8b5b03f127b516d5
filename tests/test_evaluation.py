"""Evaluations are SB3's, with quartiles."""

from __future__ import annotations

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_compressed.evaluation import Evaluation, evaluate


def test_episodes_are_those_of_sb3() -> None:
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    envs = [make_vec_env("CartPole-v1", n_envs=3, seed=1) for _ in range(2)]
    played = evaluate(model, envs[0], 7)
    returns, lengths = evaluate_policy(model, envs[1], 7, return_episode_rewards=True)
    np.testing.assert_array_equal(played.returns, returns)
    np.testing.assert_array_equal(played.lengths, lengths)
    assert played.return_quartiles == played.length_quartiles


def test_options_reach_the_helper() -> None:
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu", exploration_initial_eps=1.0)
    seen: list[bool] = []
    env = make_vec_env("CartPole-v1")
    played = evaluate(model, env, 3, deterministic=False, callback=lambda found, _: seen.append(found["deterministic"]))
    assert len(seen) == played.lengths.sum()
    assert not any(seen)


def test_quartiles_divide_the_episodes() -> None:
    played = Evaluation(np.array([8.0, 0.0, 2.0, 6.0, 4.0]), np.array([5, 1, 2, 4, 3]))
    assert played.return_quartiles == (2.0, 4.0, 6.0)
    assert played.length_quartiles.median == 3
    assert str(played) == (
        "5 episodes: return 4.00 ± 2.83, quartiles 2.00 | 4.00 | 6.00, from 0.00 to 8.00; 3 steps in the median"
    )


def test_no_episodes_are_an_error() -> None:
    with pytest.raises(ValueError, match="must be positive, got 0"):
        evaluate(DQN("MlpPolicy", "CartPole-v1"), make_vec_env("CartPole-v1"), 0)

"""``evaluate``: the results of SB3's ``evaluate_policy``, with quartiles."""

from __future__ import annotations

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_compressed.evaluation import Evaluation, evaluate


def test_episodes_equal_those_of_evaluate_policy() -> None:
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    envs = [make_vec_env("CartPole-v1", n_envs=3, seed=1) for _ in range(2)]
    evaluation = evaluate(model, envs[0], 7)
    returns, lengths = evaluate_policy(model, envs[1], 7, return_episode_rewards=True)
    np.testing.assert_array_equal(evaluation.returns, returns)
    np.testing.assert_array_equal(evaluation.lengths, lengths)
    assert evaluation.return_quartiles == evaluation.length_quartiles


def test_options_are_passed_to_evaluate_policy() -> None:
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu", exploration_initial_eps=1.0)
    seen: list[bool] = []
    env = make_vec_env("CartPole-v1")
    evaluation = evaluate(
        model, env, 3, deterministic=False, callback=lambda variables, _: seen.append(variables["deterministic"])
    )
    assert len(seen) == evaluation.lengths.sum()
    assert not any(seen)


def test_quartiles_and_text_summarise_the_episodes() -> None:
    evaluation = Evaluation(np.array([8.0, 0.0, 2.0, 6.0, 4.0]), np.array([5, 1, 2, 4, 3]))
    assert evaluation.return_quartiles == (2.0, 4.0, 6.0)
    assert evaluation.length_quartiles.median == 3
    assert str(evaluation) == (
        "5 episodes: return 4.00 ± 2.83, quartiles 2.00 | 4.00 | 6.00, from 0.00 to 8.00; median length 3"
    )


def test_zero_episodes_raise() -> None:
    with pytest.raises(ValueError, match="must be positive, got 0"):
        evaluate(DQN("MlpPolicy", "CartPole-v1"), make_vec_env("CartPole-v1"), 0)

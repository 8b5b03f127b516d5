"""``evaluate``: returns and lengths of episodes with their quartiles, by SB3's ``evaluate_policy``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import VecEnv

__all__ = ["Evaluation", "Quartiles", "evaluate"]


class Quartiles(NamedTuple):
    """The 25th, 50th and 75th percentile."""

    lower: float
    median: float
    upper: float


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of episodes.

    :ivar returns: sum of the rewards of each episode, ``(n,)``
    :ivar lengths: steps of each episode, ``(n,)``
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]

    @property
    def return_quartiles(self) -> Quartiles:
        """Quartiles of the returns."""
        return Quartiles(*np.percentile(self.returns, (25, 50, 75)).tolist())

    @property
    def length_quartiles(self) -> Quartiles:
        """Quartiles of the lengths."""
        return Quartiles(*np.percentile(self.lengths, (25, 50, 75)).tolist())

    def __str__(self) -> str:
        lower, median, upper = self.return_quartiles
        return (
            f"{len(self.returns)} episodes: return {self.returns.mean():.2f} ± {self.returns.std():.2f}, "
            f"quartiles {lower:.2f} | {median:.2f} | {upper:.2f}, from {self.returns.min():.2f} to "
            f"{self.returns.max():.2f}; median length {self.length_quartiles.median:.0f}"
        )


def evaluate(
    model: PolicyPredictor, env: gym.Env[Any, Any] | VecEnv, n_eval_episodes: int = 10, **options: Any
) -> Evaluation:
    """Evaluate a model on whole episodes with SB3's ``evaluate_policy``.

    >>> from stable_baselines3 import DQN
    >>> model = DQN("MlpPolicy", "CartPole-v1", seed=0)
    >>> evaluation = evaluate(model, model.get_env(), 8)
    >>> lower, median, upper = evaluation.return_quartiles
    >>> bool(lower <= median <= upper)
    True
    >>> evaluation.return_quartiles == evaluation.length_quartiles  # a reward of 1 for each step
    True

    :param model: a model, or any object with a compatible ``predict``
    :param env: the environment; episodes are divided evenly between those of a vectorized one
    :param n_eval_episodes: number of episodes
    :param options: further arguments of ``evaluate_policy``, e.g. ``deterministic=False`` or ``callback``
    :raises ValueError: if ``n_eval_episodes`` is not positive
    """
    if n_eval_episodes < 1:
        raise ValueError(f"n_eval_episodes must be positive, got {n_eval_episodes}")
    returns, lengths = evaluate_policy(model, env, n_eval_episodes, return_episode_rewards=True, **options)
    return Evaluation(np.array(returns, dtype=np.float64), np.array(lengths, dtype=np.int64))

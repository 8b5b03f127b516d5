"""``Explorer``: turns the output of a policy into the actions of a collector, as SB3's off-policy algorithms do."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.noise import ActionNoise, VectorizedActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.td3.policies import TD3Policy

from sb3_compressed.common.warning import warn_user

__all__ = ["EpsilonLadder", "Exploration", "ExplorationConfig", "Explorer"]


@dataclass(frozen=True)
class EpsilonLadder:
    """A constant probability of random actions for each environment, from ``base`` down to ``base ** (1 + alpha)``.

    That of environment ``i`` of the ``n`` of all collectors is ``base ** (1 + alpha * i / (n - 1))`` (Horgan et al.
    2018, Ape-X, https://arxiv.org/abs/1803.00933, section 4.1). A single environment has ``base``.

    >>> ladder = EpsilonLadder()
    >>> [round(ladder.epsilon(i, 4), 5) for i in range(4)]
    [0.4, 0.04716, 0.00556, 0.00066]

    :param base: the probability at the first position
    :param alpha: how much smaller those of the others are
    :raises ValueError: if ``base`` is not between 0 and 1, or ``alpha`` is negative or not finite
    """

    base: float = 0.4
    alpha: float = 7.0

    def __post_init__(self) -> None:
        if not 0 <= self.base <= 1:
            raise ValueError(f"base must be between 0 and 1, got {self.base!r}")
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be finite and at least 0, got {self.alpha!r}")

    def epsilon(self, position: int, n_positions: int) -> float:
        """Return the probability of random actions at one position, from 0 to ``n_positions - 1``."""
        return float(self.base ** (1 + self.alpha * position / max(n_positions - 1, 1)))


#: Probability of random actions: a constant, or ``"ladder"`` for :class:`EpsilonLadder` with its defaults.
Exploration = float | Literal["ladder"] | EpsilonLadder


@dataclass(frozen=True)
class ExplorationConfig:
    """How collectors explore: what an :class:`Explorer` needs of an algorithm; it can be sent to other processes.

    :param epsilon: probability of random actions instead of those of the policy
    :param action_noise: noise of a single environment, added to actions scaled to [-1, 1]
    """

    epsilon: EpsilonLadder = EpsilonLadder(0.0)
    action_noise: ActionNoise | None = None

    @classmethod
    def from_model(cls, model: Any, exploration: Exploration = "ladder") -> ExplorationConfig:
        """Return the exploration of one of SB3's off-policy algorithms.

        :param model: the algorithm
        :param exploration: probability of random actions; ``"ladder"`` only applies to algorithms with an
            ``exploration_rate``, DQN and QR-DQN: the policies of the others are stochastic or have action noise
        :raises ValueError: if ``exploration`` is invalid, or is a constant or an :class:`EpsilonLadder` and the
            algorithm has no ``exploration_rate``; for gSDE, whose noise the learner would have to share
        """
        name = type(model).__name__
        if model.use_sde:
            raise ValueError(f"collectors do not explore with gSDE: construct the {name} with use_sde=False")
        noise = model.action_noise
        if isinstance(noise, VectorizedActionNoise):
            noise = noise.base_noise
        if hasattr(model, "exploration_rate"):
            return cls(_ladder(exploration), copy.deepcopy(noise))
        if exploration != "ladder":
            raise ValueError(
                f"{name} does not explore with random actions, so their probability cannot be {exploration!r}; omit it"
            )
        if noise is None and isinstance(model.policy, TD3Policy):  # deterministic
            warn_user(f"this {name} has no action_noise: all collectors act alike, without exploration")
        return cls(action_noise=copy.deepcopy(noise))


def _ladder(exploration: Exploration) -> EpsilonLadder:
    if exploration == "ladder":
        return EpsilonLadder()
    if isinstance(exploration, EpsilonLadder):
        return exploration
    if not isinstance(exploration, float | int) or not 0 <= exploration <= 1:
        raise ValueError(f"exploration must be between 0 and 1, 'ladder' or an EpsilonLadder, got {exploration!r}")
    return EpsilonLadder(exploration, alpha=0.0)


class Explorer:
    """Chooses the actions of a collector's environments, as ``OffPolicyAlgorithm.collect_rollouts`` does.

    - Before learning starts, actions are uniformly random.
    - Afterwards they are those of the policy: SAC and TQC sample them. With DQN and QR-DQN, each environment has a
      random action instead with its epsilon. ``DQN.predict`` draws once for all environments; here each draws
      independently, since the ladder gives each its own epsilon.
    - Action noise (TD3, DDPG) is added to continuous actions, scaled to [-1, 1] and clipped to that. Replay buffers
      store scaled actions, environments receive unscaled ones.

    Random actions, and which ones are random, depend on ``seed`` and ``collector`` only. Stochastic policies draw from
    torch's global generator and SB3's action noise from NumPy's; call
    :func:`stable_baselines3.common.utils.set_random_seed` in the process of the collector to reproduce these.

    :param policy: the policy, a copy of the learner's; it may be given new weights at any time
    :param config: how to explore
    :param n_envs: number of environments
    :param collector: number of the collector, from 0
    :param n_collectors: number of collectors, for the positions of :class:`EpsilonLadder`
    :param seed: seed of the random actions; a sequence such as ``(seed, n_restarts)`` is one seed as well
    """

    def __init__(
        self,
        policy: BasePolicy,
        config: ExplorationConfig,
        n_envs: int,
        *,
        collector: int = 0,
        n_collectors: int = 1,
        seed: int | Sequence[int] | None = None,
    ) -> None:
        self.policy, self.n_envs = policy, n_envs
        self._is_continuous = isinstance(policy.action_space, spaces.Box)
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(collector,)))
        #: Where random actions are drawn from: a copy, since environments and policy may share the space.
        self.action_space = copy.deepcopy(policy.action_space)
        self.action_space.seed(int(self._rng.integers(2**31)))
        noise = config.action_noise
        self._noise = None if noise is None else VectorizedActionNoise(noise, n_envs)
        first = collector * n_envs
        #: Probability of a random action of each environment.
        self._epsilon = [config.epsilon.epsilon(first + env, n_collectors * n_envs) for env in range(n_envs)]

    def actions(self, observations: Any, *, is_warmup: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the next actions, for the environments and for the replay buffer, ``(n_envs, *action_shape)`` each.

        :param observations: those of all environments, ``(n_envs, *obs_shape)`` or a dict of such arrays
        :param is_warmup: whether learning has not started (``num_timesteps < learning_starts``)
        """
        actions = self._random_actions(self.n_envs) if is_warmup else self._policy_actions(observations)
        if not self._is_continuous:
            return actions, actions
        scaled = self.policy.scale_action(actions)
        if self._noise is not None:
            scaled = np.clip(scaled + self._noise(), -1, 1)
        return self.policy.unscale_action(scaled), scaled

    def end_episodes(self, dones: NDArray[Any]) -> None:
        """Reset the action noise of environments whose episodes have ended.

        :param dones: whether each has, ``(n_envs,)``
        """
        if self._noise is not None:
            self._noise.reset(np.flatnonzero(dones).tolist())

    def _policy_actions(self, observations: Any) -> NDArray[Any]:
        """Return the policy's actions, with random ones for some environments."""
        is_random = self._rng.random(self.n_envs) < self._epsilon
        if is_random.all():
            return self._random_actions(self.n_envs)
        actions = np.array(self.policy.predict(observations, deterministic=False)[0])  # a copy, which can be written to
        if is_random.any():
            actions[is_random] = self._random_actions(int(is_random.sum()))
        return actions

    def _random_actions(self, n: int) -> NDArray[Any]:
        return np.array([self.action_space.sample() for _ in range(n)])

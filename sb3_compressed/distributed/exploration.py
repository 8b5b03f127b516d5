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


#: Probability of random actions: a constant, ``"schedule"`` for the learner's ``exploration_rate``, ``"ladder"`` for
#: :class:`EpsilonLadder` with its defaults, or ``None`` for none but the policy's own.
Exploration = float | Literal["schedule", "ladder"] | EpsilonLadder | None


@dataclass(frozen=True)
class ExplorationConfig:
    """How collectors explore: what an :class:`Explorer` needs of an algorithm; it can be sent to other processes.

    :param epsilon: probability of random actions instead of those of the policy, see :data:`Exploration`
    :param action_noise: noise of a single environment, added to actions scaled to [-1, 1]
    :param use_sde: whether the policy explores with gSDE
    :param sde_sample_freq: number of steps between new noise matrices of gSDE, -1 for one at the begin of each rollout
    :param use_sde_at_warmup: whether gSDE replaces uniformly random actions before learning starts
    :raises ValueError: if ``epsilon`` is no probability or unknown
    """

    epsilon: Exploration = None
    action_noise: ActionNoise | None = None
    use_sde: bool = False
    sde_sample_freq: int = -1
    use_sde_at_warmup: bool = False

    def __post_init__(self) -> None:
        epsilon = self.epsilon
        if epsilon is None or isinstance(epsilon, EpsilonLadder) or epsilon in ("ladder", "schedule"):
            return
        if isinstance(epsilon, str) or not 0 <= epsilon <= 1:
            raise ValueError(
                f"exploration must be between 0 and 1, 'ladder', 'schedule', an EpsilonLadder or None, got {epsilon!r}"
            )

    @classmethod
    def from_model(cls, model: Any, epsilon: Exploration = "ladder") -> ExplorationConfig:
        """Return the exploration of one of SB3's off-policy algorithms.

        :param model: the algorithm
        :param epsilon: probability of random actions; ``"ladder"`` and ``"schedule"`` only apply to algorithms with an
            ``exploration_rate``, DQN and QR-DQN: the policies of the others are stochastic or have action noise
        :raises ValueError: if ``epsilon`` is invalid, or is a constant or an :class:`EpsilonLadder` and the algorithm
            has no ``exploration_rate``
        """
        noise, name = model.action_noise, type(model).__name__
        if not hasattr(model, "exploration_rate"):
            if epsilon is not None and not isinstance(epsilon, str):
                raise ValueError(
                    f"{name} does not explore with random actions, so their probability cannot be {epsilon!r}; omit it"
                )
            if epsilon is not None and noise is None and isinstance(model.policy, TD3Policy):  # deterministic
                warn_user(f"this {name} has no action_noise: all collectors act alike, without exploration")
            epsilon = None
        return cls(
            epsilon=epsilon,
            action_noise=copy.deepcopy(noise.base_noise if isinstance(noise, VectorizedActionNoise) else noise),
            use_sde=model.use_sde,
            sde_sample_freq=model.sde_sample_freq,
            use_sde_at_warmup=model.use_sde_at_warmup,
        )


class Explorer:
    """Chooses the actions of a collector's environments, as ``OffPolicyAlgorithm.collect_rollouts`` does.

    - Before learning starts, actions are uniformly random.
    - Afterwards they are those of the policy: SAC and TQC sample them. Where the configuration has an ``epsilon`` (DQN,
      QR-DQN), each environment has a random action instead with that probability. ``DQN.predict`` draws once for all
      environments: all of them act randomly in the same steps. The expected share of random actions is the same, but
      then a step of many environments has either no exploration or nothing else, and environments cannot differ in
      epsilon, as the ladder requires. So each environment draws independently here.
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
        self.policy, self.config, self.n_envs = policy, config, n_envs
        self._is_continuous = isinstance(policy.action_space, spaces.Box)
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(collector,)))
        #: Where random actions are drawn from: a copy, since environments and policy may share the space.
        self.action_space = copy.deepcopy(policy.action_space)
        self.action_space.seed(int(self._rng.integers(2**31)))
        noise = config.action_noise
        self._noise = None if noise is None else VectorizedActionNoise(noise, n_envs)
        epsilon: Any = EpsilonLadder() if config.epsilon == "ladder" else config.epsilon
        if isinstance(epsilon, EpsilonLadder):
            first = collector * n_envs
            epsilon = [epsilon.epsilon(first + env, n_collectors * n_envs) for env in range(n_envs)]
        #: Probability of a random action of each environment, that of the learner if it is a schedule.
        self._epsilon: Any = 0.0 if epsilon is None else epsilon
        self.begin_rollout()

    def begin_rollout(self) -> None:
        """Draw new noise for policies with gSDE; call it before each rollout, and after new weights."""
        self._n_steps = 0
        if self.config.use_sde:
            self._reset_sde_noise()

    def actions(
        self, observations: Any, *, is_warmup: bool = False, exploration_rate: float | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the next actions, for the environments and for the replay buffer, ``(n_envs, *action_shape)`` each.

        :param observations: those of all environments, normalized if the policy was trained with VecNormalize,
            ``(n_envs, *obs_shape)`` or a dict of such arrays
        :param is_warmup: whether learning has not started (``num_timesteps < learning_starts``)
        :param exploration_rate: that of the learner, for ``epsilon="schedule"``
        """
        config = self.config
        if config.use_sde and config.sde_sample_freq > 0 and self._n_steps % config.sde_sample_freq == 0:
            self._reset_sde_noise()
        self._n_steps += 1
        if is_warmup and not (config.use_sde and config.use_sde_at_warmup):
            actions = self._random_actions(self.n_envs)
        else:
            actions = self._policy_actions(
                observations, exploration_rate if config.epsilon == "schedule" else self._epsilon
            )
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

    def _policy_actions(self, observations: Any, epsilon: Any) -> NDArray[Any]:
        """Return the policy's actions, with random ones for some environments."""
        is_random = self._rng.random(self.n_envs) < epsilon
        if is_random.all():
            return self._random_actions(self.n_envs)
        actions = np.array(self.policy.predict(observations, deterministic=False)[0])  # a copy, which can be written to
        if is_random.any():
            actions[is_random] = self._random_actions(int(is_random.sum()))
        return actions

    def _random_actions(self, n: int) -> NDArray[Any]:
        return np.array([self.action_space.sample() for _ in range(n)])

    def _reset_sde_noise(self) -> None:
        self.policy.reset_noise(self.n_envs)  # type: ignore[operator]

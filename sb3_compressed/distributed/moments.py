"""``VecNormalize`` over several collectors: they send increments of moments, which the learner merges and broadcasts.

An increment has the moments of what one collector has seen since its last one, and nothing of what the learner
broadcast, so nothing counts twice. The learner merges increments into its own ``VecNormalize`` (Chan et al. 1979,
"Updating Formulae and a Pairwise Algorithm for Computing Sample Variances"). In exact arithmetic the result does not
depend on their order and equals the statistics of a single ``VecNormalize`` that has stepped all environments.

Collectors normalize observations with the statistics of the last broadcast only, without their own newer increments. So
all collectors with the same broadcast normalize equally, and so does the learner at that time. Actions before the first
increments are based on the statistics of the learner at the start, for a new ``VecNormalize`` mean 0 and variance 1.
Replay buffers contain observations and rewards as the environments returned them, as always in SB3.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

__all__ = ["CollectorNormalizer", "Moments", "MomentsIncrement", "NormalizationState", "merge", "normalization_state"]

#: Key of observations that are not a dict.
WHOLE_OBSERVATION = ""


@dataclass(frozen=True, eq=False)
class Moments:
    """Number, mean and variance of samples.

    :param count: how many there are
    :param mean: their mean, ``(*shape,)``
    :param var: their variance, ``(*shape,)``
    """

    count: float
    mean: NDArray[np.float64]
    var: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MomentsIncrement:
    """What a collector has seen since its last increment.

    :param observations: moments of the observations, by key (``""`` where observations are not a dict); empty if
        observations are not normalized
    :param returns: moments of the discounted returns, by which rewards are divided; ``None`` if there are none
    """

    observations: Mapping[str, Moments] = field(default_factory=dict)
    returns: Moments | None = None


@dataclass(frozen=True, eq=False)
class NormalizationState:
    """The statistics of a ``VecNormalize``, as the learner broadcasts them.

    :param observations: moments of the observations, by key (``""`` where observations are not a dict)
    :param returns: moments of the discounted returns
    :param training: whether the statistics are updated; otherwise collectors send empty increments
    """

    observations: Mapping[str, Moments]
    returns: Moments
    training: bool


class CollectorNormalizer:
    """Normalizes the observations of a collector and accumulates the moments of what it has seen.

    It takes the place of the ``VecNormalize`` around the environments, with raw observations and rewards of these.

    :param vec_normalize: the one of the learner, which can be sent to other processes; it is copied
    """

    def __init__(self, vec_normalize: VecNormalize) -> None:
        self._vec_normalize = _without_environment(vec_normalize)
        self._returns: NDArray[np.float64] | None = None
        self._start_increment()

    def load_state(self, state: NormalizationState) -> None:
        """Normalize with the statistics of a broadcast. What was accumulated remains.

        :raises ValueError: if they do not fit the observations; nothing is loaded then
        """
        statistics = _observation_statistics(self._vec_normalize)
        _check(state.observations, statistics, "broadcast")
        _check_moments(state.returns, self._vec_normalize.ret_rms, "returns of a broadcast")
        for key, moments in state.observations.items():
            _assign(statistics[key], moments)
        _assign(self._vec_normalize.ret_rms, state.returns)
        self._vec_normalize.training = state.training

    def reset(self, observations: Any) -> Any:
        """Accumulate the first observations after a reset of all environments; return them normalized.

        :param observations: raw ones, ``(n_envs, *obs_shape)`` or a dict of such arrays
        """
        self._returns = None
        self._add_observations(observations)
        return self.normalize(observations)

    def step(self, observations: Any, rewards: NDArray[Any], dones: NDArray[Any]) -> Any:
        """Accumulate a step of all environments; return the observations normalized.

        :param observations: raw ones after the step, of the next episodes where episodes have ended,
            ``(n_envs, *obs_shape)`` or a dict of such arrays
        :param rewards: raw ones, ``(n_envs,)``
        :param dones: whether each episode ended, ``(n_envs,)``
        """
        self._add_observations(observations)
        self._add_rewards(rewards, dones)
        return self.normalize(observations)

    def normalize(self, observations: Any) -> Any:
        """Return raw observations normalized with the statistics of the last broadcast."""
        return self._vec_normalize.normalize_obs(observations)

    def take_increment(self) -> MomentsIncrement:
        """Return the moments of everything since the last call, and start anew."""
        observations, returns = self._observations, self._discounted_returns
        self._start_increment()
        seen = {key: _moments(statistics) for key, statistics in observations.items() if statistics.count}
        return MomentsIncrement(seen, _moments(returns) if returns.count else None)

    def _start_increment(self) -> None:
        statistics = _observation_statistics(self._vec_normalize)
        # SB3's start with a count of 1e-4, which may count only once: in the statistics of the learner.
        self._observations = {key: RunningMeanStd(0.0, each.mean.shape) for key, each in statistics.items()}
        self._discounted_returns = RunningMeanStd(0.0)

    def _add_observations(self, observations: Any) -> None:
        if not self._vec_normalize.training:
            return
        for key, statistics in self._observations.items():
            statistics.update(observations[key] if isinstance(observations, dict) else observations)

    def _add_rewards(self, rewards: NDArray[Any], dones: NDArray[Any]) -> None:
        returns = np.zeros(len(rewards)) if self._returns is None else self._returns
        if self._vec_normalize.training:  # as in VecNormalize, even if rewards are not normalized
            returns = returns * self._vec_normalize.gamma + rewards
            self._discounted_returns.update(returns)
        self._returns = np.where(dones, 0.0, returns)


def normalization_state(vec_normalize: VecNormalize) -> NormalizationState:
    """Return what the learner broadcasts: a copy of its statistics."""
    statistics = _observation_statistics(vec_normalize)
    return NormalizationState(
        observations={key: _moments(each) for key, each in statistics.items()},
        returns=_moments(vec_normalize.ret_rms),
        training=vec_normalize.training,
    )


def merge(vec_normalize: VecNormalize, increment: MomentsIncrement) -> None:
    """Merge what a collector has seen into the statistics of the learner, unless these are not in training.

    Merge each increment once. Those that a collector took but could not send are lost, like its transitions.

    :raises ValueError: if the increment does not fit the observations, or is not finite; nothing is merged then
    """
    if not vec_normalize.training:
        return
    statistics = _observation_statistics(vec_normalize)
    unknown = sorted(increment.observations.keys() - statistics.keys())
    if unknown:
        raise ValueError(f"increment has moments of {unknown}, but the normalized keys are {sorted(statistics)}")
    _check(increment.observations, {key: statistics[key] for key in increment.observations}, "increment")
    if increment.returns is not None:
        _check_moments(increment.returns, vec_normalize.ret_rms, "returns of an increment")
        _update(vec_normalize.ret_rms, increment.returns)
    for key, moments in increment.observations.items():
        _update(statistics[key], moments)


def _observation_statistics(vec_normalize: VecNormalize) -> dict[str, RunningMeanStd]:
    """Return the statistics of the observations by key, none if they are not normalized."""
    if not vec_normalize.norm_obs:
        return {}
    statistics: Any = vec_normalize.obs_rms
    return statistics if isinstance(statistics, dict) else {WHOLE_OBSERVATION: statistics}


def _without_environment(vec_normalize: VecNormalize) -> VecNormalize:
    """Return a copy that only normalizes. It is not pickled, since SB3's cannot be twice without an environment."""
    of_environment = {"venv", "class_attributes", "returns"}
    state = {name: value for name, value in vars(vec_normalize).items() if name not in of_environment}
    copied = VecNormalize.__new__(type(vec_normalize))
    copied.__setstate__(copy.deepcopy(state))
    return copied


def _moments(statistics: RunningMeanStd) -> Moments:
    return Moments(float(statistics.count), copy.deepcopy(statistics.mean), copy.deepcopy(statistics.var))


def _assign(statistics: RunningMeanStd, moments: Moments) -> None:
    statistics.count = moments.count
    # Copies, so that a broadcast in shared memory can be freed.
    statistics.mean, statistics.var = np.array(moments.mean), np.array(moments.var)


def _update(statistics: RunningMeanStd, moments: Moments) -> None:
    if moments.count:
        statistics.update_from_moments(moments.mean, moments.var, moments.count)


def _check(found: Mapping[str, Moments], expected: Mapping[str, RunningMeanStd], what: str) -> None:
    if found.keys() != expected.keys():
        raise ValueError(f"{what} has moments of {sorted(found)}, but the normalized keys are {sorted(expected)}")
    for key, moments in found.items():
        _check_moments(moments, expected[key], f"observations{f'[{key!r}]' if key else ''} of the {what}")


def _check_moments(moments: Moments, expected: RunningMeanStd, what: str) -> None:
    mean, var = np.asarray(moments.mean), np.asarray(moments.var)
    shape = np.shape(expected.mean)
    if mean.shape != shape or var.shape != shape:
        raise ValueError(f"{what} must have moments of shape {shape}, got {mean.shape} and {var.shape}")
    if not (np.isfinite(moments.count) and np.isfinite(mean).all() and np.isfinite(var).all()):
        raise ValueError(f"{what} must be finite; check the environments with stable_baselines3's VecCheckNan")
    if moments.count < 0 or (var < 0).any():
        raise ValueError(f"{what} must have non-negative counts and variances, got {moments.count} and {var.min()}")

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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed.common.tree_map import leaves, tree_map

__all__ = ["CollectorNormalizer", "Moments", "merge"]


class Moments(NamedTuple):
    """Moments of observations and returns: what a collector has seen since its last increment, or all.

    :param observations: those of the observations, a dict for Dict spaces; ``{}`` if observations are not normalized
    :param returns: those of the discounted returns, by which rewards are divided
    """

    observations: Any
    returns: RunningMeanStd

    @classmethod
    def of(cls, vec_normalize: VecNormalize) -> Moments:
        """Return the statistics of a ``VecNormalize`` themselves, not copies."""
        return cls(vec_normalize.obs_rms if vec_normalize.norm_obs else {}, vec_normalize.ret_rms)


class CollectorNormalizer:
    """Normalizes the observations of a collector and accumulates the moments of what it has seen.

    It takes the place of the ``VecNormalize`` around the environments, with raw observations and rewards of these.

    :param vec_normalize: the one of the learner, which can be sent to other processes; it is not changed
    """

    def __init__(self, vec_normalize: VecNormalize) -> None:
        self._vec_normalize = VecNormalize.__new__(type(vec_normalize))  # SB3's cannot be copied without an environment
        vars(self._vec_normalize).update(vars(vec_normalize))
        self.load(Moments.of(vec_normalize))
        self._start_increment()

    def load(self, moments: Moments) -> None:
        """Normalize with the statistics of a broadcast. What was accumulated remains."""
        # Copied, so that a broadcast in shared memory can be freed.
        self._vec_normalize.obs_rms, self._vec_normalize.ret_rms = copy.deepcopy(moments)

    def reset(self, observations: Any) -> Any:
        """Accumulate the first observations after a reset of all environments; return them normalized.

        :param observations: raw ones, ``(n_envs, *obs_shape)`` or a dict of such arrays
        """
        self._returns = np.zeros(1)  # of all environments; in float64
        return self._seen(observations)

    def step(self, observations: Any, rewards: NDArray[Any], dones: NDArray[Any]) -> Any:
        """Accumulate a step of all environments; return the observations normalized.

        :param observations: raw ones after the step, of the next episodes where episodes have ended,
            ``(n_envs, *obs_shape)`` or a dict of such arrays
        :param rewards: raw ones, ``(n_envs,)``
        :param dones: whether each episode ended, ``(n_envs,)``
        """
        self._returns = self._returns * self._vec_normalize.gamma + rewards
        self._increment.returns.update(self._returns)  # as in VecNormalize, even if rewards are not normalized
        self._returns = np.where(dones, 0.0, self._returns)
        return self._seen(observations)

    def normalize(self, observations: Any) -> Any:
        """Return raw observations normalized with the statistics of the last broadcast."""
        return self._vec_normalize.normalize_obs(observations)

    def take_increment(self) -> Moments:
        """Return the moments of everything since the last call, and start anew."""
        increment = self._increment
        self._start_increment()
        return increment

    def _start_increment(self) -> None:
        statistics = Moments.of(self._vec_normalize).observations
        # SB3's start with a count of 1e-4, which may count only once: in the statistics of the learner.
        unseen = tree_map(lambda each: RunningMeanStd(0.0, each.mean.shape), statistics)
        self._increment = Moments(unseen, RunningMeanStd(0.0))

    def _seen(self, observations: Any) -> Any:
        """Accumulate observations, and return them normalized."""
        tree_map(lambda statistics, values: statistics.update(values), self._increment.observations, observations)
        return self.normalize(observations)


def merge(vec_normalize: VecNormalize, increment: Moments) -> None:
    """Merge what a collector has seen into the statistics of the learner, unless these are not in training.

    Merge each increment once. Those that a collector took but could not send are lost, like its transitions.
    """
    if not vec_normalize.training:
        return
    moments = Moments.of(vec_normalize)
    own, seen = ([*leaves(each.observations), each.returns] for each in (moments, increment))
    for statistics, each in zip(own, seen, strict=True):
        if each.count:
            statistics.combine(each)

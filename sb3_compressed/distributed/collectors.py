"""``Collectors``: a callback that lets remote processes collect the transitions of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.distributed.collector_group import TIMEOUT
from sb3_compressed.distributed.exploration import Exploration
from sb3_compressed.distributed.remote_rollouts import CollectorStatistics, RemoteRollouts, RolloutOptions

__all__ = ["Collectors"]


class Collectors(BaseCallback):
    """Lets remote processes collect the transitions of a training, as in Ape-X (https://arxiv.org/abs/1803.00933).

    The model needs a :class:`~sb3_compressed.distributed.DistributedReplayBuffer`. During ``learn``, the environment of
    the model is not stepped; ``num_timesteps``, callbacks, schedules and the logs of episodes count the transitions of
    the collectors.

    >>> import gymnasium as gym
    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed.distributed import Collectors, DistributedReplayBuffer
    >>> def make_env():
    ...     return gym.make("CartPole-v1")
    >>> model = DQN(
    ...     "MlpPolicy", make_env(), replay_buffer_class=DistributedReplayBuffer
    ... )  # doctest: +SKIP
    >>> model.learn(10_000, callback=Collectors(make_env, n_collectors=4))  # doctest: +SKIP

    Before each call of ``train``, the learner waits for ``gradient_steps * batch_size / samples_per_insert``
    transitions; fractions accumulate, and ``train_freq`` is ignored. Collectors may be ahead of it by what two calls of
    each collect. Before ``learning_starts``, actions are random and nothing is trained.
    Never more than ``total_timesteps`` transitions are counted; collectors of several environments may add a few more
    at the end, to complete a step. With ``gradient_steps=0``, a model fills its buffer without training, such as to
    record a dataset.

    Callbacks find ``infos`` and ``dones`` in their ``locals``, with the ends of episodes and otherwise empty, but no
    observations, actions or rewards. A callback that returns ``False`` and all exceptions end the collectors.

    These values are recorded with those of episodes, see ``log_interval`` of ``learn``:

    ====================================  ==========================================================================
    ``distributed/samples_per_insert``    how often a transition was sampled on average, from ``learning_starts`` on
    ``distributed/learner_waited``        seconds that the learner has waited for collectors
    ``distributed/restarts``              restarts of collectors and shards
    ``distributed/lost``                  transitions that these have lost, or that were dropped after a timeout
    ``distributed/transitions``           transitions in all shards
    ``distributed/memory_mb``             resident memory of the processes of the shards, in MB
    ====================================  ==========================================================================

    :param make_env: returns an environment, or several that are vectorized; it is called in each collector. They are
        wrapped as SB3 wraps the environment of a model, and cannot be normalized by ``VecNormalize``
    :param n_collectors: number of collectors
    :param samples_per_insert: how often a transition is sampled on average; ``None`` for no limit: then the learner
        only waits before ``learning_starts``
    :param lock_step: whether collectors collect the transitions of each rollout, and no others, while the learner
        waits, each time with the newest policy. With one collector and a buffer with ``prefetch=0``, a training is then
        reproducible from its seed
    :param exploration: probability of random actions of DQN and QR-DQN: ``"ladder"`` for a different one in each
        environment as in Ape-X, an :class:`~sb3_compressed.distributed.EpsilonLadder`, or a number. Other algorithms
        explore as without collectors
    :param weights_interval: number of gradient steps after which collectors receive the policy
    :param steps_per_call: number of steps after which a collector returns; segments of transitions are not longer
    :param timeout: seconds after which the learner raises ``TimeoutError`` if collectors were called and none has
        returned anything, such as when a shard has stopped. Choose more if ``steps_per_call`` steps take longer
    :param ray_options: options of the collectors' actors, by default ``num_cpus=1`` if there are as many, else 0
    :param verbose: unused, as all failures are logged by :mod:`logging`
    :raises ValueError: if a number is out of range
    :raises TypeError: if ``make_env`` is no function; at the begin of the training, if the model is not supported
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any] | VecEnv],
        n_collectors: int = 1,
        *,
        samples_per_insert: float | None = 8.0,
        lock_step: bool = False,
        exploration: Exploration = "ladder",
        weights_interval: int = 100,
        steps_per_call: int = 64,
        timeout: float = TIMEOUT,
        ray_options: Mapping[str, Any] | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if not callable(make_env):
            raise TypeError(f"make_env must be a function that returns an environment, got {make_env!r}")
        for name, value in (
            ("n_collectors", n_collectors), ("weights_interval", weights_interval), ("steps_per_call", steps_per_call),
        ):  # fmt: skip
            validate_integer(name, value, 1)
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if samples_per_insert is not None and not 0 < samples_per_insert < float("inf"):
            raise ValueError(f"samples_per_insert must be positive, or None for no limit, got {samples_per_insert!r}")
        if lock_step and samples_per_insert is None:
            raise ValueError("lock_step needs a limit of samples per insert, got samples_per_insert=None")
        self._options = RolloutOptions(
            make_env, n_collectors, samples_per_insert, lock_step, exploration, weights_interval,
            steps_per_call, timeout, dict(ray_options or {}),
        )  # fmt: skip
        self._rollouts: RemoteRollouts | None = None

    # -- training --------------------------------------------------------------------------------------------

    def _on_training_start(self) -> None:
        self._rollouts = RemoteRollouts(self.model, self._options)

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.close()

    def close(self) -> None:
        """End all collectors.

        ``learn`` does it, also after exceptions, except if an interrupt hits the few instructions between training and
        rollouts.
        """
        if self._rollouts is not None:
            self._rollouts.end()

    def statistics(self) -> CollectorStatistics:
        """Return what collectors have done during the last call of ``learn``.

        :raises ValueError: if there was none
        """
        if self._rollouts is None:
            raise ValueError("there are no statistics before learn() was called with this callback")
        return self._rollouts.statistics()

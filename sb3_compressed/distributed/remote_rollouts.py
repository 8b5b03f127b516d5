"""``RemoteRollouts``: ``collect_rollouts`` of SB3's off-policy algorithms with transitions of remote collectors.

The learner decides what collectors do. In each call of ``collect_rollouts`` it receives what has arrived, calls the
collectors that may go on, and waits if it has trained on more samples than the collected transitions allow. Transitions
are in the buffer when they arrive. They are counted as ``num_timesteps`` when the learner has waited for them, so
callbacks, schedules and logs progress in step with training.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn
from stable_baselines3.common.vec_env import VecEnv

from sb3_compressed.distributed.collector import CollectorSettings, CollectResult, EpisodeEnd
from sb3_compressed.distributed.collector_group import TIMEOUT, CollectorGroup, Member
from sb3_compressed.distributed.exploration import Exploration, ExplorationConfig
from sb3_compressed.distributed.policy_copy import policy_factory, policy_weights
from sb3_compressed.distributed.replay_buffer import DistributedReplayBuffer
from sb3_compressed.training.model_layers import ModelLayer, add_layer, layers_of, remove_layer

__all__ = ["CollectorStatistics", "RemoteRollouts", "RolloutOptions"]

#: Seconds after which a wait is counted, and it is verified that collectors return anything.
PATIENCE = 1.0
#: Number of calls that are made to a collector before the first one has returned.
MAX_IN_FLIGHT = 2


@dataclass(frozen=True)
class RolloutOptions:
    """How a model uses collectors, see :class:`.Collectors`."""

    make_env: Callable[[], gym.Env[Any, Any] | VecEnv]
    n_collectors: int = 1
    samples_per_insert: float | None = 8.0
    lock_step: bool = False
    exploration: Exploration = "ladder"
    weights_interval: int = 100
    steps_per_call: int = 64
    timeout: float = TIMEOUT
    ray_options: dict[str, Any] | None = None


class CollectorStatistics(NamedTuple):
    """What collectors have done during a call of ``learn``.

    :param n_collected: number of transitions that have arrived
    :param n_sampled: number of transitions that were sampled
    :param samples_per_insert: how often a transition was sampled on average, not counting those before
        ``learning_starts``; ``None`` until there are others
    :param n_lost: number of transitions that failures of collectors have lost
    :param n_restarts: how often collectors were restarted
    :param policy_version: number of the newest version of the policy
    :param learner_waited: seconds that the learner has waited for collectors
    """

    n_collected: int
    n_sampled: int
    samples_per_insert: float | None
    n_lost: int
    n_restarts: int
    policy_version: int
    learner_waited: float


class Arrivals:
    """Transitions that have arrived, and are not counted yet, with the ends of episodes among them."""

    def __init__(self) -> None:
        #: Number of transitions that have arrived.
        self.n_arrived = 0
        self._n_counted = 0
        self._episodes: deque[tuple[int, EpisodeEnd]] = deque()

    def __len__(self) -> int:
        return self.n_arrived - self._n_counted

    def add(self, result: CollectResult) -> None:
        """Add the transitions of a result."""
        self._episodes += ((self.n_arrived + episode.offset, episode) for episode in result.episodes)
        self.n_arrived += result.n_transitions

    def count(self, n: int) -> list[EpisodeEnd]:
        """Count the next transitions, and return the episodes that ended with them."""
        self._n_counted += n
        ended = []
        while self._episodes and self._episodes[0][0] < self._n_counted:
            ended.append(self._episodes.popleft()[1])
        return ended


class RemoteRollouts(ModelLayer):
    """Replaces ``collect_rollouts`` of a model during one call of ``learn``.

    Collectors are started by the first rollout. They are ended, and the methods of the model restored, by :meth:`end`,
    by any exception in a rollout or in ``train``, and at the latest by the next call of ``learn``.

    :param model: the model
    :param options: how it uses collectors
    :raises TypeError: if the model or its buffer is not supported
    :raises ValueError: if its settings are not
    """

    def __init__(self, model: Any, options: RolloutOptions) -> None:
        self._options = options
        self._buffer = _validated_buffer(model)
        self._model = model
        self._group: CollectorGroup | None = None
        #: Number of transitions that are collected before the first one is sampled.
        self._n_warmup = max(self._learning_starts - model.num_timesteps, 1)
        is_limited = options.samples_per_insert is not None and model.gradient_steps > 0
        #: Samples per insert, as it is written: 0.1 is 1/10; ``None`` for no limit.
        self._ratio = Fraction(str(options.samples_per_insert)) if is_limited else None
        #: Seconds that the learner has waited for collectors.
        self._waited = 0.0
        self._arrivals = Arrivals()
        #: How many transitions the learner has to wait for besides those of the present rollout.
        self._credit = Fraction(0)
        self._n_updates_published = -1
        self._buffer_before = self._buffer.statistics()
        self._exploration = ExplorationConfig.from_model(model, options.exploration)
        add_layer(model, self)

    @property
    def _n_sampled(self) -> int:
        """Number of transitions that were sampled in this call of ``learn``."""
        return self._buffer.n_sampled - self._buffer_before.n_sampled

    @property
    def _learning_starts(self) -> int:
        return int(np.ceil(self._model.learning_starts))  # users write 1e4, which SB3 accepts

    @property
    def _n_left(self) -> int:
        """How many transitions the training still lacks; users write ``learn(1e6)``, which SB3 accepts."""
        return int(np.ceil(self._model._total_timesteps - self._model.num_timesteps))

    def extend(self, base: type[Any]) -> type[Any]:
        """Return a subclass of an algorithm whose rollouts are remote."""
        rollouts = self

        class RemotelyCollected(base):  # type: ignore[misc]
            def collect_rollouts(
                self, env: VecEnv, callback: BaseCallback, *_: Any, log_interval: int | None = None, **__: Any
            ) -> RolloutReturn:
                with rollouts._ended_by_errors():
                    return rollouts._collect(callback, log_interval)

            def train(self, *args: Any, **kwargs: Any) -> None:
                with rollouts._ended_by_errors():
                    super().train(*args, **kwargs)

            def dump_logs(self) -> None:
                rollouts._record(self.logger)
                super().dump_logs()

            def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
                rollouts.end()  # an interrupted call of learn() has not
                return self._setup_learn(*args, **kwargs)  # of the class that the model has now

        return RemotelyCollected

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """End collectors if there is an exception: ``learn`` does not call ``on_training_end`` then."""
        try:
            yield
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End all collectors, and restore the methods of the model."""
        remove_layer(self._model, self)
        if self._group is not None:
            self._group.close()

    # -- rollouts --------------------------------------------------------------------------------------------

    def _collect(self, callback: BaseCallback, log_interval: int | None) -> RolloutReturn:
        """Wait for the transitions of a rollout, and count them as ``OffPolicyAlgorithm.collect_rollouts`` does."""
        model = self._model
        if self._group is None:
            self._start()
        model.policy.set_training_mode(False)
        callback.on_rollout_start()
        self._exchange(0)
        n_due = self._n_due()
        n_counted = n_episodes = 0
        while n_counted < n_due:
            n = min(model.n_envs, n_due - n_counted)
            self._wait_for(n, n_due - n_counted)
            model.num_timesteps += n
            n_counted += n
            episodes = self._arrivals.count(n)
            infos: list[dict[str, Any]] = [{} for _ in range(max(model.n_envs, len(episodes)))]
            dones = np.zeros(len(infos), dtype=bool)
            for position, episode in enumerate(episodes):
                infos[position], dones[position] = episode.info, episode.done
            callback.update_locals(
                {
                    "self": model, "infos": infos, "dones": dones, "num_collected_steps": n_counted // model.n_envs,
                    "num_collected_episodes": n_episodes, "learning_starts": self._learning_starts,
                }
            )  # fmt: skip
            if not callback.on_step():
                return RolloutReturn(n_counted, n_episodes, continue_training=False)
            model._update_info_buffer(infos, dones)
            model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
            model._on_step()
            for _ in range(int(dones.sum())):
                n_episodes += 1
                model._episode_num += 1
                if log_interval is not None and model._episode_num % log_interval == 0:
                    model.dump_logs()
        callback.on_rollout_end()
        return RolloutReturn(n_counted, n_episodes, continue_training=True)

    def _n_due(self) -> int:
        """Return the number of transitions of the next rollout: whole steps, unless they would be too many."""
        model, n_left = self._model, self._n_left
        n_envs, ratio = model.n_envs, self._ratio
        if model.gradient_steps == 0:
            self._credit += model.train_freq.frequency * n_envs
        elif ratio is not None:
            self._credit += model.gradient_steps * model.batch_size / ratio
        else:  # what has arrived, and before there is anything to train on, at least one step
            if len(self._arrivals) >= n_left:
                return n_left
            is_warmup = model.num_timesteps <= self._learning_starts
            self._credit = Fraction(max(len(self._arrivals), n_envs if is_warmup else 0))
        n_due: int = int(self._credit // n_envs) * n_envs
        self._credit -= n_due
        return min(n_due, n_left)

    def _wait_for(self, n: int, n_due: int) -> None:
        """Wait until a number of transitions have arrived.

        :param n_due: how many more the rollout needs
        """
        while len(self._arrivals) < n:
            begin = time.monotonic()
            self._exchange(n_due, timeout=PATIENCE)
            self._waited += time.monotonic() - begin

    # -- collectors ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the collectors."""
        options, model, buffer = self._options, self._model, self._buffer
        settings = CollectorSettings(
            options.make_env, buffer.observation_space, buffer.action_space, policy_factory(model.policy),
            self._exploration, options.n_collectors, model.seed,
        )  # fmt: skip
        self._group = CollectorGroup(settings, buffer, timeout=options.timeout, ray_options=options.ray_options)
        self._group.start()  # now that errors and Ctrl-C end them

    def _exchange(self, n_due: int, timeout: float = 0.0) -> None:
        """Call the collectors that may go on, and receive what has arrived.

        :param n_due: how many transitions the present rollout still needs
        :param timeout: seconds to wait for results
        """
        group = self._group
        assert group is not None
        self._call(group, n_due)
        for result in group.poll(timeout):
            self._arrivals.add(result)

    def _call(self, group: CollectorGroup, n_due: int) -> None:
        """Call the collectors that may go on."""
        options = self._options
        idle = group.idle(1 if options.lock_step else MAX_IN_FLIGHT)
        for position, member in enumerate(idle):
            n_expected = len(self._arrivals) + group.n_in_flight
            n_steps = min(options.steps_per_call, _steps(self._n_left - n_expected, group.n_envs))
            n_missing = n_due - n_expected
            if options.lock_step:  # what the rollout needs, divided among the collectors
                n_steps = min(n_steps, -(-_steps(n_missing, group.n_envs) // (len(idle) - position)))
            if n_steps <= 0:
                return
            # The learner may wait for more than it samples, so nothing is refused that it waits for.
            n_inserted = self._arrivals.n_arrived + group.n_in_flight + n_steps * group.n_envs
            if n_missing <= 0 and not options.lock_step and not self._is_allowed(n_inserted, group.n_envs):
                return
            self._submit(group, member, n_steps, self._learning_starts - self._model.num_timesteps - n_expected)

    def _is_allowed(self, n_inserted: int, n_envs: int) -> bool:
        """Return whether there may be so many inserts now, as Reverb's ``SampleToInsertRatio`` decides it.

        Before the first sample, there may be as many as the learner waits for. From then on, each sample allows
        ``1 / samples_per_insert`` more. Besides, collectors may be ahead by as much as all of them have in flight.
        """
        options, model = self._options, self._model
        if self._ratio is None:
            return True
        n_ahead = options.n_collectors * MAX_IN_FLIGHT * options.steps_per_call * n_envs
        n_due = model.gradient_steps * model.batch_size / self._ratio  # less could block both sides
        n_allowed: Fraction = self._n_warmup + max(n_ahead, n_due) + self._n_sampled / self._ratio
        return n_inserted <= n_allowed

    def _submit(self, group: CollectorGroup, member: Member, n_steps: int, n_random: int) -> None:
        """Call a collector, with the present policy if the last version of it is old.

        :param n_random: how many transitions are to be collected with random actions
        """
        model = self._model
        n_updates = model._n_updates - self._n_updates_published
        is_due = n_updates >= self._options.weights_interval or (self._options.lock_step and n_updates)
        if self._n_updates_published < 0 or is_due:
            group.publish(policy_weights(model.policy))
            self._n_updates_published = model._n_updates
        group.submit(member, n_steps, n_random_steps=min(_steps(n_random, group.n_envs), n_steps))

    # -- statistics ------------------------------------------------------------------------------------------

    def statistics(self) -> CollectorStatistics:
        """Return what collectors have done."""
        group, n_sampled = self._group, self._n_sampled
        n_counted = self._arrivals.n_arrived - self._n_warmup
        return CollectorStatistics(
            n_collected=self._arrivals.n_arrived,
            n_sampled=n_sampled,
            samples_per_insert=n_sampled / n_counted if n_counted > 0 else None,
            n_lost=0 if group is None else group.n_lost,
            n_restarts=0 if group is None else group.n_restarts,
            policy_version=0 if group is None else group.policy_version,
            learner_waited=self._waited,
        )

    def _record(self, log: Any) -> None:
        """Record values in SB3's logger."""
        own, of_buffer, before = self.statistics(), self._buffer.statistics(), self._buffer_before
        values = {
            "samples_per_insert": own.samples_per_insert,
            "learner_waited": own.learner_waited,
            "restarts": own.n_restarts + of_buffer.n_restarts - before.n_restarts,
            "lost": own.n_lost + of_buffer.n_lost - before.n_lost,
            "transitions": of_buffer.n_transitions,
            "memory_mb": of_buffer.memory_nbytes / 1e6,
        }
        for name, value in values.items():
            if value is not None:
                log.record(f"distributed/{name}", value)


def _steps(n_transitions: int, n_envs: int) -> int:
    """Return how many steps of all environments collect at least so many transitions."""
    return max(-(-n_transitions // n_envs), 0)


def _validated_buffer(model: Any) -> DistributedReplayBuffer:
    """Return the buffer of a model, whose rollouts can be remote.

    :raises TypeError: if the model or its buffer is not supported
    :raises ValueError: if its settings are not
    """
    if not isinstance(model, OffPolicyAlgorithm):
        raise TypeError(f"collectors need an off-policy algorithm such as DQN or SAC, got {type(model).__name__}")
    buffer = model.replay_buffer
    if not isinstance(buffer, DistributedReplayBuffer):
        raise TypeError(
            f"collectors add to shards, so the model needs a distributed buffer, got {type(buffer).__name__}: "
            "construct it with replay_buffer_class=DistributedReplayBuffer"
        )
    if model.get_vec_normalize_env() is not None:
        raise ValueError(
            "collectors do not support VecNormalize, whose statistics are those of one process: normalize in a wrapper "
            "of the environment, with fixed statistics"
        )
    if model.gradient_steps < 0:
        raise ValueError(
            f"collectors need a fixed number of gradient steps, got gradient_steps={model.gradient_steps}: the number "
            "of steps follows from it and from samples_per_insert, not the other way round"
        )
    if any(isinstance(layer, RemoteRollouts) for layer in layers_of(model)):
        raise ValueError("a model can have one Collectors callback; use n_collectors for more of them")
    return buffer

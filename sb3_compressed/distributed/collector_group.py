"""``CollectorGroup``: the collectors of a learner as actors of Ray, their calls in flight, and their restarts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import ray
from ray.exceptions import RayError, RayTaskError
from stable_baselines3.common.vec_env import VecEnv

from sb3_compressed import __version__
from sb3_compressed.distributed.collector import (
    Collector,
    CollectorNotPrepared,
    CollectorSettings,
    CollectResult,
    PolicyState,
)
from sb3_compressed.distributed.ray_session import connect, free_resources, new_actor
from sb3_compressed.distributed.replay_buffer import DistributedReplayBuffer
from sb3_compressed.distributed.writer import ReplayWriter

__all__ = ["TIMEOUT", "CollectorGroup", "Member"]

logger = logging.getLogger(__name__)

#: Seconds before a collector is prepared again after a failure; it doubles with each further one, up to the second.
PAUSES = 0.2, 5.0
#: After how many exceptions in a row, such as those of an environment, they are raised in the learner, and after how
#: many losses of the process of a collector that was prepared.
MAX_ERRORS, MAX_LOSSES = 3, 20
#: Seconds without a result of any collector after which it is an error.
TIMEOUT = 600.0
#: Seconds to wait for collectors to close their environments.
CLOSING_TIME = 5.0
#: For how many versions of the policy it is known when they were published.
N_VERSIONS = 1000
#: Seconds between warnings while no collector starts.
PATIENCE = 30.0


@dataclass
class Call:
    """A call in flight.

    :param reply: its result
    :param n_transitions: how many transitions it will collect, 0 while the collector is prepared
    """

    reply: Any
    n_transitions: int = 0


@dataclass
class Member:
    """A collector of a group.

    :param index: its number
    :param actor: its handle
    :param writer: what it writes with; each restart begins with a copy
    :param calls: in their order
    :param is_prepared: whether it can be called, as far as the learner knows
    :param retry_at: when it is prepared again after a failure, in seconds of ``time.monotonic``; ``None`` if it needs
        not
    :param n_restarts: how often it was prepared again
    :param n_errors: exceptions since its last result
    :param n_losses: losses of its process since then, when it was prepared
    :param n_failures: calls that have failed since then
    """

    index: int
    actor: Any
    writer: ReplayWriter | None = None
    calls: list[Call] = field(default_factory=list)
    is_prepared: bool = False
    retry_at: float | None = None
    n_restarts: int = 0
    n_errors: int = 0
    n_losses: int = 0
    n_failures: int = 0

    @property
    def n_in_flight(self) -> int:
        """Number of transitions of calls in flight."""
        return sum(call.n_transitions for call in self.calls)


class CollectorGroup:
    """Collectors as actors of Ray.

    The caller decides what they do: it calls :meth:`submit` for those that have few calls in flight, and
    :meth:`poll` for results. A collector whose process was lost is restarted by Ray, and prepared again here; what it
    had not returned is lost, counted and logged. None of them blocks the others.

    As a context, it ends all collectors.

    :param make_env: returns the environment of a collector, or several that are vectorized
    :param settings: what all collectors have in common
    :param buffer: receives the transitions
    :param timeout: seconds without a result of any collector after which it is an error
    :param ray_options: options of the actors, such as ``dict(num_cpus=1)``
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any] | VecEnv],
        settings: CollectorSettings,
        buffer: DistributedReplayBuffer,
        *,
        timeout: float = TIMEOUT,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._make_env, self._settings, self._buffer = make_env, settings, buffer
        #: Number of environments of each collector, 0 until :meth:`start`.
        self.n_envs = 0
        #: Number of transitions that failures have lost, or that were dropped since a shard did not answer.
        self.n_lost = 0
        #: How often collectors were prepared again after a failure.
        self.n_restarts = 0
        #: Number of the last version of the policy, and when each was published, in seconds of ``time.monotonic``.
        self.policy_version, self.published_at = 0, dict[int, float]()
        self._timeout = timeout
        #: When a collector last returned something, or was called while there were no other calls, in seconds of
        #: ``time.monotonic``.
        self._progress_at = time.monotonic()
        self._state: Any = None
        self._discarded: list[Any] = []
        connect()
        n_cpus = ray.cluster_resources().get("CPU", 0)  # type: ignore[no-untyped-call]
        defaults = {"num_cpus": int(n_cpus >= settings.n_collectors), "scheduling_strategy": "SPREAD"}
        self._options = {**defaults, **(ray_options or {})}
        self.members = [Member(index, new_actor(Collector, self._options)) for index in range(settings.n_collectors)]

    def __enter__(self) -> CollectorGroup:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- start and restarts ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Prepare all collectors, and wait for the first one.

        :raises TimeoutError: if none starts within the timeout, such as if no node has what ``ray_options`` request
        :raises Exception: what its preparation has raised, such as an exception of ``make_env``, a ``RuntimeError`` if
            its node has another version of this package, or a ``ValueError`` for environments with other spaces
        """
        for member in self.members:
            self._prepare(member)
        begin = time.monotonic()
        while not self.n_envs:
            self.poll(timeout=PATIENCE)
            waited = time.monotonic() - begin
            if not self.n_envs and waited > PATIENCE:
                logger.warning(
                    "no collector has started for %.0f s with ray_options=%s; of the cluster, %s are free",
                    waited, self._options, free_resources(),
                )  # fmt: skip

    def _prepare(self, member: Member) -> None:
        """Prepare a collector, at the start and after failures."""
        member.retry_at = None
        reply = member.actor.prepare.remote(
            __version__, self._make_env, self._settings, member.index, member.n_restarts
        )
        member.calls.append(Call(reply))

    def _prepared(self, member: Member, n_envs: int) -> None:
        """Connect a collector that was prepared."""
        if not self.n_envs:
            self.n_envs = n_envs
            for each in self.members:  # all of them, since each new writer changes the sizes of all rings
                name = f"collector-{each.index}" if n_envs == 1 else f"collector-{each.index}x{n_envs}"
                each.writer = self._buffer.writer(name, n_envs)
        if n_envs != self.n_envs:
            raise ValueError(f"make_env returned {n_envs} environments, and {self.n_envs} to another collector")
        member.actor.connect.remote(member.writer)
        member.is_prepared = True

    # -- calls -----------------------------------------------------------------------------------------------

    @property
    def n_in_flight(self) -> int:
        """Number of transitions of calls in flight."""
        return sum(member.n_in_flight for member in self.members)

    def idle(self, max_in_flight: int) -> list[Member]:
        """Return the collectors that can be called and have fewer calls in flight, those with the fewest first."""
        idle = [each for each in self.members if each.is_prepared and len(each.calls) < max_in_flight]
        return sorted(idle, key=lambda member: len(member.calls))

    def publish(self, state: PolicyState) -> int:
        """Use a version of the policy in the following calls, and return its number."""
        self._state = ray.put(state)
        self.policy_version += 1
        self.published_at[self.policy_version] = time.monotonic()
        self.published_at.pop(self.policy_version - N_VERSIONS, None)
        return self.policy_version

    def submit(
        self, member: Member, n_steps: int, *, n_random_steps: int = 0, exploration_rate: float | None = None
    ) -> None:
        """Call a collector.

        :param member: one that :meth:`idle` has returned
        :param n_steps: how often it steps its environments
        :param n_random_steps: how many of the steps have random actions
        :param exploration_rate: that of the learner
        """
        reply = member.actor.collect.remote(
            n_steps, self.policy_version, self._state, n_random_steps=n_random_steps, exploration_rate=exploration_rate
        )
        if not self.n_in_flight:
            self._progress_at = time.monotonic()
        member.calls.append(Call(reply, n_steps * self.n_envs))

    def poll(self, timeout: float | None = 0.0) -> list[tuple[Member, CollectResult]]:
        """Return the results that have arrived, each with its collector.

        :param timeout: seconds to wait for one; ``None`` to wait until it is an error
        :raises RuntimeError: if the environments of a collector fail, or its process is lost, repeatedly
        :raises TimeoutError: if none has returned anything for the timeout of the group
        """
        self._retry()
        self._forget_discarded()
        self._wait(self._timeout if timeout is None else min(timeout, self._timeout))
        results: list[tuple[Member, CollectResult]] = []
        members = self.members
        while replies := {member.calls[0].reply: member for member in members if member.calls}:
            ready, _ = ray.wait(list(replies), num_returns=len(replies), timeout=0)
            members = [replies[reply] for reply in ready]
            for member in members:
                result = self._receive(member)
                if result is not None:
                    results.append((member, result))
        self._require_progress()
        return results

    def _require_progress(self) -> None:
        """Raise if collectors were called, and none has returned anything for the timeout.

        :raises TimeoutError: with the shards that do not answer, since collectors wait for them
        """
        called = [member.index for member in self.members if member.calls]
        seconds = time.monotonic() - self._progress_at
        if called and seconds > self._timeout:
            silent = "".join(f"; shard {index} does not answer" for index in self._buffer.silent_shards())
            names = ", ".join(map(str, called))
            raise TimeoutError(f"none of the collectors {names} has returned anything for {seconds:.0f} s{silent}")

    def _wait(self, timeout: float) -> None:
        """Wait until a call has returned, or a collector can be prepared again."""
        retries = [member.retry_at for member in self.members if member.retry_at is not None]
        if retries:
            until_retry = max(min(retries) - time.monotonic(), 0.0)
            timeout = min(timeout, until_retry)
        replies = [member.calls[0].reply for member in self.members if member.calls]
        if replies:
            ray.wait(replies, timeout=timeout)
        elif retries and timeout:
            time.sleep(timeout)

    def _receive(self, member: Member) -> CollectResult | None:
        """Receive the result of the first call of a collector."""
        call = member.calls[0]
        try:
            result = ray.get(call.reply)
        except RayError as error:
            self._failed(member, error)
            return None
        del member.calls[0]
        self._progress_at = time.monotonic()
        if not isinstance(result, CollectResult):
            self._prepared(member, result)
            return None
        member.n_errors = member.n_losses = member.n_failures = 0
        self.n_lost += result.n_lost
        assert member.writer is not None
        self._buffer.record_statuses(member.writer.name, result.statuses)
        return result

    def _failed(self, member: Member, error: RayError) -> None:
        """Record that a call of a collector has raised an exception, or that its process was lost."""
        # Errors of calls are instances of their causes as well.
        is_exception = isinstance(error, RayTaskError) and not isinstance(error, CollectorNotPrepared)
        cause = error.cause if isinstance(error, RayTaskError) and isinstance(error.cause, Exception) else error
        if is_exception and not self.n_envs:  # most likely a mistake in the configuration
            raise cause from error
        member.n_failures += 1
        member.n_errors += is_exception
        member.n_losses += member.is_prepared and not is_exception
        if member.is_prepared:  # otherwise it is counted; while a process starts, further calls fail
            logger.warning(
                "collector %d failed and is restarted; up to %d transitions are lost: %s",
                member.index, member.n_in_flight, error if is_exception else type(error).__name__,
            )  # fmt: skip
            member.n_restarts += 1
            self.n_restarts += 1
        self._discard_calls(member)
        if member.n_errors >= MAX_ERRORS or member.n_losses >= MAX_LOSSES:
            raise RuntimeError(
                f"collector {member.index} failed {member.n_errors + member.n_losses} times in a row: {cause!r}"
            ) from error

    def _discard_calls(self, member: Member) -> None:
        """Discard the calls in flight of a collector, and prepare it again after a while."""
        self.n_lost += member.n_in_flight
        self._discarded += [call.reply for call in member.calls[1:]]
        member.calls.clear()
        member.is_prepared = False
        first, most = PAUSES
        member.retry_at = time.monotonic() + min(first * 2 ** min(member.n_failures - 1, 10), most)

    def _retry(self) -> None:
        """Prepare the collectors that have failed a while ago."""
        now = time.monotonic()
        for member in self.members:
            if member.retry_at is not None and member.retry_at <= now:
                self._prepare(member)

    def _forget_discarded(self) -> None:
        """Receive the errors of calls that were discarded, since Ray prints those that nobody has received."""
        if not self._discarded:
            return
        ready, self._discarded = ray.wait(self._discarded, num_returns=len(self._discarded), timeout=0)
        for reply in ready:
            with suppress(RayError):
                ray.get(reply)

    # -- end -------------------------------------------------------------------------------------------------

    def close(self, *, wait: bool = False) -> None:
        """End all collectors. What they have not sent is lost.

        :param wait: whether to give those without calls in flight a few seconds to close their environments
        """
        if not ray.is_initialized():  # it has ended them
            self.members = []
            return
        self._forget_discarded()
        if wait:
            replies = [each.actor.close.remote() for each in self.members if each.is_prepared and not each.calls]
            if replies:
                ray.wait(replies, num_returns=len(replies), timeout=CLOSING_TIME)
        for member in self.members:
            ray.kill(member.actor)
        self.members = []

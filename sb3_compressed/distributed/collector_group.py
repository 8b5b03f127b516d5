"""``CollectorGroup``: the collectors of a learner as actors of Ray, their calls in flight, and their restarts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from numpy.typing import NDArray
from ray.exceptions import RayError, RayTaskError

from sb3_compressed import __version__
from sb3_compressed.distributed.collector import Collector, CollectorSettings, CollectResult
from sb3_compressed.distributed.ray_session import new_actor
from sb3_compressed.distributed.replay_buffer import DistributedReplayBuffer
from sb3_compressed.distributed.writer import ReplayWriter
from sb3_compressed.errors import ShardUnavailable

__all__ = ["TIMEOUT", "CollectorGroup", "Member"]

logger = logging.getLogger(__name__)

#: After how many failures of a collector in a row, of its environments or its process, they are raised in the learner.
MAX_FAILURES = 5
#: Seconds without a result of any collector after which it is an error.
TIMEOUT = 600.0
#: Seconds to wait for collectors to close their environments.
CLOSING_TIME = 5.0


@dataclass
class Call:
    """A call in flight.

    :param reply: its result
    :param n_transitions: how many transitions it will collect, 0 if it prepares the collector
    """

    reply: Any
    n_transitions: int = 0


@dataclass
class Member:
    """A collector of a group.

    :param index: its number
    :param actor: its handle, which is another one after its process was lost
    :param writer: what it writes with; each restart begins with a copy
    :param calls: in their order
    :param is_prepared: whether it can be called
    :param n_restarts: how often it was prepared again
    :param n_failures: how often it has failed since its last result
    """

    index: int
    actor: Any
    writer: ReplayWriter | None = None
    calls: list[Call] = field(default_factory=list)
    is_prepared: bool = False
    n_restarts: int = 0
    n_failures: int = 0

    @property
    def n_in_flight(self) -> int:
        """Number of transitions of calls in flight."""
        return sum(call.n_transitions for call in self.calls)


class CollectorGroup:
    """Collectors as actors of Ray.

    The caller decides what they do: it calls :meth:`submit` for those that have few calls in flight, and
    :meth:`poll` for results. If an environment fails, its collector is prepared again; if a process was lost, another
    one takes its place. What it had not returned is lost, counted and logged. None of them blocks the others.

    :param settings: what all collectors have in common
    :param buffer: receives the transitions
    :param timeout: seconds without a result of any collector after which it is an error
    :param ray_options: options of the actors, such as ``dict(num_cpus=1)``
    """

    def __init__(
        self,
        settings: CollectorSettings,
        buffer: DistributedReplayBuffer,
        *,
        timeout: float = TIMEOUT,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings, self._buffer = settings, buffer
        #: Number of environments of each collector, 0 until one is prepared.
        self.n_envs = 0
        #: Number of transitions that failures have lost.
        self.n_lost = 0
        #: How often collectors were prepared again after a failure.
        self.n_restarts = 0
        #: Number of the last version of the policy.
        self.policy_version = 0
        self._timeout = timeout
        #: When a collector last returned something, or was called while there were no other calls, in seconds of
        #: ``time.monotonic``.
        self._progress_at = time.monotonic()
        self._weights: Any = None
        n_cpus = ray.cluster_resources().get("CPU", 0)  # type: ignore[no-untyped-call]
        defaults = {"num_cpus": int(n_cpus >= settings.n_collectors), "scheduling_strategy": "SPREAD"}
        self._options = {**defaults, **(ray_options or {}), "max_restarts": 0}
        self.members = [Member(index, self._new_actor()) for index in range(settings.n_collectors)]

    def _new_actor(self) -> Any:
        return new_actor(Collector, self._options)

    # -- start and restarts ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Prepare all collectors; :meth:`poll` receives what goes wrong."""
        for member in self.members:
            self._prepare(member)

    def _prepare(self, member: Member) -> None:
        """Prepare a collector, at the start and after failures."""
        member.is_prepared = False
        reply = member.actor.prepare.remote(__version__, self._settings, member.index, member.n_restarts)
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

    def publish(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Use these weights of the policy in the following calls."""
        self._weights = ray.put(weights)
        self.policy_version += 1

    def submit(self, member: Member, n_steps: int, *, n_random_steps: int = 0) -> None:
        """Call a collector.

        :param member: one that :meth:`idle` has returned
        :param n_steps: how often it steps its environments
        :param n_random_steps: how many of the steps have random actions
        """
        reply = member.actor.collect.remote(n_steps, self.policy_version, self._weights, n_random_steps=n_random_steps)
        if not self.n_in_flight:
            self._progress_at = time.monotonic()
        member.calls.append(Call(reply, n_steps * self.n_envs))

    def poll(self, timeout: float = 0.0) -> list[CollectResult]:
        """Return the results that have arrived.

        :param timeout: seconds to wait for one
        :raises RuntimeError: if the environments of a collector fail, or its process is lost, repeatedly; if its node
            has another version of this package
        :raises ShardUnavailable: if Ray does not restart a shard that has ended
        :raises TimeoutError: if none has returned anything for the timeout of the group, such as if no node has what
            ``ray_options`` request
        :raises Exception: what the first preparation has raised, such as an exception of ``make_env``
        """
        replies = [member.calls[0].reply for member in self.members if member.calls]
        if replies:
            ray.wait(replies, timeout=min(timeout, self._timeout))
        results: list[CollectResult] = []
        members = self.members
        while heads := {member.calls[0].reply: member for member in members if member.calls}:
            ready, _ = ray.wait(list(heads), num_returns=len(heads), timeout=0)
            members = [heads[reply] for reply in ready]
            for member in members:
                result = self._receive(member)
                if result is not None:
                    results.append(result)
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
            raise TimeoutError(
                f"none of the collectors {names}, with ray_options={self._options}, has returned anything for "
                f"{seconds:.0f} s{silent}"
            )

    def _receive(self, member: Member) -> CollectResult | None:
        """Receive the result of the first call of a collector."""
        call = member.calls.pop(0)
        try:
            result = ray.get(call.reply)
        except RayError as error:
            self._failed(member, call, error)
            return None
        self._progress_at = time.monotonic()
        if not isinstance(result, CollectResult):
            self._prepared(member, result)
            return None
        member.n_failures = 0
        assert member.writer is not None
        self._buffer.record_status(member.writer.name, result.status)
        return result

    def _failed(self, member: Member, call: Call, error: RayError) -> None:
        """Record that a call of a collector has raised an exception, or that its process was lost."""
        self.n_lost += call.n_transitions
        if call.n_transitions and not member.is_prepared:
            return  # it was made before the collector has failed
        is_exception = isinstance(error, RayTaskError)
        cause = error.cause if isinstance(error, RayTaskError) and isinstance(error.cause, Exception) else error
        # A mistake in the configuration, most likely, or a shard that no collector can write to any more.
        if (is_exception and not self.n_envs) or isinstance(cause, ShardUnavailable):
            raise cause from error
        logger.warning(
            "collector %d failed and is restarted; up to %d transitions are lost: %s",
            member.index, call.n_transitions + member.n_in_flight, error if is_exception else type(error).__name__,
        )  # fmt: skip
        member.n_restarts += 1
        self.n_restarts += 1
        member.n_failures += 1
        if member.n_failures >= MAX_FAILURES:
            raise RuntimeError(
                f"collector {member.index} failed {member.n_failures} times in a row: {cause!r}"
            ) from error
        if not is_exception:
            ray.kill(member.actor)
            member.actor = self._new_actor()
        self._prepare(member)

    # -- end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all collectors; those without calls in flight have a few seconds to close their environments."""
        if not ray.is_initialized():  # it has ended them
            self.members = []
            return
        if replies := [each.actor.close.remote() for each in self.members if each.is_prepared and not each.calls]:
            ray.wait(replies, num_returns=len(replies), timeout=CLOSING_TIME)
        for member in self.members:
            ray.kill(member.actor)
        self.members = []

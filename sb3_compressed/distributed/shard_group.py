"""``ShardGroup``: the shards of a distributed buffer, and the newest state of each."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayTaskError

from sb3_compressed import __version__
from sb3_compressed.distributed.checkpoint_manifest import SavedRing
from sb3_compressed.distributed.ray_session import (
    ACTOR_FAILURES,
    free_resources,
    new_actor,
    require_restart,
)
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.shard import Shard, ShardStatus
from sb3_compressed.errors import ShardTimeout, ShardUnavailable, StorageError
from sb3_compressed.persistence.buffer_storage import StorageMode

__all__ = ["MAX_SHARDS", "STORAGE_MODES", "ShardGroup", "ShardView"]

logger = logging.getLogger(__name__)

#: What can be done with shards in a folder.
STORAGE_MODES = ("create", "resume", "overwrite")
#: Numbers of transitions have room for so many shards, also if a mix of up to eight buffers multiplies them.
MAX_SHARDS = 1 << 7
#: Seconds between attempts to reach a shard that is being restarted.
PAUSE = 0.2
#: How the names of the folders of shards begin.
FOLDER = "shard-"
#: Seconds to wait for the processes of shards, which import much.
START_TIME = 120.0
#: Seconds for which calls of all shards are repeated.
PATIENCE = 120.0


@dataclass
class ShardView:
    """A shard as the learner knows it.

    :param actor: its handle
    :param statuses: the newest state of each of its processes that is known; the last one is the present process
    :param since: when the present process was found, in seconds of ``time.monotonic``
    :param is_answering: whether the last request was answered, in time
    :param probe: a request for its state
    :param probed_at: when that was made, in seconds of ``time.monotonic``
    """

    actor: Any
    statuses: dict[str, ShardStatus] = field(default_factory=dict)
    since: float = 0.0
    is_answering: bool = True
    probe: Any = None
    probed_at: float = 0.0

    @property
    def status(self) -> ShardStatus | None:
        """The newest state of the present process, ``None`` until it has answered."""
        return next(reversed(self.statuses.values()), None)

    @property
    def n_restarts(self) -> int:
        """How often it was restarted."""
        return max(len(self.statuses) - 1, 0)

    @property
    def n_lost(self) -> int:
        """Number of transitions that restarts have lost."""
        return sum(max(ended.n_transitions - new.n_restored, 0) for ended, new in pairwise(self.statuses.values()))


class ShardGroup:
    """The shards of a distributed buffer.

    :param n_shards: number of shards
    :param folder: to store them in, ``None`` for memory
    :param mode: what to do if it contains shards
    :param ray_options: options of their actors
    :param timeout: seconds after which a shard that does not answer is late
    :param spec: how their rings are constructed
    :param n_rows: number of rows of rings that :meth:`resize` has not named
    :param seed: of their random numbers
    :raises ShardTimeout: if a shard does not start or answer
    :raises StorageError: if the folder contains more shards, or shards that are not to be continued
    """

    def __init__(
        self, n_shards: int, folder: Path | None, mode: StorageMode, ray_options: Mapping[str, Any], timeout: float,
        spec: RingSpec, n_rows: int, seed: int,
    ) -> None:  # fmt: skip
        #: Number of rows of each ring.
        self.rows: dict[str, int] = {}
        self._timeout = timeout
        if folder is not None:
            _require_no_more_shards(folder, n_shards)
        run = uuid.uuid4().hex
        self.shards = [
            ShardView(
                new_actor(
                    Shard, {"scheduling_strategy": "SPREAD", **ray_options}, spec, n_rows,
                    None if folder is None else folder / f"{FOLDER}{index}", run, mode, seed + index,
                    __version__,
                )
            )
            for index in range(n_shards)
        ]  # fmt: skip
        try:
            self._wait_for_start(ray_options)
            self.refresh_all()  # which raises the errors of their constructors
        except BaseException:
            for view in self.shards:
                ray.kill(view.actor)
            raise

    def _wait_for_start(self, options: Mapping[str, Any]) -> None:
        """Wait until the processes of all shards have begun.

        :raises ShardTimeout: if they do not begin for minutes, such as if no node has the resources that they request
        """
        pings = [view.actor.ping.remote() for view in self.shards]
        if missing := ray.wait(pings, num_returns=len(pings), timeout=START_TIME)[1]:
            raise ShardTimeout(
                f"{len(missing)} of {len(pings)} shards did not start in {START_TIME:g} s with "
                f"ray_options={dict(options)}; of the cluster, {free_resources()} are free"
            )

    def update(self, view: ShardView, status: ShardStatus, requested_at: float = 0.0) -> None:
        """Record the state in a reply, unless a newer one is known.

        Replies of an earlier process may arrive after those of a later one, and those to writers are older than what is
        known.

        :param requested_at: when the reply was requested; 0 if that is not known, for replies to writers
        """
        known, previous = view.statuses.get(status.incarnation), view.status
        if known is None or status.number > known.number:
            view.statuses[status.incarnation] = status
        if previous is None or previous.incarnation == status.incarnation:
            return
        if known is not None and requested_at <= view.since:
            return
        view.statuses[status.incarnation] = view.statuses.pop(status.incarnation)  # the last one
        view.since = time.monotonic()
        view.actor.resize.remote(self.rows)  # its constructor sets default sizes
        logger.warning(
            "shard %d was restarted; restarts have lost %d of its transitions", self.shards.index(view), view.n_lost
        )

    def exclude(self, view: ShardView, error: Exception | None = None) -> None:
        """Make no requests to a shard that has failed, or without an error is late, until it answers again.

        :raises ShardUnavailable: if Ray does not restart it: a part of the transitions is lost for good
        """
        if error is not None:
            require_restart(error, f"shard {self.shards.index(view)}")
        if view.is_answering:
            reason = (
                "is late; batches are sampled from the others" if error is None else f"failed: {type(error).__name__}"
            )
            logger.warning("shard %d %s", self.shards.index(view), reason)
            view.is_answering = False
            self.request_status(view)

    def request_status(self, view: ShardView) -> None:
        """Request the state of a shard, unless it was requested; :meth:`poll` receives it."""
        if view.probe is None:
            view.probe = view.actor.status.remote()
            view.probed_at = time.monotonic()

    def refresh(self, timeout: float) -> None:
        """Request the state of all shards, and wait until they have answered.

        :param timeout: seconds after which it returns in any case
        """
        for view in self.shards:
            self.request_status(view)
        self.poll(timeout)

    def poll(self, timeout: float = 0.0) -> None:
        """Receive the states that were requested.

        :param timeout: seconds to wait for them
        :raises ShardUnavailable: if Ray does not restart a shard that has ended
        """
        waiting = [view for view in self.shards if view.probe is not None]
        if not waiting:
            return
        ready, _ = ray.wait([view.probe for view in waiting], timeout=timeout, num_returns=len(waiting))
        has_failed = False
        for view in waiting:
            if view.probe not in ready:
                continue
            try:
                status = ray.get(view.probe)
            except ACTOR_FAILURES as error:
                has_failed, view.probe = True, None
                self.exclude(view, error)
                self.request_status(view)
            else:
                self._answered(view, status, view.probed_at)
        if has_failed and timeout:
            time.sleep(min(PAUSE, timeout))

    def _answered(self, view: ShardView, status: ShardStatus, requested_at: float) -> None:
        view.probe, view.is_answering = None, True
        self.update(view, status, requested_at)

    def refresh_all(self) -> None:
        """Wait for the state of all shards."""
        requested_at = time.monotonic()
        for view, status in zip(self.shards, self.call("status"), strict=True):
            self._answered(view, status, requested_at)

    def resize(self, rows: Mapping[str, int]) -> None:
        """Change the number of rows of rings, see :meth:`.Shard.resize`, and wait until that is done."""
        self.rows = dict(rows)
        self.call("resize", self.rows)

    def request_resize(self, rows: Mapping[str, int]) -> None:
        """Change the number of rows of rings, see :meth:`.Shard.resize`, without waiting for it."""
        self.rows = dict(rows)
        for view in self.shards:
            view.actor.resize.remote(self.rows)

    @property
    def masses(self) -> NDArray[np.float64]:
        """What each shard contributes to batches, ``(n_shards,)``: 0 if it does not answer."""
        return np.array([view.status.mass if view.status and view.is_answering else 0.0 for view in self.shards])

    @property
    def n_transitions(self) -> int:
        """Number of transitions in all shards, as far as the learner knows."""
        return sum(view.status.n_transitions for view in self.shards if view.status is not None)

    @property
    def n_inserted(self) -> int:
        """Number of transitions that all shards have inserted, as far as the learner knows."""
        return sum(status.n_inserted for view in self.shards for status in view.statuses.values())

    @property
    def n_inserted_by(self) -> Counter[str]:
        """Number of transitions that each writer has inserted, as far as the learner knows."""
        counts = (Counter(status.n_inserted_by) for view in self.shards for status in view.statuses.values())
        return sum(counts, Counter[str]())

    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all shards, and return the results.

        A shard that fails is called again when it was restarted.

        :raises ShardTimeout: if a shard does not answer
        :raises ShardUnavailable: if one fails, for minutes, or is not restarted
        """
        return self.call_each(method, [args] * len(self.shards))

    def call_each(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of all shards as :meth:`call` does.

        A call may take longer than the timeout if its shard answers pings meanwhile.

        :param args: its arguments for each shard
        :raises Exception: what the method has raised in a shard
        """
        deadline = time.monotonic() + PATIENCE
        results: dict[int, Any] = {}
        while missing := [index for index in range(len(self.shards)) if index not in results]:
            replies = {index: getattr(self.shards[index].actor, method).remote(*args[index]) for index in missing}
            late = self._wait(replies)
            received = {index: _received(reply) for index, reply in replies.items() if index not in late}
            results |= {index: result for index, (result, error) in received.items() if error is None}
            failed = {index: error for index, (_, error) in received.items() if error is not None}
            for index, error in failed.items():
                if isinstance(error, RayTaskError):
                    _raise_cause(error)
                require_restart(error, f"shard {index}")
            if late:
                names = ", ".join(f"shard {index}" for index in late)
                raise ShardTimeout(f"{names} did not answer {method}() for {self._timeout:g} s")
            if failed and time.monotonic() > deadline:
                index, cause = next(iter(failed.items()))
                raise ShardUnavailable(f"shard {index} failed in {method}(): {type(cause).__name__}") from cause
            if failed:
                time.sleep(PAUSE)
        return [results[index] for index in range(len(self.shards))]

    def save_checkpoint(self, folder: Path, cut: Path) -> dict[str, SavedRing]:
        """Save all rings, see :meth:`.Shard.save_checkpoint`.

        :return: the rings of all shards by their writers
        :raises ShardTimeout: if a shard does not answer
        :raises ShardUnavailable: if one fails, or was restarted since the last state that is known
        """
        args = [(folder, cut, view.status.incarnation if view.status else "") for view in self.shards]
        return dict(ChainMap(*self.call_each("save_checkpoint", args)))

    def _wait(self, replies: Mapping[int, Any]) -> list[int]:
        """Wait for the replies of shards, and return the shards that do not answer for the timeout.

        A call may take longer than that as long as its shard answers pings meanwhile.

        :param replies: the reference to the result of each shard
        """
        late: list[int] = []
        pings: dict[int, Any] = {}
        pending = dict(replies)
        while pending:
            ray.wait([*pending.values()], num_returns=len(pending), timeout=self._timeout / 2)
            expected = [*pending.values(), *pings.values()]
            answers = {*ray.wait(expected, num_returns=len(expected), timeout=0)[0]}
            pending = {index: reply for index, reply in pending.items() if reply not in answers}
            new_late = [index for index in pending if index in pings and pings[index] not in answers]
            for index in new_late:
                self.exclude(self.shards[index])
                del pending[index]
            late += new_late
            pings = {index: self.shards[index].actor.ping.remote() for index in pending}
        return sorted(late)

    def close(self) -> None:
        """Flush the folders, and end all shards; those that do not answer are ended in any case."""
        replies = {index: view.actor.close.remote() for index, view in enumerate(self.shards)}
        try:
            late = self._wait(replies)
            for index, reply in replies.items():
                if index in late:
                    logger.warning("shard %d does not answer, so it is ended", index)
                    continue
                with contextlib.suppress(*ACTOR_FAILURES):  # its folder contains everything
                    ray.get(reply)
        finally:
            for view in self.shards:
                ray.kill(view.actor)


def _require_no_more_shards(folder: Path, n_shards: int) -> None:
    """Raise if a folder contains the folders of more shards, whose transitions would be left out.

    :raises StorageError: if it does
    """
    names = (path.name.removeprefix(FOLDER) for path in folder.glob(f"{FOLDER}*") if path.is_dir())
    n_found = max((int(name) + 1 for name in names if name.isdecimal()), default=0)
    if n_found > n_shards:
        raise StorageError(
            f"{folder} contains {n_found} shards, got n_shards={n_shards}: pass n_shards={n_found}, or another folder"
        )


def _received(reply: Any) -> tuple[Any, Exception | None]:
    """Return the result of a call, and the error if there is one; Ray prints errors that nobody has received."""
    try:
        return ray.get(reply), None
    except (RayTaskError, *ACTOR_FAILURES) as error:
        return None, error


def _raise_cause(error: RayTaskError) -> NoReturn:
    """Raise what a shard has raised; Ray's own error would be of another class, with the traceback as its message."""
    cause = error.cause
    if isinstance(cause, StorageError):  # whose message is complete
        raise cause from None
    raise (cause if isinstance(cause, Exception) else error) from error

"""``ReplayWriter``: adds the transitions of one vectorized environment to a shard, from any process."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray

from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.codecs import Codec
from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.distributed.encoded_rows import block_of
from sb3_compressed.distributed.ray_session import ACTOR_FAILURES, require_restart
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.shard import InsertReply, Segment, ShardStatus
from sb3_compressed.errors import MissingCodec, ShardTimeout

__all__ = ["ReplayWriter"]

logger = logging.getLogger(__name__)

#: Seconds between attempts to reach a shard that is being restarted.
PAUSE = 0.2


@dataclass(eq=False)
class Call:
    """A call of the shard whose reply has not arrived.

    :param n_rows: number of rows of its segment
    :param segment: ``None`` to open the ring
    :param codecs: the codecs of their payloads
    """

    n_rows: int = 0
    segment: Segment | None = None
    codecs: dict[bytes, Codec] = field(default_factory=dict)
    #: The reference to its result, ``None`` if it must be made again.
    reply: Any = None


class ReplayWriter:
    """Encodes the transitions of one vectorized environment and sends them to its ring in a shard.

    Transitions are sent in segments of several rows, which shards acknowledge; they can be sampled from then on. If a
    shard is restarted, what it has not stored is sent again.

    A writer can be sent to another process before its first :meth:`add`.

    :param shard: the actor
    :param spec: how the buffers are constructed
    :param name: names the ring; one writer at a time has it
    :param n_envs: number of environments
    :param segment_length: rows of a segment; fewer for small rings
    :param timeout: seconds after which rows are dropped, counted and logged if a shard does not acknowledge earlier
        ones, and after which :meth:`open` raises; ``None`` to wait
    :param shard_name: names the shard in messages
    :param num_threads: as for buffers; with 1, payloads are the same in each run
    """

    def __init__(
        self,
        shard: Any,
        spec: RingSpec,
        name: str,
        n_envs: int,
        segment_length: int,
        *,
        timeout: float | None = None,
        num_threads: int | None = 1,
        shard_name: str = "the shard",
    ) -> None:
        self.shard_name = shard_name
        self.name, self.n_envs = name, n_envs
        self._shard, self._spec, self._segment_length = shard, spec, segment_length
        self._timeout, self._num_threads = timeout, num_threads
        #: Number of transitions that were acknowledged.
        self.n_acknowledged = 0
        #: Number of transitions that were dropped after a timeout.
        self.n_lost = 0
        #: The rows that were not sent yet, ``None`` until the ring is open.
        self._staging: CompressedReplay | None = None
        #: The call whose reply has not arrived.
        self._call: Call | None = None
        #: Whether the last rows were lost, so that episodes do not continue after them.
        self._has_gap = False
        #: Whether the shard has not answered in time, so that nothing waits for it until it answers.
        self._is_late = False
        #: The newest state of the shard in a reply, ``None`` before the first one.
        self.status: ShardStatus | None = None

    def open(self) -> None:
        """Open the ring, unless it is open; :meth:`add` does this, too.

        :raises ShardTimeout: if the shard does not answer within the timeout
        :raises ShardUnavailable: if it has ended, and Ray does not restart it
        """
        if self._staging is not None:
            return
        self._session, self._sent = uuid.uuid4().hex, set[bytes]()
        self._call = Call()
        try:
            if not self._wait(self._timeout):
                raise ShardTimeout(f"{self.shard_name} did not open the ring of {self.name!r} for {self._timeout:g} s")
        finally:
            self._call = None
        n_rows = max(1, min(self._segment_length, self._position.n_rows // 4))
        self._staging = self._spec.staging(n_rows, self.n_envs, self._num_threads)

    def __getstate__(self) -> dict[str, Any]:
        if self._staging is not None:
            raise TypeError(f"the writer {self.name!r} belongs to the process that has used it")
        return vars(self)

    @property
    def n_staged(self) -> int:
        """Number of transitions that were added and not acknowledged yet."""
        n_rows = 0 if self._staging is None else self._staging.size()
        return (n_rows + (0 if self._call is None else self._call.n_rows)) * self.n_envs

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of every environment, as ``add`` of replay buffers does.

        :raises ValueError: if an argument does not fit; nothing is added then
        :raises OSError: if the shard could not write earlier transitions; they are sent again with the next ones
        :raises ShardTimeout: if the shard does not open the ring within the timeout; nothing is added then
        :raises ShardUnavailable: if it has ended, and Ray does not restart it
        :raises WriterReplaced: if another writer of the same name took over the ring
        """
        self.make_room()
        staging = self._staging
        assert staging is not None
        staging.add(obs, next_obs, action, reward, done, infos)
        if staging.full:
            self._send(staging)

    def make_room(self) -> None:
        """Send the rows that were added if there is no room for another one, since they could not be sent before.

        :raises OSError: as :meth:`add` does, and so are the other errors
        """
        self.open()
        assert self._staging is not None
        if self._staging.full:
            self._send(self._staging)

    def flush(self, timeout: float | None = None) -> None:
        """Send what was added, and wait until it is acknowledged.

        :param timeout: seconds after which it returns in any case; ``None`` to wait
        :raises OSError: if the shard could not write them; they are sent again with the next ones
        :raises ShardUnavailable: if it has ended, and Ray does not restart it
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._staging is not None and self._staging.size() and self._wait(timeout):
            self._pack(self._staging)
        self._wait(_seconds_until(deadline))

    def poll(self) -> None:
        """Receive an acknowledgement that has arrived, without waiting.

        :raises OSError: as :meth:`flush` does
        """
        self._wait(0)

    # -- segments --------------------------------------------------------------------------------------------

    def _send(self, staging: CompressedReplay) -> None:
        """Send the rows that were added, when the segment before is acknowledged."""
        if self._wait(0 if self._is_late else self._timeout):
            self._pack(staging)
            return
        if not self._is_late:
            logger.warning(
                "%s: %s did not answer for %s s; transitions are dropped until it does",
                self.name, self.shard_name, self._timeout,
            )  # fmt: skip
        with deferred_interrupts():
            self._is_late = self._has_gap = True
            self.n_lost += staging.size() * self.n_envs
            staging.reset()

    def _pack(self, staging: CompressedReplay) -> None:
        """Send the rows that were added; no segment is on its way."""
        n_rows = staging.size()
        block = block_of(staging, np.arange(n_rows))
        segment = Segment(self._position, block.pack(), self._has_gap)
        with deferred_interrupts():  # so that no row is sent twice
            self._call, self._has_gap = Call(n_rows, segment, block.codecs), False
            staging.reset()
            self._submit(self._call)

    def _submit(self, call: Call) -> None:
        name, session, n_envs = self.name, self._session, self.n_envs
        if call.segment is None:
            call.reply = self._shard.open_ring.remote(name, session, n_envs)
            return
        new = {digest: codec for digest, codec in call.codecs.items() if digest not in self._sent}
        self._sent |= new.keys()
        call.reply = self._shard.insert.remote(name, session, n_envs, call.segment, new)

    def _wait(self, timeout: float | None) -> bool:
        """Wait until no call is on its way; return whether that is so.

        Calls that fail are made again, since a shard stores each segment once.

        :param timeout: seconds after which it returns in any case
        :raises ShardUnavailable: if the shard has ended, and Ray does not restart it
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (call := self._call) is not None:
            if call.reply is None:
                self._submit(call)
            if not ray.wait([call.reply], timeout=_seconds_until(deadline))[0]:
                return False
            try:
                reply: InsertReply = ray.get(call.reply)
            except Exception as error:
                call.reply = None
                if not isinstance(error, (*ACTOR_FAILURES, MissingCodec)):
                    raise
                require_restart(error, self.shard_name)
                self._sent.clear()
                if deadline is not None and time.monotonic() + PAUSE > deadline:
                    return False
                time.sleep(PAUSE)
                continue
            self.status = reply.status
            with deferred_interrupts():
                self._call, self._is_late, self._position = None, False, reply.position
                self.n_acknowledged += call.n_rows * self.n_envs
        return True


def _seconds_until(deadline: float | None) -> float | None:
    """Return the seconds until a time of ``time.monotonic``, at least 0; ``None`` for no end."""
    return None if deadline is None else max(deadline - time.monotonic(), 0)

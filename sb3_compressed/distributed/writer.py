"""``ReplayWriter``: adds the transitions of one vectorized environment to a shard, from any process."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from sb3_compressed.arrays.payload_batch import codec_digest
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.codecs import Codec
from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.distributed.block import PackedBlock
from sb3_compressed.distributed.encoded_rows import block_of
from sb3_compressed.distributed.ray_session import ACTOR_FAILURES, summary
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.shard import InsertReply, OpenReply, ShardStatus, UnknownWriter
from sb3_compressed.errors import MissingCodec, ShardTimeout

__all__ = ["ReplayWriter"]

logger = logging.getLogger(__name__)

#: Seconds between attempts to reach a shard that is being restarted.
PAUSE = 0.2


@dataclass(eq=False)
class Segment:
    """Rows on their way to a shard.

    :param n_rows: number of its rows
    :param block: these rows, packed
    :param codecs: the codecs of their payloads
    :param after_gap: whether rows before these were lost
    """

    n_rows: int
    block: PackedBlock
    codecs: dict[bytes, Codec]
    after_gap: bool
    #: What :meth:`.Shard.insert` returns, ``None`` if that has failed, so that the ring must be opened again.
    reply: Any = None
    #: Whether the shard has not stored it, since it did not know the writer.
    is_refused: bool = False


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
        #: The segment that is not acknowledged yet.
        self._segment: Segment | None = None
        #: Whether the last rows were lost, so that episodes do not continue after them.
        self._has_gap = False
        #: Whether the shard has not answered in time, so that nothing waits for it until it answers.
        self._is_late = False
        #: What :meth:`.Shard.open_ring` returns, ``None`` unless that was requested and not used yet.
        self._opening: Any = None
        #: The newest state of each process of the shard that has replied since :meth:`take_statuses`.
        self._statuses: dict[str, ShardStatus] = {}

    def open(self) -> None:
        """Open the ring, unless it is open; :meth:`add` does this, too.

        :raises ShardTimeout: if the shard does not answer within the timeout
        """
        if self._staging is not None:
            return
        self._session, self._opening = uuid.uuid4().hex, None
        self._sent = set[bytes]()
        opened = self._open_ring(self._timeout, continues=False)
        if opened is None:
            raise ShardTimeout(f"{self.shard_name} did not open the ring of {self.name!r} for {self._timeout:g} s")
        self._continue_at(opened)
        n_rows = max(1, min(self._segment_length, opened.ring.n_rows // 4))
        self._staging = self._spec.staging(n_rows, self.n_envs, self._num_threads)

    def __getstate__(self) -> dict[str, Any]:
        if self._staging is not None:
            raise TypeError(f"the writer {self.name!r} belongs to the process that has used it")
        return vars(self)

    def take_statuses(self) -> list[ShardStatus]:
        """Return the newest state of each process of the shard that has replied since the last call, oldest first.

        There are several if the shard was restarted; the state of an earlier process counts what it had acknowledged.
        """
        statuses, self._statuses = self._statuses, {}
        return [*statuses.values()]

    @property
    def n_staged(self) -> int:
        """Number of transitions that were added and not acknowledged yet."""
        n_rows = 0 if self._staging is None else self._staging.size()
        return (n_rows + (0 if self._segment is None else self._segment.n_rows)) * self.n_envs

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of every environment, as ``add`` of replay buffers does.

        :raises ValueError: if an argument does not fit; nothing is added then
        :raises OSError: if the shard could not write earlier transitions; they are sent again with the next ones
        :raises ShardTimeout: if the shard does not open the ring within the timeout; nothing is added then
        :raises WriterReplaced: if another writer of the same name took over the ring
        """
        self.open()
        staging = self._staging
        assert staging is not None
        if staging.full:  # after an error
            self._send(staging)
        staging.add(obs, next_obs, action, reward, done, infos)
        if staging.full:
            self._send(staging)

    def flush(self, timeout: float | None = None) -> None:
        """Send what was added, and wait until it is acknowledged.

        :param timeout: seconds after which it returns in any case; ``None`` to wait
        :raises OSError: if the shard could not write them; they are sent again with the next ones
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._staging is not None and self._staging.size() and self._wait(timeout):
            self._pack(self._staging)
        self._wait(_seconds_until(deadline))

    def poll(self) -> None:
        """Receive an acknowledgement that has arrived, without waiting."""
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
            self._is_late = True
            self._lose(staging.size())
            staging.reset()

    def _pack(self, staging: CompressedReplay) -> None:
        """Send the rows that were added; no segment is on its way."""
        n_rows = staging.size()
        block = block_of(staging, np.arange(n_rows))
        codecs = {codec_digest(codec): codec for batch in block.batches.values() for codec in batch.codecs}
        segment = Segment(n_rows, block.pack(), codecs, self._has_gap)
        with deferred_interrupts():  # so that no row is sent twice
            self._segment, self._has_gap = segment, False
            staging.reset()
            self._submit(segment)

    def _submit(self, segment: Segment) -> None:
        new = {digest: codec for digest, codec in segment.codecs.items() if digest not in self._sent}
        self._sent |= new.keys()
        segment.is_refused = False
        segment.reply = self._shard.insert.remote(
            self.name, self._session, self._position, segment.block, new, after_gap=segment.after_gap
        )

    def _wait(self, timeout: float | None) -> bool:
        """Wait until no segment is on its way; return whether that is so.

        :param timeout: seconds after which it returns in any case
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (segment := self._segment) is not None:
            left = _seconds_until(deadline)
            if segment.reply is None:
                if not self._send_again(segment, left):
                    return False
                continue
            if not ray.wait([segment.reply], timeout=left)[0]:
                return False
            try:
                reply: InsertReply = ray.get(segment.reply)
            except Exception as error:
                segment.reply, segment.is_refused = None, isinstance(error, UnknownWriter)
                if not isinstance(error, (*ACTOR_FAILURES, UnknownWriter, MissingCodec)):
                    raise
                logger.warning("%s: a segment is sent again after %s", self.name, summary(error))
                continue
            self._statuses[reply.status.incarnation] = reply.status
            with deferred_interrupts():
                self._acknowledge(segment)
                self._position += segment.n_rows
                self._ring, self._incarnation = reply.ring, reply.status.incarnation
        return True

    def _acknowledge(self, segment: Segment) -> None:
        self._segment, self._is_late = None, False
        self.n_acknowledged += segment.n_rows * self.n_envs

    def _lose(self, n_rows: int) -> None:
        """Count rows that are not sent, so that episodes do not continue after them."""
        self._has_gap = True
        self.n_lost += n_rows * self.n_envs

    def _send_again(self, segment: Segment, timeout: float | None) -> bool:
        """Open the ring again, and send the segment unless it was stored; return whether that was possible in time."""
        opened = self._open_ring(timeout, continues=True)
        if opened is None:
            return False
        is_stored = self._is_stored(segment, opened)
        with deferred_interrupts():
            self._sent.clear()
            self._continue_at(opened)
            if is_stored:
                self._acknowledge(segment)
            elif is_stored is None:
                n_rows = segment.n_rows
                logger.warning("%s: it is unknown whether %d rows were stored, so they are dropped", self.name, n_rows)
                self._segment = None
                self._lose(n_rows)
            else:
                self._submit(segment)
        return True

    def _is_stored(self, segment: Segment, opened: OpenReply) -> bool | None:
        """Return whether a segment is stored, but not acknowledged; ``None`` if that is unknown.

        :param opened: the reply of :meth:`.Shard.open_ring`
        """
        ring = opened.ring
        if ring.is_empty or segment.is_refused:
            return False
        if opened.is_known and opened.status.incarnation == self._incarnation:
            return opened.position != self._position
        # The shard was restarted; where the ring is in its folder shows what was stored since the last reply.
        n_new = (ring.row - self._ring.row) % ring.n_rows
        n_expected = segment.n_rows % ring.n_rows
        if ring.n_rows != self._ring.n_rows or n_new not in (0, n_expected) or not n_expected:
            return None
        return n_new > 0

    def _continue_at(self, opened: OpenReply) -> None:
        """Continue where the ring is."""
        self._position, self._ring, self._incarnation = opened.position, opened.ring, opened.status.incarnation
        self._opening = None

    def _open_ring(self, timeout: float | None, *, continues: bool) -> OpenReply | None:
        """Open the ring, and return where to continue.

        :param timeout: seconds for which it is tried again if the shard fails; ``None`` for as long as it takes
        :param continues: as for :meth:`.Shard.open_ring`
        :return: ``None`` after the timeout. The next call waits for the same reply
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._opening is None:
                self._opening = self._shard.open_ring.remote(self.name, self._session, self.n_envs, continues=continues)
            if not ray.wait([self._opening], timeout=_seconds_until(deadline))[0]:
                return None
            try:
                opened: OpenReply = ray.get(self._opening)
            except Exception as error:
                self._opening = None
                if not isinstance(error, ACTOR_FAILURES):
                    raise
                if deadline is not None and time.monotonic() + PAUSE > deadline:
                    return None
                time.sleep(PAUSE)
                continue
            self._statuses[opened.status.incarnation] = opened.status
            return opened


def _seconds_until(deadline: float | None) -> float | None:
    """Return the seconds until a time of ``time.monotonic``, at least 0; ``None`` for no end."""
    return None if deadline is None else max(deadline - time.monotonic(), 0)

"""``ReplayWriter``: adds the transitions of one vectorized environment to a shard, from any process."""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from sb3_compressed.buffers.replay_mixin import CompressedReplay
from sb3_compressed.codecs import Codec
from sb3_compressed.distributed.codec_exchange import CodecExchange
from sb3_compressed.distributed.encoded_rows import EncodedRows
from sb3_compressed.distributed.ray_session import ACTOR_FAILURES, summary
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.shard import OpenReply, ShardStatus, UnknownWriter
from sb3_compressed.errors import ShardTimeout

__all__ = ["ReplayWriter"]

logger = logging.getLogger(__name__)

#: Segments that are sent, but not acknowledged yet.
MAX_IN_FLIGHT = 2
#: Seconds between attempts to reach a shard that is being restarted.
PAUSE = 0.2


@dataclass
class Segment:
    """Rows on their way to a shard.

    :param position: the number of rows that were sent before, see :meth:`.Shard.insert`
    :param n_rows: number of its rows
    :param block: these rows, packed
    :param codecs: the codecs of their payloads
    :param after_gap: whether rows before these were lost
    """

    position: int
    n_rows: int
    block: NDArray[np.uint8]
    codecs: dict[bytes, Codec]
    after_gap: bool
    #: What :meth:`.Shard.insert` returns, ``None`` if it must be sent again.
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
        self._shard_name = shard_name
        self.name, self.n_envs = name, n_envs
        self._shard, self._spec, self._segment_length = shard, spec, segment_length
        self._timeout, self._num_threads = timeout, num_threads
        #: Number of transitions that were acknowledged.
        self.n_acknowledged = 0
        #: Number of transitions that were dropped after a timeout.
        self.n_lost = 0
        #: Bytes of acknowledged segments.
        self.n_bytes_sent = 0
        #: The newest state of each process of the shard that has replied since :meth:`take_statuses`.
        self._statuses: dict[str, ShardStatus] = {}
        self._staging: CompressedReplay | None = None

    def open(self) -> None:
        """Open the ring, unless it is open; :meth:`add` does this, too.

        :raises ShardTimeout: if the shard does not answer within the timeout
        """
        if self._staging is None:
            self._staging = self._opened()

    def _opened(self) -> CompressedReplay:
        """Open the ring, and return the buffer that encodes."""
        self._session = uuid.uuid4().hex
        self._codecs = CodecExchange(8)
        self._sent: set[bytes] = set()
        self._pending: deque[Segment] = deque()
        self._has_gap = False
        #: Whether the shard has not answered in time, so that nothing waits for it until it answers.
        self._is_late = False
        #: What :meth:`.Shard.open_ring` returns, ``None`` unless that was requested and not received yet.
        self._opening: Any = None
        opened = self._open_ring(self._timeout, continues=False)
        if opened is None:
            raise ShardTimeout(f"{self._shard_name} did not open the ring of {self.name!r} for {self._timeout:g} s")
        self._position, self._ring = opened.position, opened.ring
        n_rows = max(1, min(self._segment_length, self._ring.n_rows // 4))
        return self._spec.staging(n_rows, self.n_envs, self._num_threads)

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

    def _record(self, status: ShardStatus) -> None:
        self._statuses[status.incarnation] = status

    @property
    def n_staged(self) -> int:
        """Number of transitions that were added and not acknowledged yet."""
        if self._staging is None:
            return 0
        return (self._staging.size() + sum(segment.n_rows for segment in self._pending)) * self.n_envs

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
            self._send(staging, staging.buffer_size)
        staging.add(obs, next_obs, action, reward, done, infos)
        if staging.full:
            self._send(staging, staging.buffer_size)

    def flush(self, timeout: float | None = None) -> None:
        """Send what was added, and wait until it is acknowledged.

        :param timeout: seconds after which it returns in any case; ``None`` to wait
        :raises OSError: if the shard could not write them; they are sent again with the next ones
        """
        staging = self._staging
        if staging is None:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        if staging.size():
            if not self._wait_until(MAX_IN_FLIGHT - 1, timeout):
                return
            self._send(staging, staging.size())
        self._wait_until(0, None if deadline is None else max(deadline - time.monotonic(), 0))

    def poll(self) -> None:
        """Receive acknowledgements that have arrived, without waiting."""
        if self._staging is not None and self._pending:
            self._wait_until(0, 0)

    # -- segments --------------------------------------------------------------------------------------------

    def _send(self, staging: CompressedReplay, n_rows: int) -> None:
        """Send the rows that were added."""
        if not self._wait_until(MAX_IN_FLIGHT - 1, 0 if self._is_late else self._timeout):
            if not self._is_late:
                logger.warning(
                    "%s: %s did not answer for %s s; transitions are dropped until it does",
                    self.name, self._shard_name, self._timeout,
                )  # fmt: skip
            self._is_late = True
            self._lose(n_rows)
            staging.reset()
            return
        rows = EncodedRows.of(staging, np.arange(n_rows))
        codecs = {self._codecs.add(codec): codec for batch in rows.batches.values() for codec in batch.codecs}
        segment = Segment(self._position, n_rows, rows.to_block().pack(), codecs, self._has_gap)
        staging.reset()
        self._pending.append(segment)
        self._position += n_rows
        self._has_gap = False
        self._submit(segment)

    def _lose(self, n_rows: int) -> None:
        """Count rows that are not sent, so that episodes do not continue after them."""
        self._has_gap = True
        self.n_lost += n_rows * self.n_envs

    def _submit(self, segment: Segment) -> None:
        configs = self._codecs.configs_of(segment.codecs.keys() - self._sent)
        self._sent |= segment.codecs.keys()
        segment.is_refused = False
        segment.reply = self._shard.insert.remote(
            self.name, self._session, segment.position, segment.block, configs, after_gap=segment.after_gap
        )

    def _wait_until(self, n_pending: int, timeout: float | None) -> bool:
        """Wait until at most so many segments are not acknowledged; return whether that is so.

        :param timeout: seconds after which it returns in any case
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(self._pending) > n_pending:
            segment = self._pending[0]
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if segment.reply is None:
                if not self._continue(left):
                    return False
                continue
            if not ray.wait([segment.reply], timeout=left)[0]:
                return False
            try:
                reply = ray.get(segment.reply)
            except (*ACTOR_FAILURES, UnknownWriter) as error:
                logger.warning("%s: segments are sent again after %s", self.name, summary(error))
                segment.reply, segment.is_refused = None, isinstance(error, UnknownWriter)
                continue
            except Exception:
                segment.reply = None
                raise
            self._record(reply.status)
            self._ring = reply.ring
            if reply.missing:  # the shard has removed them
                self._sent -= set(reply.missing)
                segment.reply = None
            else:
                self._acknowledge(self._pending.popleft())
        return True

    def _acknowledge(self, segment: Segment) -> None:
        self._is_late = False
        self.n_acknowledged += segment.n_rows * self.n_envs
        self.n_bytes_sent += segment.block.nbytes

    def _continue(self, timeout: float | None) -> bool:
        """Send again what the shard has not stored; return whether that was possible in time."""
        sent = [segment.reply for segment in self._pending if segment.reply is not None]
        if sent:
            ray.wait(sent, num_returns=len(sent), timeout=timeout)  # those before may still be on their way
        opened = self._open_ring(timeout, continues=True)
        if opened is None:
            return False
        n_stored = 0 if self._pending[0].is_refused else self._n_stored(opened)
        self._ring = opened.ring
        if n_stored is None:
            n_rows = sum(segment.n_rows for segment in self._pending)
            logger.warning("%s: it is unknown which of %d rows were stored, so they are dropped", self.name, n_rows)
            self._pending.clear()
            self._lose(n_rows)
        else:
            for _ in range(n_stored):
                self._acknowledge(self._pending.popleft())
        self._sent.clear()
        self._position = opened.position
        for segment in self._pending:
            segment.position = self._position
            self._position += segment.n_rows
            self._submit(segment)
        return True

    def _n_stored(self, opened: OpenReply) -> int | None:
        """Return how many segments are stored, but not acknowledged; ``None`` if that is unknown.

        :param opened: the reply of :meth:`.Shard.open_ring`
        """
        if opened.ring.is_empty:
            return 0
        ends = np.cumsum([0, *(segment.n_rows for segment in self._pending)])
        if opened.is_known:
            stored = ends == opened.position - self._pending[0].position
        else:  # the shard was restarted; where the ring is in its folder shows what was stored since the last reply
            n_rows = opened.ring.n_rows
            stored = (ends - (opened.ring.row - self._ring.row)) % n_rows == 0
            stored &= self._ring.n_rows == n_rows
        return int(np.argmax(stored)) if np.count_nonzero(stored) == 1 else None

    def _open_ring(self, timeout: float | None, *, continues: bool) -> OpenReply | None:
        """Open the ring, and return where to continue.

        :param timeout: seconds for which it is tried again if the shard fails; ``None`` for as long as it takes
        :param continues: as for :meth:`.Shard.open_ring`
        :return: ``None`` after the timeout; the next call waits for the same reply
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._opening is None:
                self._opening = self._shard.open_ring.remote(self.name, self._session, self.n_envs, continues=continues)
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not ray.wait([self._opening], timeout=left)[0]:
                return None
            opening, self._opening = self._opening, None
            try:
                opened: OpenReply = ray.get(opening)
            except ACTOR_FAILURES:
                if deadline is not None and time.monotonic() + PAUSE > deadline:
                    return None
                time.sleep(PAUSE)
                continue
            self._record(opened.status)
            return opened

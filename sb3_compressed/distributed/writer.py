"""``ReplayWriter``: adds the transitions of one vectorized environment to a shard, from any process."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.codecs import Codec
from sb3_compressed.distributed.codec_exchange import CodecExchange
from sb3_compressed.distributed.encoded_rows import block_of
from sb3_compressed.distributed.ray_session import ACTOR_FAILURES, summary
from sb3_compressed.distributed.ring import RingState
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.shard import OpenReply, ShardStatus, UnknownWriter
from sb3_compressed.errors import ShardTimeout

__all__ = ["ReplayWriter"]

logger = logging.getLogger(__name__)

#: Segments that are sent, but not acknowledged yet.
MAX_IN_FLIGHT = 2
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
    block: NDArray[np.uint8]
    codecs: dict[bytes, Codec]
    after_gap: bool
    #: What :meth:`.Shard.insert` returns, ``None`` if that is unknown, so that it may have to be sent again.
    reply: Any = None
    #: Whether the shard has not stored it, since it did not know the writer.
    is_refused: bool = False


class WriterState(NamedTuple):
    """What has become of the rows that were added.

    It is replaced as a whole, so that Ctrl-C at any time leaves each row staged, pending, acknowledged or lost, and
    counted once.

    :param pending: segments that are not acknowledged yet, in their order
    :param position: the number of rows that the shard has stored before these, as it counts them
    :param ring: the ring in the last reply
    :param incarnation: the process of the shard that has sent it
    :param is_packed: whether the rows in the staging buffer are those of the last segment, or lost
    :param has_gap: whether the last rows were lost, so that episodes do not continue after them
    :param is_late: whether the shard has not answered in time, so that nothing waits for it until it answers
    :param opening: what :meth:`.Shard.open_ring` returns, ``None`` unless that was requested and not used yet
    :param n_acknowledged: number of transitions that were acknowledged
    :param n_lost: number of transitions that were dropped
    :param n_bytes_sent: bytes of acknowledged segments
    """

    pending: tuple[Segment, ...] = ()
    position: int = 0
    ring: RingState | None = None
    incarnation: str = ""
    is_packed: bool = False
    has_gap: bool = False
    is_late: bool = False
    opening: Any = None
    n_acknowledged: int = 0
    n_lost: int = 0
    n_bytes_sent: int = 0

    def after(self, opened: OpenReply) -> WriterState:
        """Return the state after the ring was opened."""
        return self._replace(
            position=opened.position, ring=opened.ring, incarnation=opened.status.incarnation, opening=None
        )


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
        self._state = WriterState()
        #: The newest state of each process of the shard that has replied since :meth:`take_statuses`.
        self._statuses: dict[str, ShardStatus] = {}
        self._staging: CompressedReplay | None = None

    def open(self) -> None:
        """Open the ring, unless it is open; :meth:`add` does this, too.

        :raises ShardTimeout: if the shard does not answer within the timeout
        """
        if self._staging is not None:
            return
        self._session = uuid.uuid4().hex
        self._codecs = CodecExchange(8)
        self._sent: set[bytes] = set()
        self._state = WriterState()
        opened = self._open_ring(self._timeout, continues=False)
        if opened is None:
            raise ShardTimeout(f"{self.shard_name} did not open the ring of {self.name!r} for {self._timeout:g} s")
        self._state = self._state.after(opened)
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
    def n_acknowledged(self) -> int:
        """Number of transitions that were acknowledged."""
        return self._state.n_acknowledged

    @property
    def n_lost(self) -> int:
        """Number of transitions that were dropped after a timeout."""
        return self._state.n_lost

    @property
    def n_bytes_sent(self) -> int:
        """Bytes of acknowledged segments."""
        return self._state.n_bytes_sent

    @property
    def n_staged(self) -> int:
        """Number of transitions that were added and not acknowledged yet."""
        if self._staging is None:
            return 0
        n_rows = 0 if self._state.is_packed else self._staging.size()
        return (n_rows + _n_rows(self._state.pending)) * self.n_envs

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
        self._remove_packed(staging)
        if staging.size() == staging.buffer_size:  # after an error
            self._send(staging)
        staging.add(obs, next_obs, action, reward, done, infos)
        if staging.size() == staging.buffer_size:
            self._send(staging)

    def flush(self, timeout: float | None = None) -> None:
        """Send what was added, and wait until it is acknowledged.

        :param timeout: seconds after which it returns in any case; ``None`` to wait
        :raises OSError: if the shard could not write them; they are sent again with the next ones
        """
        staging = self._staging
        if staging is None:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        self._remove_packed(staging)
        if staging.size():
            if not self._wait_until(MAX_IN_FLIGHT - 1, timeout):
                return
            self._send(staging)
        self._wait_until(0, None if deadline is None else max(deadline - time.monotonic(), 0))

    def poll(self) -> None:
        """Receive acknowledgements that have arrived, without waiting."""
        if self._staging is not None and self._state.pending:
            self._wait_until(0, 0)

    # -- segments --------------------------------------------------------------------------------------------

    def _send(self, staging: CompressedReplay) -> None:
        """Send the rows that were added."""
        n_rows = staging.size()
        is_late = self._state.is_late
        if not self._wait_until(MAX_IN_FLIGHT - 1, 0 if is_late else self._timeout):
            if not is_late:
                logger.warning(
                    "%s: %s did not answer for %s s; transitions are dropped until it does",
                    self.name, self.shard_name, self._timeout,
                )  # fmt: skip
            self._state = self._with_lost(n_rows)._replace(is_late=True, is_packed=True)
            self._remove_packed(staging)
            return
        block = block_of(staging, np.arange(n_rows))
        codecs = {self._codecs.add(codec): codec for batch in block.batches.values() for codec in batch.codecs}
        state = self._state
        segment = Segment(n_rows, block.pack(), codecs, state.has_gap)
        self._state = state._replace(pending=(*state.pending, segment), has_gap=False, is_packed=True)
        self._remove_packed(staging)
        if all(each.reply is not None for each in state.pending):  # otherwise it is sent after those
            self._submit(segment)

    def _remove_packed(self, staging: CompressedReplay) -> None:
        """Remove rows from the staging buffer that are in a segment, or lost."""
        if self._state.is_packed:
            staging.reset()
            self._state = self._state._replace(is_packed=False)

    def _with_lost(self, n_rows: int) -> WriterState:
        """Return the state after counting rows that are not sent, so that episodes do not continue after them."""
        state = self._state
        return state._replace(has_gap=True, n_lost=state.n_lost + n_rows * self.n_envs)

    def _with_acknowledged(self, n_segments: int) -> WriterState:
        """Return the state after counting the first segments as acknowledged."""
        state = self._state
        segments = state.pending[:n_segments]
        n_rows = _n_rows(segments)
        return state._replace(
            pending=state.pending[n_segments:],
            position=state.position + n_rows,
            is_late=state.is_late and not segments,
            n_acknowledged=state.n_acknowledged + n_rows * self.n_envs,
            n_bytes_sent=state.n_bytes_sent + sum(segment.block.nbytes for segment in segments),
        )

    def _submit(self, segment: Segment) -> None:
        configs = self._codecs.configs_of(segment.codecs.keys() - self._sent)
        self._sent |= segment.codecs.keys()
        pending = self._state.pending
        position = self._state.position + _n_rows(pending[: pending.index(segment)])
        segment.is_refused = False
        segment.reply = self._shard.insert.remote(
            self.name, self._session, position, segment.block, configs, after_gap=segment.after_gap
        )

    def _wait_until(self, n_pending: int, timeout: float | None) -> bool:
        """Wait until at most so many segments are not acknowledged; return whether that is so.

        :param timeout: seconds after which it returns in any case
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(self._state.pending) > n_pending:
            segment = self._state.pending[0]
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
                segment.is_refused = isinstance(error, UnknownWriter)
                segment.reply = None
                continue
            except Exception:
                segment.reply = None
                raise
            self._statuses[reply.status.incarnation] = reply.status
            if reply.missing:  # the shard has removed them
                self._sent -= set(reply.missing)
                segment.reply = None
            else:
                self._state = self._with_acknowledged(1)._replace(ring=reply.ring, incarnation=reply.status.incarnation)
        return True

    def _continue(self, timeout: float | None) -> bool:
        """Send again what the shard has not stored; return whether that was possible in time."""
        sent = [segment.reply for segment in self._state.pending if segment.reply is not None]
        if sent:
            ray.wait(sent, num_returns=len(sent), timeout=timeout)  # those before may still be on their way
        opened = self._open_ring(timeout, continues=True)
        if opened is None:
            return False
        n_stored = self._n_stored(opened)
        if n_stored is None:
            n_rows = _n_rows(self._state.pending)
            logger.warning("%s: it is unknown which of %d rows were stored, so they are dropped", self.name, n_rows)
            state = self._with_lost(n_rows)._replace(pending=())
        else:
            state = self._with_acknowledged(n_stored)
        self._sent.clear()
        for segment in state.pending:
            segment.reply = None
        self._state = state.after(opened)
        for segment in state.pending:
            self._submit(segment)
        return True

    def _n_stored(self, opened: OpenReply) -> int | None:
        """Return how many segments are stored, but not acknowledged; ``None`` if that is unknown.

        :param opened: the reply of :meth:`.Shard.open_ring`
        """
        state, ring = self._state, opened.ring
        assert state.ring is not None
        if ring.is_empty or state.pending[0].is_refused:
            return 0
        ends = np.cumsum([0, *(segment.n_rows for segment in state.pending)])
        if opened.is_known and opened.status.incarnation == state.incarnation:
            stored = ends == opened.position - state.position
        else:  # the shard was restarted; where the ring is in its folder shows what was stored since the last reply
            stored = (ends - (ring.row - state.ring.row)) % ring.n_rows == 0
            stored &= state.ring.n_rows == ring.n_rows
        return int(np.argmax(stored)) if np.count_nonzero(stored) == 1 else None

    def _open_ring(self, timeout: float | None, *, continues: bool) -> OpenReply | None:
        """Open the ring, and return where to continue.

        :param timeout: seconds for which it is tried again if the shard fails; ``None`` for as long as it takes
        :param continues: as for :meth:`.Shard.open_ring`
        :return: ``None`` after the timeout. The next call waits for the same reply, or returns it again, unless
            :attr:`WriterState.opening` is ``None`` then
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            opening = self._state.opening
            if opening is None:
                opening = self._shard.open_ring.remote(self.name, self._session, self.n_envs, continues=continues)
                self._state = self._state._replace(opening=opening)
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not ray.wait([opening], timeout=left)[0]:
                return None
            try:
                opened: OpenReply = ray.get(opening)
            except Exception as error:
                self._state = self._state._replace(opening=None)
                if not isinstance(error, ACTOR_FAILURES):
                    raise
                if deadline is not None and time.monotonic() + PAUSE > deadline:
                    return None
                time.sleep(PAUSE)
                continue
            self._statuses[opened.status.incarnation] = opened.status
            return opened


def _n_rows(segments: Sequence[Segment]) -> int:
    return sum(segment.n_rows for segment in segments)

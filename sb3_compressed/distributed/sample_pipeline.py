"""``SamplePipeline``: requests the transitions of the next batches from all shards, before they are needed."""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from sb3_compressed.distributed.block import Block
from sb3_compressed.distributed.codec_cache import CodecCache
from sb3_compressed.distributed.ray_session import ACTOR_FAILURES
from sb3_compressed.distributed.shard import PriorityUpdates
from sb3_compressed.distributed.shard_group import PATIENCE, ShardGroup
from sb3_compressed.errors import BufferNotReady, MissingCodec

__all__ = ["Part", "SamplePipeline"]

logger = logging.getLogger(__name__)

#: Seconds between attempts while there is nothing to sample.
PAUSE = 0.1


class Part(NamedTuple):
    """The transitions of one shard in a batch.

    :param block: see :meth:`.Shard.sample`
    :param first: the number of the first transition in the block
    :param last: that after the last one
    :param shard: the number of the shard
    :param share: the share of the shard in all priorities when the batch was requested
    """

    block: Block
    first: int
    last: int
    shard: int
    share: float

    def array(self, name: str) -> NDArray[Any]:
        """Return an array of these transitions."""
        return self.block.arrays[name][self.first : self.last]


@dataclass
class Request:
    """A request to a shard.

    :param counts: the number of transitions in each batch of the round
    :param share: as for :class:`Part`
    :param requested_at: when it was made, in seconds of ``time.monotonic``
    """

    shard: int
    reply: Any
    counts: NDArray[np.int64]
    share: float
    requested_at: float


class SamplePipeline:
    """Batches of transitions from all shards, each with the same probability, or in proportion to priorities.

    How many of the transitions of a batch come from each shard is drawn from the sizes of the shards in their last
    replies. Several batches are requested at once, a round; two rounds are requested before they are needed. A shard
    that fails or does not answer in time is left out until it answers again. If shards have lost everything, the last
    batch is returned again until there are others, so that training continues.

    :param group: the shards
    :param prefetch: how many batches are requested ahead; 0 to request each batch when it is needed
    :param timeout: seconds to wait for a shard
    :param rng: draws the shards
    :param send_staged: sends the transitions that this process has staged, when no shard has any
    :param take_updates: returns the updates of priorities that a shard has not received yet, once
    """

    def __init__(
        self,
        group: ShardGroup,
        prefetch: int,
        timeout: float,
        rng: np.random.Generator,
        send_staged: Callable[[], None],
        take_updates: Callable[[int], PriorityUpdates | None],
    ) -> None:
        self._take_updates = take_updates
        self._group, self._timeout, self._rng, self._send_staged = group, timeout, rng, send_staged
        self._prefetch = prefetch
        self._session = uuid.uuid4().hex
        self._codecs = CodecCache()
        #: What was requested ahead, and the batches of the round before that were not returned yet.
        self._rounds: deque[list[Request]] = deque()
        self._batches: deque[list[Part]] = deque()
        self._batch_size = 0
        self._last: list[Part] = []
        #: Number of requests that failed or were late.
        self.n_failed = self.n_late = 0

    def discard(self) -> None:
        """Discard what was requested ahead."""
        self._rounds.clear()
        self._batches.clear()
        self._last = []

    def next(self, batch_size: int) -> list[Part]:
        """Return the parts of the next batch.

        :raises BufferNotReady: if no shard has a transition
        :raises ShardUnavailable: if Ray does not restart a shard that has ended
        """
        if self._batch_size != batch_size:
            self._rounds.clear()
            self._batches.clear()
            self._batch_size = batch_size
        length = max(1, self._prefetch // 2)
        try:
            while len(self._batches) + len(self._rounds) * length <= self._prefetch - (length - 1):
                self._rounds.append(self._requests(np.full(length, batch_size)))
            if not self._batches:
                # Ctrl-C leaves the round as it was, so that its replies are received again.
                self._batches.extend(self._receive(self._rounds[0], length))
                self._rounds.popleft()
        except Exception as error:
            self._rounds.clear()  # the next call makes other requests
            if (
                not isinstance(error, BufferNotReady)
                or sum(part.last - part.first for part in self._last) != batch_size
            ):
                raise
            logger.warning("no shard has any transitions, so the last batch is returned again")
            return self._last
        self._last = self._batches.popleft()
        return self._last

    def _requests(self, n_each: NDArray[np.int64]) -> list[Request]:
        """Request transitions from all shards.

        :param n_each: how many each batch needs, ``(n_batches,)``
        """
        shares = self._shares()
        counts = np.array([self._rng.multinomial(n, shares) for n in n_each])  # [batches, shards]
        requests = []
        for shard, view in enumerate(self._group.shards):
            of_shard, updates = counts[:, shard], self._take_updates(shard)
            if of_shard.any():
                reply = view.actor.sample.remote(self._session, of_shard.tolist(), updates)
                requests.append(Request(shard, reply, of_shard, float(shares[shard]), time.monotonic()))
            else:  # others may have added to it
                if updates is not None:
                    view.actor.update_priorities.remote(updates)
                self._group.request_status(view)
        return requests

    def _shares(self) -> NDArray[np.float64]:
        """Return the share of each shard in what can be sampled.

        :raises BufferNotReady: if no shard has a transition within the timeout, or if some do not answer, for minutes
        """
        self._group.poll()
        begin = time.monotonic()
        while not (masses := self._group.masses).any():
            self._send_staged()
            self._group.refresh(PAUSE)
            is_complete = all(view.is_answering for view in self._group.shards)
            limit = self._timeout if is_complete else max(PATIENCE, self._timeout)
            if time.monotonic() - begin > limit and not self._group.masses.any():
                raise BufferNotReady(
                    "no shard has a transition to sample: add some first; if shards were lost, wait until writers have "
                    "inserted new ones"
                )
        shares: NDArray[np.float64] = masses / masses.sum()
        return shares

    def _receive(self, requests: list[Request], length: int) -> list[list[Part]]:
        """Wait for the replies of a round, and return its batches; what failed or was late is requested again.

        :param length: number of batches
        """
        batches: list[list[Part]] = [[] for _ in range(length)]
        while requests:
            ready = self._wait_for(requests)
            missing = np.zeros(length, dtype=np.int64)
            for request in requests:
                block = self._received(request, is_ready=request.reply in ready)
                if block is None:
                    missing += request.counts
                    continue
                ends = np.cumsum(request.counts).tolist()
                for batch, first, last in zip(batches, [0, *ends], ends, strict=False):
                    if last > first:
                        batch.append(Part(block, first, last, request.shard, request.share))
            requests = self._requests(missing) if missing.any() else []
        return batches

    def _wait_for(self, requests: Sequence[Request]) -> set[Any]:
        """Wait for replies, each until the timeout after its request; return those that have arrived.

        Nothing waits for shards that do not answer, so that a shard that stops costs the timeout once.
        """
        expected = [each for each in requests if self._group.shards[each.shard].is_answering]
        if expected:
            left = max(each.requested_at for each in expected) + self._timeout - time.monotonic()
            ray.wait([each.reply for each in expected], num_returns=len(expected), timeout=max(left, 0))
        ready, _ = ray.wait([each.reply for each in requests], num_returns=len(requests), timeout=0)
        return set(ready)

    def _received(self, request: Request, *, is_ready: bool) -> Block | None:
        """Return the block in a reply, ``None`` if there is none."""
        view = self._group.shards[request.shard]
        if not is_ready:
            self.n_late += 1
            self._group.exclude(view)
            return None
        try:
            reply = ray.get(request.reply)
        except ACTOR_FAILURES as error:
            self.n_failed += 1
            if request.requested_at > view.since:  # else it has answered since
                self._group.exclude(view, error)
            return None
        self._codecs.receive(reply.codecs)
        self._group.update(view, reply.status, request.requested_at)
        if reply.block is None:
            return None
        try:
            return Block.unpack(reply.block, self._codecs)
        except MissingCodec:  # it was in a reply that was late; in a new session, shards send all of them again
            self.n_failed += 1
            self._session = uuid.uuid4().hex
            return None

"""``BatchAhead``: a batch that another thread decodes before it is needed.

Its payloads are located at once, by the thread that needs it: another thread would request Python's lock for each part
of that, and the training would wait for it each time, for longer than locating takes. Payloads in a folder are
verified as they are located, which takes longer, so the other thread does that as well.

If the batch that is needed is the expected one, its observations are ready; those that were written meanwhile are
decoded again. If it is another one, or if the other thread failed, the batch is decoded when it is needed. So a wrong
expectation costs time, never correctness, and a damaged payload raises an error in the batch that needs it.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from sb3_compressed.buffers.observation_batch import ObservationBatch
from sb3_compressed.common.threads import PoolTask, default_num_threads
from sb3_compressed.errors import CorruptPayload

__all__ = ["BatchAhead"]

#: How long another thread waits for the lock of a buffer at most: a thread that forks has it, and waits for that one.
LOCK_TIMEOUT_S = 0.002


class BatchAhead:
    """A batch that is decoded ahead, in a thread of the pool. Copies and pickles have none.

    :ivar n_drawn: batches that were drawn
    :ivar n_decoded_ahead: of these, batches that had been decoded ahead
    :ivar was_ready: whether the last batch had been decoded when it was needed, so that nothing waited for it
    """

    def __init__(self) -> None:
        self._task: PoolTask[ObservationBatch | None] | None = None
        self.n_drawn = self.n_decoded_ahead = 0
        self.was_ready = self._is_complete = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    @staticmethod
    def is_possible(num_threads: int) -> bool:
        """Return whether another thread and core can decode.

        :param num_threads: number of threads that the buffer may use
        """
        return num_threads > 1 and default_num_threads() > 1

    def start(self, batch: ObservationBatch, lock: threading.RLock | None = None) -> None:
        """Decode the batch that is expected next, in another thread.

        :param batch: is located here, unless its payloads are in a folder
        :param lock: of a buffer in a folder, with which the other thread locates the payloads
        """
        self.discard()
        if lock is None:
            try:
                batch.locate()
            except (CorruptPayload, MemoryError):  # if it is needed, it is located again, which raises the error
                return
        self._task = task = PoolTask(partial(_decoded, batch, lock))
        task.start()

    def end(self) -> None:
        """Wait for the other thread if it has begun to decode; otherwise do not decode ahead this time.

        Not with the lock of a buffer: the other thread may need it.
        """
        task = self._task  # once: another thread may take it meanwhile
        self._is_complete = task is not None and task.is_complete
        if task is not None:
            task.end()

    def decoded(self, batch: ObservationBatch) -> ObservationBatch:
        """Return a batch with decoded observations, after :meth:`end`; those decoded ahead if it was expected.

        :param batch: the batch, which is not located yet
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        task, self._task = self._task, None
        self.n_drawn += 1
        self.was_ready = False
        ready = None if task is None else task.result
        if ready is None or not ready.is_like(batch):
            batch.decode()
            return batch
        self.n_decoded_ahead += 1
        self.was_ready = self._is_complete
        ready.next_indices = batch.next_indices  # those of returns of several steps depend on what was added
        ready.decode_changed()
        return ready

    def discard(self) -> None:
        """Discard the batch that is decoded ahead."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()


def _decoded(batch: ObservationBatch, lock: threading.RLock | None) -> ObservationBatch | None:
    """Decode a batch; return ``None`` if another thread has the lock that is needed to locate it."""
    if lock is not None:
        if not lock.acquire(timeout=LOCK_TIMEOUT_S):
            return None
        try:
            batch.locate()
        finally:
            lock.release()
    batch.decode(is_ahead=True)
    return batch

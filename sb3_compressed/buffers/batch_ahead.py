"""``BatchAhead``: a batch that another thread decodes before it is needed.

If the batch that is needed is the expected one, its observations are ready; those that were written meanwhile are
decoded again. If it is another one, or if the other thread failed, the batch is decoded when it is needed. So a wrong
expectation costs time, never correctness, and a damaged payload raises an error in the batch that needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sb3_compressed.buffers.observation_batch import ObservationBatch
from sb3_compressed.common.threads import PoolTask, default_num_threads

__all__ = ["BatchAhead"]


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

    def start(self, draw: Callable[[], ObservationBatch | None]) -> None:
        """Draw and decode the batch that is expected next, in another thread.

        :param draw: returns it, ``None`` if that is not possible
        """

        def decoded() -> ObservationBatch | None:
            batch = draw()
            if batch is not None:
                batch.decode(is_ahead=True)
            return batch

        self.discard()
        self._task = task = PoolTask(decoded)
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

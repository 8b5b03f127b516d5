"""Fixtures for tests of batches that are decoded ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
from support import wait_until_complete

from sb3_compressed.buffers import batch_ahead
from sb3_compressed.buffers.alternation import Alternation
from sb3_compressed.buffers.batch_ahead import BatchAhead
from sb3_compressed.buffers.observation_batch import ObservationBatch
from sb3_compressed.common import threads


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode ahead on any machine, whether it makes the loop faster or not."""
    monkeypatch.setattr(batch_ahead, "default_num_threads", lambda: 2)
    monkeypatch.setattr(Alternation, "WARM_UP", 10**9)


@pytest.fixture
def n_ready(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that returns how many batches were decoded ahead; each is waited for."""
    ready = 0
    end, decode_changed = BatchAhead.end, ObservationBatch.decode_changed

    def ended(self: BatchAhead) -> None:
        if self._task is not None:
            wait_until_complete(self._task)
        end(self)

    def counted(batch: ObservationBatch) -> None:
        nonlocal ready
        ready += 1
        decode_changed(batch)

    monkeypatch.setattr(BatchAhead, "end", ended)
    monkeypatch.setattr(ObservationBatch, "decode_changed", counted)
    return lambda: ready


@pytest.fixture
def occupy_pool() -> Iterator[Callable[[], None]]:
    """Return a function that keeps all threads of the pool busy until the end of the test."""
    release = threading.Event()

    def wait() -> None:
        release.wait()

    def occupy() -> None:
        for _ in range(os.cpu_count() or 1):
            threads._decoding.submit(wait)

    yield occupy
    release.set()

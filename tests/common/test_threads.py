"""The thread pool: each chunk runs once, errors propagate, forks and concurrent callers are safe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from programs import run

from sb3_compressed.common import threads
from sb3_compressed.common.threads import default_num_threads, in_chunks, validate_num_threads

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture
def blocked_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Block the only thread of the pool; return a function that lets it run what is left in its queue."""
    free = threading.Event()
    pool = ThreadPoolExecutor(1)
    pool.submit(free.wait, 30)
    monkeypatch.setattr(threads, "_pool", pool)

    def release() -> None:
        free.set()
        pool.shutdown()

    yield release
    release()


@pytest.mark.parametrize(("length", "n_chunks"), [(0, 0), (0, 3), (1, 16), (7, 1), (7, 2), (7, 16), (100, 16)])
def test_every_index_is_in_one_chunk(length: int, n_chunks: int) -> None:
    seen = np.zeros(length, np.int64)

    def work(start: int, end: int) -> None:
        seen[start:end] += 1

    in_chunks(work, length, n_chunks)
    assert (seen == 1).all()


def test_error_of_the_first_failing_chunk_is_raised_after_all_have_run() -> None:
    done = []

    def work(start: int, end: int) -> None:
        if start in (1, 3):
            raise ValueError(f"chunk {start}")
        done.append(start)

    with pytest.raises(ValueError, match="chunk 1"):
        in_chunks(work, 4, 4)
    assert sorted(done) == [0, 2]


def test_default_is_the_number_of_cores_available_to_the_process() -> None:
    assert validate_num_threads(None) == default_num_threads()
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no CPU affinity")
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from sb3_compressed.common import threads
from sb3_compressed.common.threads import default_num_threads
print(default_num_threads())
"""
    assert run(code) == "1\n"


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_invalid_number_of_threads_raises(wrong: Any) -> None:
    with pytest.raises(ValueError, match="num_threads must be None or a positive int"):
        validate_num_threads(wrong)


@needs_fork
def test_forked_child_creates_its_own_pool() -> None:
    code = """
import os, threading
from sb3_compressed.common.threads import in_chunks
def n_threads():
    names = set()
    meeting = threading.Barrier(2, timeout=20)
    def work(start, end):
        meeting.wait()
        names.add(threading.current_thread().name)
    in_chunks(work, 2, 2)
    return len(names)
assert n_threads() == 2
child = os.fork()
if child == 0:
    os._exit(0 if n_threads() == 2 else 1)
assert os.waitpid(child, 0)[1] == 0
assert n_threads() == 2
"""
    run(code, PYTHONWARNINGS="ignore::DeprecationWarning")


@pytest.mark.parametrize("n_chunks", [2, 5])
def test_caller_runs_chunks_that_no_thread_claims(n_chunks: int, blocked_pool: Callable[[], None]) -> None:
    done: list[tuple[int, str]] = []
    in_chunks(lambda start, end: done.append((start, threading.current_thread().name)), n_chunks, n_chunks)
    assert sorted(start for start, _ in done) == [*range(n_chunks)]
    assert {name for _, name in done} == {threading.current_thread().name}
    blocked_pool()  # tasks left in its queue run now, without effect
    assert len(done) == n_chunks


def record(seen: list[int], start: int, end: int) -> None:
    seen.extend(range(start, end))


def test_concurrent_callers_each_run_every_chunk_once() -> None:
    def call(caller: int) -> None:
        for _ in range(100):
            seen: list[int] = []
            in_chunks(partial(record, seen), 50, 7)
            assert sorted(seen) == [*range(50)]

    with ThreadPoolExecutor(8) as callers:
        list(callers.map(call, range(8)))  # raises what they raise


def test_calls_work_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit of processes, or while the interpreter exits."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(threading.Thread, "start", start)
    seen: list[int] = []
    in_chunks(partial(record, seen), 50, 7)
    assert sorted(seen) == [*range(50)]


def test_chunks_run_concurrently() -> None:
    meeting = threading.Barrier(2, timeout=20)

    def meet(start: int, end: int) -> None:
        meeting.wait()  # times out unless both chunks run at the same time

    in_chunks(meet, 2, 2)

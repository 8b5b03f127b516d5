"""The pool calls each function once, also after interrupts, and the exit of the interpreter waits for it."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from interrupts import bytecodes, interrupt
from programs import run

from sb3_compressed.common.thread_pool import ThreadPool


def test_functions_are_called_in_threads_up_to_a_number() -> None:
    pool = ThreadPool(2)
    meeting = threading.Barrier(3, timeout=30)
    names: list[str] = []
    release = threading.Event()

    def meet() -> None:
        meeting.wait()
        release.wait(30)
        names.append(threading.current_thread().name)

    before = threading.active_count()
    for _ in range(2):
        pool.submit(meet)
    meeting.wait()
    done = threading.Event()
    pool.submit(done.set)
    assert threading.active_count() == before + 2
    assert not done.is_set()
    release.set()
    assert done.wait(30)
    assert len(names) >= 1


def test_an_idle_thread_is_used_again() -> None:
    pool = ThreadPool(50)
    before = threading.active_count()
    for _ in range(50):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(30)
    assert threading.active_count() < before + 50


@pytest.mark.parametrize("n_before", [0, 1])
def test_interrupts_leave_a_pool_that_works(n_before: int) -> None:
    """At each bytecode of ``submit``, with and without an idle thread."""

    def submitted(pool: ThreadPool) -> None:
        pool.submit(lambda: None)

    def new_pool() -> ThreadPool:
        pool = ThreadPool(4)
        for _ in range(n_before):
            done = threading.Event()
            pool.submit(done.set)
            assert done.wait(30)
        return pool

    found = bytecodes(partial(submitted, new_pool()))
    assert len(found) > 10
    for at in found:
        pool = new_pool()
        interrupt(partial(submitted, pool), at)
        done = threading.Event()
        for _ in range(3):  # the thread that was about to start may be missing
            pool.submit(done.set)
        assert done.wait(30)


def test_the_exit_of_the_interpreter_waits_for_functions() -> None:
    code = """
import threading, time
from sb3_compressed.common.thread_pool import ThreadPool
pool, started = ThreadPool(2), threading.Event()
def work():
    started.set()
    time.sleep(0.2)
    print("done", flush=True)
pool.submit(work)
started.wait()
"""
    assert run(code) == "done\n"

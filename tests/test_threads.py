"""The pool that decodes: parts cover everything once, errors come out, forks and many callers do no harm."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from programs import run

from sb3_compressed.threads import default_num_threads, in_chunks, validate_num_threads


@pytest.mark.parametrize("length", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("n_chunks", [0, 1, 2, 3, 16])
def test_every_index_is_in_one_part(length: int, n_chunks: int) -> None:
    seen = np.zeros(length, np.int64)

    def work(start: int, end: int) -> None:
        seen[start:end] += 1

    in_chunks(work, length, n_chunks)
    assert (seen == 1).all()


def test_parts_run_in_several_threads_at_once() -> None:
    meeting = threading.Barrier(2, timeout=30)

    def work(start: int, end: int) -> None:
        meeting.wait()  # would time out if one waited for the other

    in_chunks(work, 2, 2)


def test_the_first_error_is_raised_after_all_are_done() -> None:
    done = []

    def work(start: int, end: int) -> None:
        if start in (1, 3):
            raise ValueError(f"part {start}")
        done.append(start)

    with pytest.raises(ValueError, match="part 1"):
        in_chunks(work, 4, 4)
    assert sorted(done) == [0, 2]


def test_a_failing_first_part_waits_for_the_others() -> None:
    started, finished = threading.Event(), []

    def work(start: int, end: int) -> None:
        if start == 0:
            started.wait(30)
            raise KeyboardInterrupt
        started.set()
        finished.append(start)

    with pytest.raises(KeyboardInterrupt):
        in_chunks(work, 2, 2)
    assert finished == [1]


def test_the_default_is_what_the_process_may_use() -> None:
    assert validate_num_threads(None) == default_num_threads()
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system cannot say which cores a process may use")
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from sb3_compressed.threads import default_num_threads
print(default_num_threads())
"""
    assert run(code) == "1\n"


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_no_number_of_threads(wrong: Any) -> None:
    with pytest.raises(ValueError, match="num_threads must be None or a positive int"):
        validate_num_threads(wrong)


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    code = """
import os, threading
from sb3_compressed.threads import in_chunks
def parts():
    names = set()
    meeting = threading.Barrier(2, timeout=20)
    def work(start, end):
        meeting.wait()
        names.add(threading.current_thread().name)
    in_chunks(work, 2, 2)
    return len(names)
assert parts() == 2
child = os.fork()
if child == 0:
    os._exit(0 if parts() == 2 else 1)
assert os.waitpid(child, 0)[1] == 0
assert parts() == 2
"""
    run(code, PYTHONWARNINGS="ignore::DeprecationWarning")

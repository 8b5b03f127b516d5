"""Trainings on Ray survive kills of every kind of process: nothing twice, nothing torn, nothing acknowledged missing.

Neither is anything missing from the saves of their buffers.

``benchmarks/fault_soak.py`` does the same for hours.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed.fault_session import FaultSession, audit_memory, audit_shards

if sys.platform == "linux":
    import fcntl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux, Ray ends with a process that was killed"),
]

EMBEDDED = "shard", "learner"
CLUSTER = "shard", "collector", "memory shard", "node"


@pytest.fixture(autouse=True)
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let only one of these tests run at a time, since each needs all cores."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with open(folder / "faults.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def sessions() -> Iterator[list[FaultSession]]:
    """Return a list for all sessions; after the tests, nothing may be left of them.

    Ray's agents end a minute after their node was killed, for which nothing has to wait.
    """
    opened: list[FaultSession] = []
    yield opened
    try:
        for session in opened:
            session.require_nothing_left()
    finally:
        for session in opened:
            session.close()


def test_a_killed_learner_continues_and_ctrl_c_leaves_nothing(tmp_path: Path, sessions: list[FaultSession]) -> None:
    with FaultSession(tmp_path, 0) as session:
        sessions.append(session)
        for kind in EMBEDDED:
            session.kill(kind)
        session.program.wait_for_progress()
        os.killpg(session.program.process.pid, signal.SIGINT)
        session.program.wait_for_end(with_agents=False)
        assert session.program.process.wait() != 0
        assert audit_shards(tmp_path).n_acknowledged > 0
        assert session.kills.total() == len(EMBEDDED)


def test_what_was_killed_returns_and_what_was_stopped_is_left_out(tmp_path: Path, sessions: list[FaultSession]) -> None:
    with FaultSession(tmp_path, 1, "--nodes", "2", "--memory", "--timeout", "2") as session:
        sessions.append(session)
        for kind in CLUSTER:
            session.kill(kind)
        session.stop_shards()
        result = session.stop()
        assert session.kills.total() == len(CLUSTER)
        assert result.n_lost == 0
        assert result.n_saves > 0
        assert audit_shards(tmp_path).n_acknowledged > 0
        # Segments that were stored, but not acknowledged yet, are counted as lost and sent again.
        n_sent_again = result.n_memory_restarts * 2 * 4
        lost = audit_memory(tmp_path, result.n_memory_acknowledged).n_lost
        assert 0 < lost <= result.n_memory_lost <= lost + n_sent_again

"""Saves are complete or leave the last one, whatever is stopped or killed meanwhile.

``benchmarks/save_soak.py`` does the same for hours.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from distributed.save_session import SaveSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux, Ray ends with a process that was killed"),
]


#: How often a shard is stopped until a save has failed.
MAX_STOPS = 10


@pytest.mark.parametrize(
    ("options", "kinds"),
    [((), ("writer", "stop", "learner")), (("--storage",), ("shard", "stop", "learner"))],
    ids=["memory", "folders"],
)
def test_saves_are_complete_or_leave_the_last_one(
    tmp_path: Path, options: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    session = SaveSession(tmp_path, 0, *options, n_saves=2)
    try:
        for kind in kinds:
            session.cause(kind)
        # A save that begins late enough waits for less than the timeout, and returns.
        for _ in range(MAX_STOPS):
            if session.wait_for_saves(1).n_failed or session.n_failed:
                break
            session.cause("stop")
        result = session.stop()
        assert result.n_transitions > 0
        assert session.n_failed > 0
    finally:
        session.close()

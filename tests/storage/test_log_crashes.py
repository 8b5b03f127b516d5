"""New segments of a log are atomic: an exception, a kill, an interrupt or a full disk leaves the previous ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lines import interrupts
from programs import outcome, run

from sb3_compressed.storage import log as log_module
from storage.folders import names
from storage.logs import (
    new_log,
    opened,
    read_state,
    state_of,
)
from storage.segments import Records

pytestmark = pytest.mark.usefixtures("small_files")


KILL_IN_A_SNAPSHOT = """
import os, signal, sys
from pathlib import Path
from storage.logs import opened

log = opened(Path(sys.argv[1]), writable=True)
log.segment_to_write().append(3, b"more")

def snapshot():
    yield 1, b"snapshot"
    os.kill(os.getpid(), signal.SIGKILL)

log.write_snapshot(snapshot())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_kill_during_a_snapshot_leaves_the_previous_segments(tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    assert outcome(KILL_IN_A_SNAPSHOT, tmp_path).returncode == -9
    before = names(tmp_path)
    assert before[-2:] == ["00000004.log", "00000005.unfinished"]
    assert read_state(tmp_path) == [*state_of(1), (3, b"more")]
    assert names(tmp_path) == before, "readers delete nothing"
    log = opened(tmp_path, writable=True)
    log.clean_up()
    assert names(tmp_path) == before[:-1]
    log.write_snapshot([(1, b"snapshot 2")])
    log.close()
    assert read_state(tmp_path) == [(1, b"snapshot 2")]


def test_interrupted_snapshot_leaves_the_previous_segments_or_is_complete(tmp_path: Path) -> None:
    """Later records are in a segment that is read on open."""
    expected: list[Records] = [[*state_of(0), (3, b"more")], [(1, b"snapshot 1"), (3, b"more")]]
    found: list[Records] = []
    for interrupt in interrupts(log_module):
        folder = tmp_path / f"{interrupt.n_lines}"
        log = new_log(folder)
        with interrupt:
            log.write_snapshot([(1, b"snapshot 1")])
        log.segment_to_write().append(3, b"more")
        found.append(read_state(folder))
        assert found[-1] in expected, f"interrupted after {interrupt.n_lines} lines"
        log.write_snapshot([(1, b"next")])
        log.close()
        assert read_state(folder) == [(1, b"next")]
    assert interrupt.n_lines > 10
    assert all(state in found for state in expected)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from storage.logs import begin_segment, opened, read_state

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
log = opened(folder, writable=True)
log.segment_to_write().append(3, bytes(range(256)) * 80_000)
UNLIMITED = resource.RLIM_INFINITY
for limit in (10, 2000, 20_000_000):
    for begin in (
        lambda: log.write_snapshot([(1, bytes(range(256)))] * (10 if limit < 10_000 else 1_000_000)),
        lambda: begin_segment(log, 30_000_000),
        lambda: begin_segment(log, 0),  # there is room for it, but not to seal the segment before
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, UNLIMITED))
        try:
            begin()
        except OSError:
            print("refused")
        else:
            print("begun")
        resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        log.segment_to_write().append(4, b"%d" % limit)
        state = read_state(folder)
        print("found" if state[-1] == (4, b"%d" % limit) else "lost", len(state))
print([path.name for path in folder.glob("*.unfinished")])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_full_disk_leaves_the_previous_segments(tmp_path: Path) -> None:
    """Later records are in a segment that is read on open."""
    new_log(tmp_path).close()
    printed = run(FULL_DISK, tmp_path).splitlines()
    outcomes = ["refused"] * 5 + ["begun"] + ["refused"] * 2 + ["begun"]
    assert printed == [*[line for k, word in enumerate(outcomes) for line in (word, f"found {4 + k}")], "[]"]

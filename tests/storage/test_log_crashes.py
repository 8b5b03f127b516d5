"""New segments of a log are atomic: an exception, a kill, an interrupt or a full disk leaves the previous ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from drawn_examples import FACTOR
from interrupts import Bytecode, bytecodes, evenly, interrupt
from programs import outcome

from sb3_compressed.storage.log_files import unfinished_segments
from storage.folders import names
from storage.logs import (
    new_log,
    opened,
    read_state,
    state_of,
)

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

log.begin_segment(snapshot())
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
    log.begin_segment([(1, b"snapshot 2")])
    log.close()
    assert read_state(tmp_path) == [(1, b"snapshot 2")]


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_an_interrupted_segment_can_be_begun_again(is_snapshot: bool, tmp_path: Path) -> None:
    """Windows does not delete what is left of it if a frame of the interrupt's traceback has it open."""

    def run(folder: Path, at: Bytecode | None) -> list[Bytecode]:
        log = new_log(folder, 1)
        try:
            if at is None:
                return bytecodes(lambda: log.begin_segment(snapshot))
            error = interrupt(lambda: log.begin_segment(snapshot), at)
            log.begin_segment([(1, b"snapshot")])
            del error
        finally:
            log.close()
        assert read_state(folder) == [(1, b"snapshot")]
        assert not unfinished_segments(folder)
        return []

    snapshot = [(1, b"interrupted")] if is_snapshot else None
    run(tmp_path / "imports", None)
    found = run(tmp_path / "complete", None)
    for number, at in enumerate(evenly(found, 60 if FACTOR is None else len(found))):
        run(tmp_path / f"{number}", at)

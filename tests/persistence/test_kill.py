"""Processes that are killed while they add or save leave a complete state.

Each is killed at a random moment. ``SB3_COMPRESSED_KILLS`` sets their number: some in the gate, hundreds by hand.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import writer

from sb3_compressed import CompressedReplayBuffer

KILLS = int(os.environ.get("SB3_COMPRESSED_KILLS", "4"))


def killed_after(way: str, folder: Path, n_reports: int, spins: int) -> tuple[int, int]:
    """Run a writer and kill it; return its number of steps at the start and the last step that it reported."""
    with writer.start(way, folder) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("ready"), first
        reports = [process.stdout.readline() for _ in range(n_reports)]
        for _ in range(spins):  # a random amount of work
            pass
        process.kill()
        reports += process.stdout.readlines()
    return int(first.split()[1]), int(reports[-1])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["storage", "checkpoint", "prioritized"])
def test_killed_process_leaves_every_completed_step(way: str, tmp_path: Path) -> None:
    rng = random.Random(way)
    folder = tmp_path / "buffer"
    before = 0
    for _ in range(KILLS):
        began, reported = killed_after(way, folder, rng.randrange(15, 60), rng.randrange(200_000))
        assert began == before, "the next process starts with the complete state"
        buffer = CompressedReplayBuffer.from_checkpoint(folder, device="cpu")
        before = writer.hold_that_it_is_whole(buffer)
        step = writer.STEPS_A_SAVE if way == "checkpoint" else 1
        assert reported <= before <= reported + step, "no reported step is lost, and none is made up"
    assert before > writer.ROWS, "the ring was overwritten"

"""Processes that are killed in the middle of adding or saving: what they leave is a state that really was.

Each is killed at a random moment. ``SB3_COMPRESSED_KILLS`` sets how many are: some in the gate, hundreds by hand.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import writer

from sb3_compressed import CompressedReplayBuffer

KILLS = int(os.environ.get("SB3_COMPRESSED_KILLS", "8"))


def killed_after(way: str, folder: Path, n_reports: int, spins: int) -> tuple[int, int]:
    """Run a writer, kill it, and return what it had when it began and the last step that it reported."""
    with writer.start(way, folder) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("ready"), first
        reports = [process.stdout.readline() for _ in range(n_reports)]
        for _ in range(spins):  # some time, of which no clock knows how much
            pass
        process.kill()
        reports += process.stdout.readlines()
    return int(first.split()[1]), int(reports[-1])


@pytest.mark.parametrize("way", ["storage", "checkpoint"])
def test_killed_process_leaves_every_completed_step(way: str, tmp_path: Path) -> None:
    rng = random.Random(way)
    folder = tmp_path / "buffer"
    before = 0
    for _ in range(KILLS):
        began, reported = killed_after(way, folder, rng.randrange(1, 60), rng.randrange(200_000))
        assert began == before, "what was there is what the next process begins with"
        buffer = CompressedReplayBuffer.from_checkpoint(folder, device="cpu")
        before = writer.hold_that_it_is_whole(buffer)
        step = 1 if way == "storage" else writer.STEPS_A_SAVE
        assert reported <= before <= reported + step, "nothing reported is lost, and nothing was made up"
    assert before > writer.ROWS, "the ring went round"

"""``make demo``: its numbers are measured, its comparison of weights can fail, and it shows progress everywhere."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_python
from terminal_output import PICTURES, read_terminal, texts_of, words

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO = EXAMPLES / "demo.py"
#: Rows of the table, and what they contain after a short run.
ROWS = {
    "memory at the first step": r"\d+ MB",
    "memory at the last step": r"\d+ MB",
    "growth per transition": "too few to measure",
    r"1,000,000 \(extrapolated\)": "too few to measure",
    "time until the first step": r"[\d.]+ s",
    "time from there to the last": r"[\d.]+ s",
}


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("demo")


@pytest.mark.slow
def test_two_processes_end_with_identical_weights(tmp_path: Path) -> None:
    options = ["--transitions", 600, "--game", "Pong", "--out", tmp_path / "out"]
    done = run_python([DEMO, *options], {**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for name in ("SB3's ReplayBuffer", "CompressedReplayBuffer"):
        lines = re.findall(rf"^ *\d+ s  {name}: ([\d,]+) of 600 transitions, (\d+) updates, \d+ MB$", done.stdout, re.M)
        assert [*map(int, next(zip(*lines)))] == [*range(0, 601, 60)], "lines as it goes without a terminal"
        assert int(lines[-1][1]) == 8
    for row, value in ROWS.items():
        assert re.search(rf"{row} +{value} +{value}", done.stdout), row
    assert re.search(
        r"Weights: identical\. All 3,[\d,]+ parameters .* after 8 updates, which changed [\d,]{7}", done.stdout
    )
    assert "8 updates teach the network nothing" in done.stdout
    recorded, drawn = (
        {text for text in texts_of(path) if not re.fullmatch(r"[\d,]+", text)}
        for path in (PICTURES / "demo.svg", tmp_path / "out" / "demo.svg")
    )
    assert {text.replace("MsPacman", "Pong") for text in recorded} == drawn, "make pictures"
    assert (tmp_path / "out" / "frames.gif").read_bytes().startswith(b"GIF89a")
    for name in ("demo.svg", "frames.gif"):
        assert str(tmp_path / "out" / name) in done.stdout


def test_differing_weights_are_counted(demo: Any, tmp_path: Path) -> None:
    weights = np.linspace(-1, 1, 12, dtype=np.float32)
    changed = weights.reshape(3, 4).copy()
    changed[1, 2] = np.nextafter(changed[1, 2], np.float32(2))  # the last bit
    changed[2, 0] = np.nan
    for name, array in {"ours": weights.reshape(3, 4), "theirs": changed, "other": weights}.items():
        np.savez(tmp_path / f"{name}.npz", weight=array, bias=np.zeros(2, np.float32))
    assert demo.compare(tmp_path / "ours.npz", tmp_path / "ours.npz") == (14, 0)
    assert demo.compare(tmp_path / "theirs.npz", tmp_path / "theirs.npz") == (14, 0), "NaN is equal to itself"
    assert demo.compare(tmp_path / "ours.npz", tmp_path / "theirs.npz") == (14, 2)
    with pytest.raises(ValueError, match="different networks"):
        demo.compare(tmp_path / "ours.npz", tmp_path / "other.npz")


def test_growth_is_measured_after_updates_have_begun(demo: Any) -> None:
    memory = [(0, 400_000_000), (3_000, 500_000_000), (5_000, 600_000_000), (15_000, 1_100_000_000)]
    assert demo.Training("", memory).nbytes_per_transition == 50_000
    assert demo.Training("", [(0, 400), (5_000, 10**9), (15_000, 10**9 + 10_000)]).nbytes_per_transition is None
    grown = [(n, 400_000_000 + 50_000 * n - (200_000_000 if n > 6_000 else 0)) for n in range(0, 15_001, 500)]
    assert demo.Training("", grown).nbytes_per_transition == 50_000, "although the system took back other memory"


def test_errors_of_a_training_are_shown(tmp_path: Path) -> None:
    done = run_python([DEMO, "--game", "Pomg", "--out", tmp_path], os.environ)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "there is no game 'Pomg'; did you mean Pong" in words(done.stderr)


def test_too_little_memory_is_reported_before(tmp_path: Path) -> None:
    done = run_python([DEMO, "--transitions", 10**9, "--out", tmp_path], os.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(
        r"SB3's buffer with 1,000,000,000 transitions needs a process of 56448\.7 GB, and [\d.]+ GB of memory are "
        r"available: run python examples/demo.py --transitions \d+000$",
        done.stderr,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal and a signal that interrupts")
@pytest.mark.slow
def test_a_terminal_shows_bars_until_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, str(DEMO), "--transitions", "5000", "--out", str(tmp_path)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, start_new_session=True) as process:
        os.close(theirs)
        printed, is_sent = "", False
        for text in read_terminal(ours):
            printed += text
            if not is_sent and re.search(r"[1-9]\d* transitions +[\d,]+ MB", printed):
                os.killpg(process.pid, signal.SIGINT)
                is_sent = True
    os.close(ours)
    assert process.returncode == 130, printed
    assert "\x1b[1A" in printed, "bars are drawn over each other"
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in printed
    assert "Traceback" not in printed

"""Measurements of several rounds are combined."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.progress import Progress

from sb3_compressed.benchmarking.runner import Job, run_in_turn, run_interleaved

PROGRAM = """
import json, pathlib, sys
given = json.loads(sys.argv[1])
path = pathlib.Path(given["file"])
number = len(path.read_text()) if path.exists() else 0
path.write_text("x" * (number + 1))
print("a library may print")
measured = {"add": 10.0 * number, "quartiles": {"add": [number, 2 * number]}, "wrong": "", "name": given["name"]}
print(json.dumps(measured))
"""


def test_rounds_have_medians_and_keep_their_numbers(tmp_path: object) -> None:
    jobs = [Job("Pong", "auto#main", {"file": f"{tmp_path}/count", "name": "auto"})]
    with Progress(disable=True) as progress:
        results = run_interleaved(lambda job: [sys.executable, "-c", PROGRAM], jobs, 3, progress)
        once = run_interleaved(lambda job: [sys.executable, "-c", PROGRAM], jobs, 1, progress)
    assert results == {
        "Pong": {
            "auto#main": {
                "add": 10.0,
                "quartiles": {"add": [1, 2]},
                "wrong": "",
                "name": "auto",
                "runs": {"add": [0.0, 10.0, 20.0]},
            }
        }
    }
    assert "runs" not in once["Pong"]["auto#main"]
    json.dumps(results)


FAILING = """
import json, pathlib, sys
path = pathlib.Path(json.loads(sys.argv[1])["file"])
path.write_text(path.read_text() + "x" if path.exists() else "x")
sys.exit("a warning\\nthere is no such game")
"""


def test_failures_are_printed_and_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Job("Pong", "auto", {"file": f"{tmp_path}/count"})]
    with Progress() as progress:
        results = run_interleaved(lambda job: [sys.executable, "-c", FAILING], jobs, 3, progress)
    error = "the process ended with 1: there is no such game"
    assert results == {"Pong": {"auto": {"error": error}}}
    assert (tmp_path / "count").read_text() == "x"
    assert f"Pong, auto: {error}" in capsys.readouterr().out.replace("\n", " ")


TURNS = """
import json, pathlib, sys, threading, time
from sb3_compressed.benchmarking.runner import pause
given = json.loads(sys.argv[1])
path = pathlib.Path(given["file"])

def write_often():
    while True:
        with path.open("a") as file:
            file.write(given["name"])
        time.sleep(1e-4)

threading.Thread(target=write_often, daemon=True).start()
for segment in range(given["n"]):
    pause()
    with path.open("a") as file:
        file.write(f" {given['name']}{segment}:")
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass
if given["n"] == 1:
    sys.exit("no more")
print(json.dumps({"name": given["name"]}))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_only_one_process_is_active_with_all_of_its_threads(tmp_path: Path) -> None:
    file = tmp_path / "turns"
    jobs = [Job("Pong", name, {"file": str(file), "n": n}) for name, n in [("a", 3), ("b", 3), ("c", 1)]]
    results = run_in_turn(lambda job: [sys.executable, "-c", TURNS], jobs)
    assert results == [{"name": "a"}, {"name": "b"}, {"error": "the process ended with 1: no more"}]
    written = file.read_text()
    # The order is reversed after each turn. Before the first turn, threads may have written as well.
    assert re.findall(r" ([abc]\d):", written) == ["a0", "b0", "c0", "b1", "a1", "a2", "b2"]
    writers = "".join(name for name, _ in itertools.groupby(re.findall("[abc]", written)))
    assert writers in ("abcbab", "babcbab", "cbabcbab", "cabcbab")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_no_process_is_left_after_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([os.waitid] * 3)

    def interrupted(*arguments: Any) -> Any:
        wait = next(waits, None)
        if wait is None:
            raise KeyboardInterrupt
        return wait(*arguments)

    monkeypatch.setattr(os, "waitid", interrupted)
    processes = psutil.Process().children()
    jobs = [Job("Pong", name, {"file": str(tmp_path / name), "n": 2}) for name in "ab"]
    with pytest.raises(KeyboardInterrupt):
        run_in_turn(lambda job: [sys.executable, "-c", TURNS], jobs)
    assert psutil.Process().children() == processes

"""Of several measurements, one is active at a time."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sb3_compressed.benchmarking.measurement import Job
from sb3_compressed.benchmarking.time_slices import run_in_time_slices

PROGRAM = """
import json, pathlib, sys, threading, time
from sb3_compressed.benchmarking.time_slices import pause
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

#: The folder of the scripts is on this path.
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_only_one_process_is_active_with_all_of_its_threads(tmp_path: Path) -> None:
    file = tmp_path / "file"
    jobs = [Job("Pong", name, {"file": str(file), "n": n}) for name, n in [("a", 3), ("b", 3), ("c", 1)]]
    results = run_in_time_slices(lambda job: [sys.executable, "-c", PROGRAM], jobs, ENVIRON)
    assert results == [{"name": "a"}, {"name": "b"}, {"error": "the process ended with 1: no more"}]
    written = file.read_text()
    # The order is reversed after each round of slices. Before the first one, threads may have written as well.
    assert re.findall(r" ([abc]\d):", written) == ["a0", "b0", "c0", "b1", "a1", "a2", "b2"]
    writers = "".join(name for name, _ in itertools.groupby(re.findall("[abc]", written)))
    assert writers in ("abcbab", "babcbab", "cbabcbab", "cabcbab")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_no_process_is_left_after_an_interrupt(tmp_path: Path) -> None:
    slices: list[Job] = []

    def interrupt(job: Job) -> None:
        slices.append(job)
        if len(slices) == 4:
            raise KeyboardInterrupt

    processes = psutil.Process().children()
    jobs = [Job("Pong", name, {"file": str(tmp_path / name), "n": 2}) for name in "ab"]
    with pytest.raises(KeyboardInterrupt):
        run_in_time_slices(lambda job: [sys.executable, "-c", PROGRAM], jobs, ENVIRON, interrupt)
    assert psutil.Process().children() == processes


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_a_process_that_is_killed_while_it_is_stopped_is_reported(tmp_path: Path) -> None:
    jobs = [Job("Pong", name, {"file": str(tmp_path / name), "n": 2}) for name in "ab"]
    starts: list[Job] = []
    others = psutil.Process().children()

    def on_slice(job: Job) -> None:
        starts.append(job)
        if len(starts) == 3:  # both are stopped
            next(child for child in psutil.Process().children() if child not in others).kill()

    results = run_in_time_slices(lambda job: [sys.executable, "-c", PROGRAM], jobs, ENVIRON, on_slice)
    assert sorted(result.get("name", "killed") for result in results) in (["a", "killed"], ["b", "killed"])
    assert any("was killed" in result.get("error", "") for result in results)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, a process is not told that its parent has ended")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL"])
def test_no_process_is_left_if_the_parent_is_killed(tmp_path: Path, number: str) -> None:
    program = f"""
import sys
from sb3_compressed.benchmarking.measurement import Job
from sb3_compressed.benchmarking.time_slices import run_in_time_slices
jobs = [Job("Pong", name, {{"file": {str(tmp_path / "file")!r}, "n": 10**9}}) for name in "abc"]
run_in_time_slices(lambda job: [sys.executable, "-c", {PROGRAM!r}], jobs)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], env=ENVIRON)
    children: list[psutil.Process] = []
    while len(children) < 3 or not (tmp_path / "file").exists():
        assert parent.poll() is None
        time.sleep(0.1)
        children = psutil.Process(parent.pid).children()
    parent.send_signal(getattr(signal, number))
    parent.wait()
    assert not psutil.wait_procs(children, timeout=30)[1]

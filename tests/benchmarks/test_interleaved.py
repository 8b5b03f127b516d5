"""Measurements of several rounds are combined."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from interleaved import run_interleaved
from measurement import Job
from rich.progress import Progress

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

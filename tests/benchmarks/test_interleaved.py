"""Measurements of several rounds are combined."""

from __future__ import annotations

import sys

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

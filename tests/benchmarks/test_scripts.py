"""Every benchmark works in its smoke form; how fast it finds anything is not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, folder: Path, *flags: str) -> tuple[str, Any]:
    """Run a script as a user would, without the peers, and return what it prints and its results."""
    out = folder / "results" / f"{script}.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / f"{script}.py", "--smoke", "--peers", "none", "--out", out, *flags],
        env={**os.environ, "XDG_CACHE_HOME": str(folder), "PYTHONPATH": str(BENCHMARKS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert written["benchmark"] == script
    assert written["machine"]["versions"][0]["torch"]
    return done.stdout, written["results"]


def test_replay(tmp_path: Path) -> None:
    printed, results = run("replay", tmp_path, "--sources", "Pong", "--contenders", "auto", "extra:zstd3")
    assert "| sb3-compressed `auto` |" in printed
    assert results["Pong"].keys() == {"SB3", "auto"}, "peers are left out where they are not installed"
    for measured in results["Pong"].values():
        assert measured.pop("wrong") == ""
        assert measured.keys() == {"rss", "add", "sample(32)", "sample(256)", "sample(1024)"}
        assert all(value > 0 for key, value in measured.items() if key != "rss")
    assert len(list(tmp_path.glob("sb3-compressed/Pong-*.zst"))) == 1, "frames are recorded once"


def test_rollout(tmp_path: Path) -> None:
    printed, results = run("rollout", tmp_path, "--sources", "Pong", "--contenders", "auto")
    assert "| sb3-compressed `auto` |" in printed
    for measured in results["Pong"].values():
        assert measured.pop("wrong") == ""
        assert measured.keys() == {"rss", "add", "get"}


def test_published(tmp_path: Path) -> None:
    printed, results = run("published", tmp_path, "--codecs", "zstd-5")
    assert "| `zstd-5` |" in printed
    assert results.keys() == {"save", "load"}
    for of_test in results.values():
        assert of_test.keys() == {"SB3", "zstd-5"}
        for measured in of_test.values():
            assert measured.pop("wrong") == ""
            assert measured.keys() == {"rss", "counted", "latency"}

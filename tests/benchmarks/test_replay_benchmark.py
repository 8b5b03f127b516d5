"""The benchmark of replay buffers works in a short form; how fast it finds anything is not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "replay.py"


def test_it_measures_memory_and_times_and_writes_a_table(tmp_path: Path) -> None:
    out = tmp_path / "results" / "replay.json"
    flags = ["--games", "Pong", "--size", "800", "--rounds", "1", "--methods", "auto", "none", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *flags],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| `auto` |" in done.stdout
    assert "| `none` |" in done.stdout
    of_pong = json.loads(out.read_text())["results"]["Pong"]
    assert of_pong.keys() == {"SB3", "auto", "none"}
    for medians in of_pong.values():
        assert {"rss", "add", "sample(32)", "sample(256)", "sample(1024)"} == medians.keys()
        assert all(value > 0 for key, value in medians.items() if key != "rss")
    assert len(list(tmp_path.glob("sb3-compressed/Pong-*.zst"))) == 1, "frames are recorded once"

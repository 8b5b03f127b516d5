"""What all scripts share: flags, one process for every measurement, turns, and the file of results.

A script has a function that measures one contender and returns numbers by name. It is run in a process of its own, by
the interpreter of the environment its library is installed in, as ``script.py --one '{"contender": ..., ...}'``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from contenders.names import is_peer
from sb3_compressed.benchmarking import runner
from sb3_compressed.benchmarking.runner import Job, Measurement

ROOT = Path(__file__).parents[1]
PEERS = Path(os.environ.get("SB3_COMPRESSED_PEERS", ROOT / ".venv-peers" / "bin" / "python"))
RESULTS = ROOT / "benchmarks" / "results"
CONSOLE = Console(stderr=True)


def parser(doc: str | None, *, contenders: Sequence[str] = (), rounds: int = 3) -> argparse.ArgumentParser:
    """Return a parser with the flags that all scripts have."""
    flags = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=rounds, help="how often each is measured (default: %(default)s)")
    flags.add_argument("--out", type=Path, help="file for the results as JSON")
    flags.add_argument("--peers", type=Path, default=PEERS, help="the peers' interpreter (default: %(default)s)")
    flags.add_argument("--smoke", action="store_true", help="only see whether it works, in seconds")
    if contenders:
        flags.add_argument("--contenders", nargs="+", default=list(contenders), help="as auto zstd3 auto@1 extra:zstd3")
    return flags


def serve(measure: Callable[..., Measurement]) -> None:
    """Measure and end the process, if this one was started to measure one contender."""
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        print(json.dumps(measure(**json.loads(sys.argv[2]))))
        sys.exit()


def available(names: Sequence[str], peers: Path) -> list[str]:
    """Return the contenders that can be measured here, and say which cannot."""
    missing = [name for name in names if is_peer(name)] if not peers.exists() else []
    if missing:
        CONSOLE.print(f"left out, since {peers} is not there (make peers): {', '.join(missing)}")
    return [name for name in names if name not in missing]


def run_interleaved(
    measure: Callable[..., Measurement], jobs: Sequence[Job], rounds: int, peers: Path
) -> dict[str, dict[str, Measurement]]:
    """Measure every job once a round by the script of the measuring function, and return ``{label: {...}}``."""
    script = inspect.getfile(measure)

    def command(job: Job) -> list[str]:
        return [str(peers) if is_peer(job.contender) else sys.executable, script, "--one"]

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    # This package is not installed where the peers are.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with Progress(*columns, console=CONSOLE) as progress:
        return runner.run_interleaved(command, jobs, rounds, progress, {**os.environ, "PYTHONPATH": path})


def save(path: Path | None, benchmark: str, arguments: dict[str, Any], results: Any, peers: Path) -> None:
    """Write the results and all that is needed to judge them, if there is a file for them."""
    if path is not None:
        runner.save(path, benchmark, arguments, results, sys.executable, peers)

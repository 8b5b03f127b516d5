"""What all scripts share: flags, one process for every measurement, turns, and the file of results.

A script has a function that measures one contender and returns numbers by name. It is run in a process of its own, by
the interpreter of the environment its library is installed in, as ``script.py --one '{"contender": ..., ...}'``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from contenders.names import is_peer

ROOT = Path(__file__).parents[1]
PEERS = Path(os.environ.get("SB3_COMPRESSED_PEERS", ROOT / ".venv-peers" / "bin" / "python"))
RESULTS = ROOT / "benchmarks" / "results"
CONSOLE = Console(stderr=True)

Measurement = dict[str, Any]
"""Numbers by name, or the one entry ``error``."""


@dataclass(frozen=True)
class Job:
    """One measurement to be made: a contender under some label, with the other arguments of the measuring function."""

    label: str
    contender: str
    arguments: dict[str, Any]


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


def take_turns(
    measure: Callable[..., Measurement], jobs: Sequence[Job], rounds: int, peers: Path
) -> dict[str, dict[str, Measurement]]:
    """Measure every job once a round, in a process of its own, and return ``{label: {contender: medians}}``.

    What fails is reported, and is not tried again.
    """
    script = inspect.getfile(measure)
    runs: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=CONSOLE) as progress:
        task = progress.add_task("measuring", total=rounds * len(jobs))
        for job in [job for _ in range(rounds) for job in jobs]:
            progress.update(task, description=f"{job.label}, {job.contender}")
            of_job = runs[job.label, job.contender]
            if not any("error" in run for run in of_job):
                of_job.append(_in_own_process(script, job, peers))
                if "error" in of_job[-1]:
                    CONSOLE.print(f"{job.label}, {job.contender}: {of_job[-1]['error']}", markup=False)
            progress.advance(task)
    results: dict[str, dict[str, Measurement]] = defaultdict(dict)
    for (label, contender), of_job in runs.items():
        results[label][contender] = _medians(of_job)
    return dict(results)


def _in_own_process(script: str, job: Job, peers: Path) -> Measurement:
    interpreter = str(peers) if is_peer(job.contender) else sys.executable
    command = [interpreter, script, "--one", json.dumps({"contender": job.contender, **job.arguments})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [""]
        return {"error": f"ended with {done.returncode}: {said[-1]}"}
    measured: Measurement = json.loads(done.stdout.splitlines()[-1])  # libraries print, too
    return measured


def _medians(runs: list[Measurement]) -> Measurement:
    """Return the medians of the numbers of several runs; what is no number must be the same in all."""
    if errors := [run for run in runs if "error" in run]:
        return errors[0]
    return {
        key: statistics.median(run[key] for run in runs) if isinstance(value, int | float) else value
        for key, value in runs[0].items()
    }


def save(path: Path | None, benchmark: str, arguments: dict[str, Any], results: Any, peers: Path) -> None:
    """Write the results and all that is needed to judge them."""
    if path is None:
        return
    about = {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(sys.executable, peers),
        "arguments": arguments,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")

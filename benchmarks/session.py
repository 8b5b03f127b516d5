"""What all scripts share: flags, a process per measurement, and the file of results.

A script has a function that measures one buffer and returns numbers by key. It runs in a process of its own as
``script.py --one '{"name": ..., ...}'``, with the interpreter of the environment that the buffer's library is in.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import machine, version
from measurement import Job, Measurement, arguments_of, measurement_of, medians
from ratios import Results
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adapters.buffer_names import is_peer

ROOT = Path(__file__).parents[1]
PEERS = Path(os.environ.get("SB3_COMPRESSED_PEERS", ROOT / ".venv-peers" / "bin" / "python"))
RESULTS = ROOT / "benchmarks" / "results"
CONSOLE = Console(stderr=True)


def parser(doc: str | None, *, buffers: Sequence[str] = (), rounds: int = 1) -> argparse.ArgumentParser:
    """Return a parser with the flags of all scripts."""
    flags = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=rounds, help="measurements of each buffer (default: %(default)s)")
    flags.add_argument("--out", type=Path, help="write the results to this JSON file")
    flags.add_argument("--peers", type=Path, default=PEERS, help="interpreter of the peers (default: %(default)s)")
    flags.add_argument("--smoke", action="store_true", help="only test that the script works, in seconds")
    if buffers:
        flags.add_argument("--buffers", nargs="+", default=list(buffers), help="e.g. auto zstd3 auto@1 extra:zstd3")
    return flags


def serve(measure: Callable[..., Measurement]) -> None:
    """If this process was started for one measurement, measure and exit."""
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        print(json.dumps(measure(**json.loads(sys.argv[2]))))
        sys.exit()


def available(names: Sequence[str], peers: Path) -> list[str]:
    """Return the buffers that can be measured here, and print the others."""
    missing = [name for name in names if is_peer(name)] if not peers.exists() else []
    if missing:
        CONSOLE.print(f"skipping {', '.join(missing)}: {peers} does not exist (make peers)")
    return [name for name in names if name not in missing]


def run(
    measure: Callable[..., Measurement],
    jobs: Sequence[Job],
    flags: argparse.Namespace,
    *,
    rounds: int = 1,
    parallel: int = 1,
) -> Results:
    """Run every job once per round with the script of ``measure`` and return ``{label: {name: medians}}``.

    Failures are printed and not repeated. With ``--smoke``, which measures nothing, jobs run in this process, so that
    each import is done once.

    :param parallel: how many jobs run at a time; one where times are measured
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    script, env = inspect.getfile(measure), _environ()
    runs: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    with Progress(*columns, console=CONSOLE) as progress, ThreadPoolExecutor(parallel) as pool:
        task = progress.add_task("measuring", total=rounds * len(jobs))

        def measured(job: Job) -> None:
            progress.update(task, description=f"{job.label}, {job.name}")
            of_job = runs[job.label, job.name]
            if not any("error" in each for each in of_job):
                if flags.smoke and not is_peer(job.name):
                    of_job.append(measure(**arguments_of(job)))
                else:
                    python = str(flags.peers) if is_peer(job.name) else sys.executable
                    of_job.append(_run([python, script, "--one", json.dumps(arguments_of(job))], env))
                if "error" in of_job[-1]:
                    progress.console.print(f"{job.label}, {job.name}: {of_job[-1]['error']}", markup=False)
            progress.advance(task)

        for _ in range(rounds):
            list((map if flags.smoke else pool.map)(measured, jobs))  # Ray requires the main thread
    results: Results = defaultdict(dict)
    for job in jobs:
        results[job.label][job.name] = medians(runs[job.label, job.name])
    return dict(results)


def _run(command: list[str], env: dict[str, str]) -> Measurement:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return measurement_of(done.returncode, done.stdout, done.stderr)


def _environ() -> dict[str, str]:
    # This package is not installed in the environment of the peers.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def save(flags: argparse.Namespace, benchmark: str, settings: dict[str, Any], results: Any) -> None:
    """Write the results with date, machine and versions, if ``--out`` is a path."""
    path: Path | None = flags.out
    if path is None:
        return
    metadata = {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%d"),
        "version": version(),
        "machine": machine(sys.executable, flags.peers),
        "settings": settings,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**metadata, "results": results}, indent=1) + "\n")

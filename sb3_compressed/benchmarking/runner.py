"""Measurements take turns, each in a process of its own; and the file of their results."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from sb3_compressed.benchmarking.machine import machine

__all__ = ["Job", "Measurement", "check_savable", "run_interleaved", "save"]

Measurement = dict[str, Any]
"""Numbers by name, or the one entry ``error``."""


@dataclass(frozen=True)
class Job:
    """One measurement to be made: a contender under some label, with the other arguments of the measuring function."""

    label: str
    contender: str
    arguments: dict[str, Any]


def run_interleaved(
    command: Callable[[Job], list[str]],
    jobs: Sequence[Job],
    rounds: int,
    progress: Progress,
    env: dict[str, str] | None = None,
) -> dict[str, dict[str, Measurement]]:
    """Measure every job once a round, in a process of its own, and return ``{label: {contender: medians}}``.

    What fails is reported, and is not tried again.

    :param command: the beginning of the process's command; the job's arguments follow as JSON, and the last line that
        it prints is the measurement, as JSON
    :param progress: shows a bar, and what failed
    :param env: environment variables of the processes; those of this one if left out
    """
    runs: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    task = progress.add_task("measuring", total=rounds * len(jobs))
    for job in [job for _ in range(rounds) for job in jobs]:
        progress.update(task, description=f"{job.label}, {job.contender}")
        of_job = runs[job.label, job.contender]
        if not any("error" in run for run in of_job):
            of_job.append(_in_own_process(command(job), job, env))
            if "error" in of_job[-1]:
                progress.console.print(f"{job.label}, {job.contender}: {of_job[-1]['error']}", markup=False)
        progress.advance(task)
    results: dict[str, dict[str, Measurement]] = defaultdict(dict)
    for (label, contender), of_job in runs.items():
        results[label][contender] = _medians(of_job)
    return dict(results)


def _in_own_process(command: list[str], job: Job, env: dict[str, str] | None) -> Measurement:
    arguments = json.dumps({"contender": job.contender, **job.arguments})
    done = subprocess.run([*command, arguments], capture_output=True, text=True, check=False, env=env)
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


def check_savable(path: Path) -> None:
    """Find out before the work is done whether its results can be saved.

    :raises OSError: if they cannot
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, and the results are one file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written")


def save(path: Path, benchmark: str, arguments: dict[str, Any], results: Any, *interpreters: str | Path) -> None:
    """Write the results and all that is needed to judge them.

    :param interpreters: those whose libraries took part
    """
    about = {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(*interpreters),
        "arguments": arguments,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")

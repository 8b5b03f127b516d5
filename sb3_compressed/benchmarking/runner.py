"""Run measurements, each in a process of its own, and return their medians."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Job", "Measurement", "json_arguments", "measurement_of", "run_interleaved"]

Measurement = dict[str, Any]
"""Numbers by key, or a single entry ``error``."""


@dataclass(frozen=True)
class Job:
    """One measurement: of the buffer ``name``, reported under a label, with further arguments."""

    label: str
    name: str
    arguments: dict[str, Any]


def run_interleaved(
    command: Callable[[Job], list[str]],
    jobs: Sequence[Job],
    rounds: int,
    progress: Progress,
    env: dict[str, str] | None = None,
) -> dict[str, dict[str, Measurement]]:
    """Run every job once per round and return ``{label: {name: medians}}``.

    Failures are printed and not repeated.

    :param command: returns the command without its last argument, the job's name and arguments as JSON; the last line
        of its output is the measurement as JSON
    :param env: environment variables of the processes, by default those of this one
    """
    runs: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    task = progress.add_task("measuring", total=rounds * len(jobs))
    for job in [job for _ in range(rounds) for job in jobs]:
        progress.update(task, description=f"{job.label}, {job.name}")
        of_job = runs[job.label, job.name]
        if not any("error" in run for run in of_job):
            of_job.append(_run(command(job), job, env))
            if "error" in of_job[-1]:
                progress.console.print(f"{job.label}, {job.name}: {of_job[-1]['error']}", markup=False)
        progress.advance(task)
    results: dict[str, dict[str, Measurement]] = defaultdict(dict)
    for (label, name), of_job in runs.items():
        results[label][name] = _medians(of_job)
    return dict(results)


def _run(command: list[str], job: Job, env: dict[str, str] | None) -> Measurement:
    done = subprocess.run([*command, json_arguments(job)], capture_output=True, text=True, check=False, env=env)
    return measurement_of(done.returncode, done.stdout, done.stderr)


def json_arguments(job: Job) -> str:
    """Return the last argument of the process of a job."""
    return json.dumps({"name": job.name, **job.arguments})


def measurement_of(returncode: int, out: str, err: str) -> Measurement:
    """Return what a process has measured, or its error, from its exit code and its outputs."""
    if returncode:
        lines = err.strip().splitlines() or [""]
        return {"error": f"the process ended with {returncode}: {lines[-1]}"}
    measured: Measurement = json.loads(out.splitlines()[-1])  # libraries may print before
    return measured


def _medians(runs: list[Measurement]) -> Measurement:
    """Return the medians of all numbers and, of several runs, each run's numbers under ``runs``."""
    if errors := [run for run in runs if "error" in run]:
        return errors[0]
    numbers = [key for key, value in runs[0].items() if isinstance(value, int | float)]
    by_run = {"runs": {key: [run[key] for run in runs] for key in numbers}} if len(runs) > 1 else {}
    return {**_median(runs), **by_run}


def _median(values: Sequence[Any]) -> Any:
    """Return the median of numbers, also within lists and dicts; other values are equal in all runs."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _median([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        return [_median(each) for each in zip(*values)]
    return statistics.median(values) if isinstance(first, int | float) else first

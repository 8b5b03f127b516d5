"""Run measurements one after the other, each in a process of its own, and return their medians."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence

from measurement import Job, Measurement, json_arguments, measurement_of, medians
from rich.progress import Progress


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
        results[label][name] = medians(of_job)
    return dict(results)


def _run(command: list[str], job: Job, env: dict[str, str] | None) -> Measurement:
    done = subprocess.run([*command, json_arguments(job)], capture_output=True, text=True, check=False, env=env)
    return measurement_of(done.returncode, done.stdout, done.stderr)

"""Run measurements, each in a process of its own, and return their medians."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Job", "Measurement", "pause", "run_in_turn", "run_interleaved"]

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


def pause() -> None:
    """Stop this process with all of its threads, until :func:`run_in_turn` continues it.

    Without effect on systems that cannot stop a process; there, processes run one after the other.
    """
    if hasattr(signal, "SIGSTOP"):
        # To this thread: a signal to the process may reach another one, and this one would go on for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def run_in_turn(
    command: Callable[[Job], list[str]], jobs: Sequence[Job], env: dict[str, str] | None = None
) -> list[Measurement]:
    """Run jobs at the same time, of which only one is active at any moment; return their measurements.

    A job is active until it calls :func:`pause`, then the next one is. So a machine that becomes slower does so for all
    of them. After each turn, their order is reversed.

    :param command: as in :func:`run_interleaved`
    :param env: likewise
    """
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_Process([*command(job), _arguments(job)], env)) for job in jobs]
        active = processes
        while active:
            active = [process for process in active[::-1] if process.run_until_pause()]
        return [process.measurement() for process in processes]


class _Process:
    """A process that is stopped while it is not its turn. It is killed if it has not ended when this is closed."""

    def __init__(self, command: list[str], env: dict[str, str] | None) -> None:
        self._command, self._env = command, env
        # Not pipes, which would be full sometime.
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by __exit__
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._err.close()

    def run_until_pause(self) -> bool:
        """Start or continue it, and wait until it pauses or ends; return whether it has paused."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdout=self._out, stderr=self._err, text=True, env=self._env
            )
        else:
            self._process.send_signal(signal.SIGCONT)
        if not hasattr(os, "waitid"):
            self._process.wait()
            return False
        # Not taking the status of a process that has ended, which Popen needs.
        state = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if state is not None and state.si_code == os.CLD_STOPPED:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
            return True
        self._process.wait()
        return False

    def measurement(self) -> Measurement:
        """Return what it has measured, or its error, after its end."""
        assert self._process is not None
        self._out.seek(0)
        self._err.seek(0)
        return _measurement(self._process.returncode, self._out.read(), self._err.read())


def _run(command: list[str], job: Job, env: dict[str, str] | None) -> Measurement:
    done = subprocess.run([*command, _arguments(job)], capture_output=True, text=True, check=False, env=env)
    return _measurement(done.returncode, done.stdout, done.stderr)


def _arguments(job: Job) -> str:
    return json.dumps({"name": job.name, **job.arguments})


def _measurement(returncode: int, out: str, err: str) -> Measurement:
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

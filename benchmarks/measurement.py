"""Measurements, each in a process of its own, and their medians."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Job", "Measurement", "arguments_of", "measurement_of", "medians"]

Measurement = dict[str, Any]
"""Numbers by key, or a single entry ``error``."""


@dataclass(frozen=True)
class Job:
    """One measurement: of the buffer ``name``, reported under a label, with further arguments."""

    label: str
    name: str
    arguments: dict[str, Any]


def arguments_of(job: Job) -> dict[str, Any]:
    """Return the arguments of the function that measures a job."""
    return {"name": job.name, **job.arguments}


def measurement_of(returncode: int, out: str, err: str) -> Measurement:
    """Return what a process has measured, or its error, from its exit code and its outputs."""
    if returncode == -9:
        return {"error": "the process was killed, perhaps since there was not enough memory"}
    if returncode:
        lines = err.strip().splitlines() or [""]
        reason = re.sub(rf"{re.escape(tempfile.gettempdir())}/[^\s>]*", "a temporary file", lines[-1])
        return {"error": f"the process ended with {returncode}: {reason}"}
    for line in reversed(out.splitlines()):  # libraries may print before and after it
        with contextlib.suppress(json.JSONDecodeError):
            measured = json.loads(line)
            if isinstance(measured, dict):
                return measured
    return {"error": "the process printed no measurement"}


def medians(runs: list[Measurement]) -> Measurement:
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

"""What all scripts share: flags, a process per measurement, and the file of results.

A script has a function that measures one buffer and returns numbers by key. It runs in a process of its own as
``script.py --one '{"name": ..., ...}'``, with the interpreter of the environment that the buffer's library is in.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import interleaved
from machine import machine, version
from measurement import Job, Measurement
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adapters.buffer_names import is_peer, package_name, split_name

ROOT = Path(__file__).parents[1]
PEERS = Path(os.environ.get("SB3_COMPRESSED_PEERS", ROOT / ".venv-peers" / "bin" / "python"))
RESULTS = ROOT / "benchmarks" / "results"
CONSOLE = Console(stderr=True)
#: Measured only to extrapolate to larger buffers, which scripts do not.
EXTRAPOLATION_KEYS = frozenset({"growth", "counted"})


def parser(doc: str | None, *, buffers: Sequence[str] = (), rounds: int = 3) -> argparse.ArgumentParser:
    """Return a parser with the flags of all scripts."""
    flags = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=rounds, help="measurements of each buffer (default: %(default)s)")
    flags.add_argument("--out", type=Path, help="write the results to this JSON file")
    flags.add_argument("--peers", type=Path, default=PEERS, help="interpreter of the peers (default: %(default)s)")
    flags.add_argument("--smoke", action="store_true", help="only test that the script works, in seconds")
    if buffers:
        flags.add_argument("--buffers", nargs="+", default=list(buffers), help="e.g. auto zstd3 auto@1 extra:zstd3")
    return flags


def add_package_flag(flags: argparse.ArgumentParser) -> None:
    """Add the flag ``--package``, see :func:`packages_of`."""
    flags.add_argument("--package", action="append", default=[], help="NAME=PATH of another version of this package")


def packages_of(flags: Iterable[str]) -> dict[str, Path]:
    """Return versions of the package by name.

    :raises ValueError: if one has no name, or there is nothing at its path
    """
    found = {}
    for flag in flags:
        name, equals, path = flag.partition("=")
        if not (name and equals and Path(path).exists()):
            raise ValueError(f"expected --package NAME=PATH with an existing path, got {flag!r}")
        # The interpreter of an environment is a link, which identifies the environment.
        found[name] = Path(path).absolute()
    return found


def names_of_versions(names: Iterable[str], packages: Iterable[str]) -> list[str]:
    """Return the names of buffers, those of this package once for each version, e.g. ``auto#main``.

    :param names: names of buffers
    :param packages: names of versions
    """
    versions = [
        f"{name}#{package}" if package and split_name(name)[0] == "ours" else name
        for package in [*packages] or [""]
        for name in names
    ]
    return [*dict.fromkeys(versions)]


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


def run_interleaved(
    measure: Callable[..., Measurement],
    jobs: Sequence[Job],
    rounds: int,
    peers: Path,
    packages: Mapping[str, Path] | None = None,
) -> dict[str, dict[str, Measurement]]:
    """Run every job once per round with the script of ``measure`` and return ``{label: {name: medians}}``.

    :param packages: other versions of this package, for jobs that name them: a folder that contains the package, or
        the Python interpreter of an environment in which it is installed
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    command, env = _command(measure, peers, packages), _environ()
    with Progress(*columns, console=CONSOLE) as progress:
        return interleaved.run_interleaved(command, jobs, rounds, progress, env)


def _command(
    measure: Callable[..., Measurement], peers: Path, packages: Mapping[str, Path] | None
) -> Callable[[Job], list[str]]:
    """Return the function that returns the command of a job, see :func:`run_interleaved`."""
    script = inspect.getfile(measure)

    def command(job: Job) -> list[str]:
        package = (packages or {}).get(package_name(job.name))
        if package is None:
            return [str(peers) if is_peer(job.name) else sys.executable, script, "--one"]
        python, folder = (sys.executable, str(package)) if package.is_dir() else (str(package), "")
        return [python, str(ROOT / "benchmarks" / "other_package.py"), folder, script, "--one"]

    return command


def _environ() -> dict[str, str]:
    # This package is not installed in the environment of the peers.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def save(path: Path | None, benchmark: str, arguments: dict[str, Any], results: Any, peers: Path) -> None:
    """Write the results with date, machine and versions, if there is a path."""
    if path is None:
        return
    metadata = {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%d"),
        "version": version(),
        "machine": machine(sys.executable, peers),
        "arguments": arguments,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**metadata, "results": results}, indent=1) + "\n")

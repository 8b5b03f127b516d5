"""Measure replay buffers on image environments of all kinds: a hundred Atari games, and environments of other packages.

    python benchmarks/images.py --out benchmarks/results/images.json
    python benchmarks/images.py --quick
    python benchmarks/images.py --sources BeamRider Crafter-v0 --n-envs 1 4 16 --size 4000
    python benchmarks/images.py --sources Doom84-v0 --out benchmarks/results/images.json --update
    python benchmarks/images.py --quick --package main=../main --package branch=.

Everything is recorded first, once, by random actions or half-trained policies; see ``sources.py``. Sources that the
code was tuned on are listed there, and results are reported apart from those of the others. Sources whose package is
not installed are skipped: ``environments.txt`` lists them.

Each buffer has its own process per measurement, as in ``replay.py``, and rounds are interleaved. The results contain
the numbers of each round, so ratios are between measurements of the same round. Besides the medians of ``add`` and
``sample``, there are the quartiles of the calls and the minor page faults. Memory per transition is the growth of the
process (RSS), in total (``rss``) and with each further transition (``growth``); ``fixed_cost.py`` measures an empty
buffer, with its imports.

``--package NAME=PATH`` measures another version of this package: a checkout, or the Python interpreter of an
environment in which it is installed. It may be repeated; each buffer of this package is measured with each version.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fixed_cost
import numpy as np
from measure_replay import TIMED_STEPS, measure_replay
from measurement import Job, Measurement
from ratios import Results
from session import (
    CONSOLE,
    add_package_flag,
    available,
    names_of_versions,
    packages_of,
    parser,
    run_interleaved,
    save,
    serve,
)
from sources import TUNED, Source, all_games, record
from tables import fault_table, fixed_cost_table, ratio_range_table, summary_table

from adapters import make_replay
from adapters.buffer_names import is_peer

BUFFERS = ["auto"]
N_ENVS = 4
SIZE, LARGE_SIZE, QUICK_SIZE = 20_000, 100_000, 4_000
#: Of SB3's buffer; larger images get fewer transitions.
MAX_NBYTES = 1_200_000_000
UNTUNED_GAMES, TUNED_GAMES = "Games not used for tuning", "Games used for tuning"
UNTUNED_ENVS, TUNED_ENVS = "Other environments, not used for tuning", "Other environments, used for tuning"
LARGE, COUNTS, TRAINED = "100,000 transitions", "1 and 16 environments", "Trained policies"
FIXED = "Fixed cost"
#: The order of the report, which begins with results that tuning cannot have improved.
GROUPS = [UNTUNED_GAMES, UNTUNED_ENVS, TUNED_GAMES, TUNED_ENVS, LARGE, COUNTS, TRAINED, FIXED]
#: With more than that many sources, these are measured in one round, which shows the spread between sources.
ONCE, MAX_REPEATED = (UNTUNED_GAMES, LARGE), 10

LARGE_GAMES = ["BeamRider", "Enduro", "Asteroids", "Freeway", "SpaceInvaders", "Asterix"]
LARGE_GAMES += ["MsPacman", "Pong", "Breakout", "Seaquest", "Qbert", "Riverraid"]
ENVIRONMENTS = ["ProcgenJumper-v0", "ProcgenMaze-v0", "ProcgenCaveflyer-v0", "MiniGridRGB-v0", "MiniGridWholeRGB-v0"]
ENVIRONMENTS += ["Doom84-v0", "Doom120x160-v0", "Doom84Nearest-v0", "DoomCenter84-v0:stack4"]
ENVIRONMENTS += ["Crafter-v0", "ProcgenCoinrun-v0", "ProcgenStarpilot-v0", "CarRacing-v3", "CarRacing-v3:stack4"]
ENVIRONMENTS += ["DoomHealth84-v0", "DoomDeathmatch120x160-v0", "DoomDeathmatch84Nearest-v0", "MiniGridRooms-v0"]
ENVIRONMENTS += ["Video128-v0", "Camera256-v0", "Noise84-v0"]
COUNTED = ["BeamRider", "MsPacman", "ProcgenJumper-v0", "Doom84-v0", "Noise84-v0"]
POLICIES = ["MsPacman:trained", "Breakout:trained"]
QUICK = ["BeamRider", "Enduro", "MsPacman", "ProcgenJumper-v0", "Doom84-v0", "Crafter-v0", "Video128-v0", "Noise84-v0"]


@dataclass(frozen=True)
class Case:
    """A source with the size of the buffers that are filled from it."""

    group: str
    source: str
    size: int = SIZE
    n_envs: int = N_ENVS

    @property
    def label(self) -> str:
        """What tables name it."""
        others = [f"{self.size:,} transitions"] if self.size != SIZE and self.group == LARGE else []
        others += [f"{self.n_envs} environment{'s' if self.n_envs > 1 else ''}"] if self.n_envs != N_ENVS else []
        return ", ".join([self.source, *others])

    @property
    def n_steps(self) -> int:
        """Steps to record."""
        return self.size // self.n_envs + TIMED_STEPS


def group_of(source: str) -> str:
    """Return the group of a source with the usual size and number of environments."""
    found = Source(source)
    if found.is_game:
        return TUNED_GAMES if found.is_tuned else UNTUNED_GAMES
    return TUNED_ENVS if found.is_tuned else UNTUNED_ENVS


def all_cases() -> list[Case]:
    """Return everything that ``make bench`` measures."""
    cases = [Case(LARGE, game, LARGE_SIZE) for game in LARGE_GAMES]
    cases += [Case(group_of(source), source) for source in [*all_games(), *ENVIRONMENTS]]
    cases += [Case(COUNTS, source, n_envs=n_envs) for n_envs in (1, 16) for source in COUNTED]
    return cases + [Case(TRAINED, source) for source in POLICIES]


def measure(name: str, source: str, size: int, n_envs: int) -> Measurement:
    """Measure one buffer; see :func:`~measure_replay.measure_replay`."""
    rows = size // n_envs
    recording = record(source, n_envs, rows + TIMED_STEPS)
    measured = measure_replay(partial(make_replay, name, recording), recording, rows)
    return {key: value for key, value in measured.items() if key != "counted"}


def record_all(cases: Sequence[Case]) -> list[tuple[Case, list[int]]]:
    """Record all sources, several at a time, and return those that could be, with the shape of their observations.

    Buffers of large images get fewer transitions.
    """
    recorded: list[tuple[Case, list[int]]] = []
    # The longest recordings serve shorter ones, too.
    ordered = sorted(cases, key=lambda case: -case.n_steps)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool, CONSOLE.status("recording") as status:
        for case, (shape, error) in zip(ordered, pool.map(_record, ordered)):
            status.update(f"recorded {case.label}")
            if error:
                CONSOLE.print(f"skipping {case.label}: {error}", markup=False)
            else:
                recorded.append((Case(case.group, case.source, _size(case, shape), case.n_envs), shape))
    return sorted(recorded, key=lambda each: GROUPS.index(each[0].group))


def _record(case: Case) -> tuple[list[int], str]:
    """Record a source and return the shape of its observations, or why it cannot be recorded."""
    source = Source(case.source)
    if source.missing_module:
        return [], f"{source.missing_module} is not installed: pip install --no-deps -r benchmarks/environments.txt"
    try:
        n_steps = case.n_steps
        if not source.is_game:
            n_steps = _size(case, source.space().shape or ()) // case.n_envs + TIMED_STEPS
        recording = record(case.source, case.n_envs, n_steps)
    except (ValueError, ImportError) as error:
        return [], str(error)
    return list(recording.observation_space.shape or ()), ""


def _size(case: Case, shape: Sequence[int]) -> int:
    """Return the transitions of a case, of which SB3's buffer must not take too much memory."""
    if case.group == LARGE:
        return case.size
    return min(case.size, int(MAX_NBYTES // (2 * np.prod(shape))) // case.n_envs * case.n_envs)


def fixed_cost_jobs(recorded: Iterable[tuple[Case, list[int]]], names: Iterable[str]) -> list[Job]:
    """Return a job per shape of observations, number of environments, and buffer of SB3 or this package."""
    found = {(tuple(shape), case.n_envs): case.size for case, shape in recorded}
    return [
        Job(f"{shape}, {n_envs} environments", name, {"name": name.partition("#")[0], **arguments})
        for (shape, n_envs), size in found.items()
        for arguments in [{"shape": list(shape), "size": size, "n_envs": n_envs}]
        for name in names
        if not is_peer(name)
    ]


def sections(groups: dict[str, list[str]], results: Results) -> list[str]:
    """Return the report: of each group, means and worst cases, then each source."""
    texts = [
        "Sources that the code was tuned on are listed apart, after the others: "
        f"{', '.join(f'`{name}`' for name in sorted(TUNED))}. `growth` is the memory of each further transition, "
        "without the fixed cost of the package, which memory (RSS) includes. Cells are geometric means, with the worst "
        "case in parentheses; page faults are those per transition (`add`) or batch."
    ]
    for group, labels in groups.items():
        of_group = {label: results[label] for label in labels if label in results}
        if not of_group:
            continue
        if group == FIXED:
            text = "Memory of an empty buffer, with what is imported for it after SB3:"
            texts += [f"## {group}", text, fixed_cost_table(of_group)]
        else:
            texts += [f"## {group}", summary_table(of_group), ratio_range_table(of_group)]
            texts += ["Minor page faults, and those with SB3's buffer:", fault_table(of_group)]
    return texts


def plotted(groups: dict[str, list[str]], results: Results) -> dict[str, Results]:
    """Return the results of each group with the usual size and number of environments."""
    return {
        group: {label: results[label] for label in groups[group] if label in results}
        for group in (UNTUNED_GAMES, UNTUNED_ENVS, TUNED_GAMES, TUNED_ENVS)
        if group in groups
    }


def _size_of_buffers(arguments: Any) -> int:
    """Return the transitions in each buffer, fewer for large images."""
    size: int = arguments.size or (QUICK_SIZE if arguments.quick else SIZE)
    return size


def _cases(arguments: Any) -> list[Case]:
    """Return what the flags select."""
    if not (arguments.sources or arguments.quick or arguments.n_envs or arguments.size):
        return all_cases()
    size = _size_of_buffers(arguments)
    sources = arguments.sources or (QUICK if arguments.quick else [*all_games(), *ENVIRONMENTS])
    return [
        Case(_group_of_case(source, size, n_envs), source, size, n_envs)
        for n_envs in arguments.n_envs or [N_ENVS]
        for source in sources
    ]


def _group_of_case(source: str, size: int, n_envs: int) -> str:
    """Return the group of a source with any size and number of environments."""
    if n_envs != N_ENVS:
        return COUNTS
    return LARGE if size == LARGE_SIZE else group_of(source)


def _merged_with(path: Path, groups: dict[str, list[str]], results: Results) -> tuple[dict[str, list[str]], Results]:
    """Return groups and results together with those in a file, which are kept where there are no new ones."""
    before = json.loads(path.read_text()) if path.exists() else {"arguments": {"groups": {}}, "results": {}}
    former = before["arguments"]["groups"]
    measured = {label for labels in groups.values() for label in labels}  # which may be in another group than before
    merged = {
        name: [label for label in former.get(name, []) if label not in measured] + groups.get(name, [])
        for name in GROUPS
    }
    return {name: labels for name, labels in merged.items() if labels}, before["results"] | results


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, buffers=BUFFERS)
    flags.add_argument("--quick", action="store_true", help=f"measure {', '.join(QUICK)}, in about ten minutes")
    flags.add_argument("--sources", nargs="+", help="e.g. BeamRider Crafter-v0 Doom84-v0:stack4 (default: all)")
    flags.add_argument("--size", type=int, help=f"transitions in each buffer (default: {SIZE})")
    flags.add_argument("--n-envs", type=int, nargs="+", help=f"numbers of environments (default: {N_ENVS})")
    flags.add_argument("--update", action="store_true", help="keep the results of other sources in the file --out")
    add_package_flag(flags)
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.sources, arguments.size, arguments.rounds = arguments.sources or QUICK[:1], 800, 1
    packages = packages_of(arguments.package)
    names = available(names_of_versions(["SB3", *arguments.buffers], packages), arguments.peers)
    recorded = record_all(_cases(arguments))

    def run(rounds: int, *groups: str) -> Results:
        jobs = [
            Job(
                *(case.label, name),
                {"name": name.partition("#")[0], "source": case.source, "size": case.size, "n_envs": case.n_envs},
            )
            for case, _ in recorded
            if case.group in groups
            for name in names
        ]
        return run_interleaved(measure, jobs, rounds, arguments.peers, packages) if jobs else {}

    groups = {group: [case.label for case, _ in recorded if case.group == group] for group in GROUPS}
    once = [group for group in ONCE if len(groups[group]) > MAX_REPEATED]
    results = run(1, *once) | run(arguments.rounds, *(group for group in GROUPS if group not in once))
    fixed = run_interleaved(fixed_cost.measure, fixed_cost_jobs(recorded, names), 1, arguments.peers, packages)
    groups = {group: labels for group, labels in {**groups, FIXED: list(fixed)}.items() if labels}
    results |= fixed
    size = _size_of_buffers(arguments)
    if arguments.update:
        groups, results = _merged_with(arguments.out, groups, results)
        size = SIZE  # other sizes are part of the labels
    options = {"size": size, "rounds": arguments.rounds, "groups": groups}
    save(arguments.out, "images", options, results, arguments.peers)
    print("\n\n".join(sections(groups, results)))


if __name__ == "__main__":
    main()

"""Measure the memory of whole trainings with each buffer, and compare their weights.

    python benchmarks/training.py --quick
    python benchmarks/training.py --algorithms DQN --scenes Crafter-v0 Doom84-v0 --buffers auto zstd3 none
    python benchmarks/training.py --scenes recorded:Crafter-v0 --envs 1 8 --torch-threads 1 all
    python benchmarks/training.py --algorithms SAC --scenes CarRacing-v3 --out results.json --update
    python benchmarks/training.py --scenes recorded:MsPacman --package main=../main --package branch=.

Runs are paired: in each round, all buffers are trained with the same seed, each in a process of its own, and weights
must be bit-identical. The first ``--warm-up`` steps are not measured. Settings are in ``settings.py``, and what is
measured in ``training_loops.py``; ``alternating_buffers.py`` measures the time.

Scenes are the sources of ``sources.py``. With ``recorded:`` before its name, the environment replays frames of the
scene that were recorded before; with ``tiny:``, it does so and the network is tiny.

There are two baselines: SB3's buffer, and with ``SB3:optimized`` the same with ``optimize_memory_usage=True``. That
needs ``handle_timeout_termination=False``, so weights differ where a time limit ends episodes. SB3 has no prioritized
buffer; ``PrioritizedDQN`` is compared with ``none``, the uncompressed buffer of this package.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import version
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
)
from settings import N_ENVS, SETTINGS
from tables import markdown
from training_loops import is_on_policy, is_recorded, measure, missing, recording_of

from adapters.buffer_names import SB3_OPTIMIZED, split_name, title

SB3, UNCOMPRESSED = "SB3", "none"
BUFFERS = ["auto", SB3_OPTIMIZED]
ALGORITHMS = ["DQN", "PPO"]
SCENES = ["MsPacman", "Tutankham", "Crafter-v0", "ProcgenJumper-v0", "CarRacing-v3", "MiniGridRGB-v0"]
SCENES += ["Doom84-v0", "Doom120x160-v0"]
QUICK, SMOKE = ["Crafter-v0", "recorded:Doom84-v0"], ["recorded:Noise84-v0"]
#: Measured steps of all environments, and those before, in which kernels are compiled and codecs trained.
STEPS, WARM_UP = {"SAC": 2_000, "PPO": 10_240}, {"SAC": 2_000, "PPO": 4_096}
OTHER_STEPS, OTHER_WARM_UP = 4_000, 4_000
#: Of recorded scenes, which take a tenth of the time; whole rollouts.
RECORDED_STEPS, RECORDED_WARM_UP = 24_576, 12_288


@dataclass(frozen=True)
class Case:
    """A training, without its buffer and seed."""

    algorithm: str
    scene: str
    n_envs: int
    n_threads: int | None  # of torch, None for all
    device: str = "cpu"

    @property
    def label(self) -> str:
        """What tables name it."""
        environments = f"{self.n_envs} environment{'s' if self.n_envs > 1 else ''}"
        threads = {None: "all threads", 1: "1 thread"}.get(self.n_threads, f"{self.n_threads} threads")
        device = "" if self.device == "cpu" else f", {self.device}"
        return f"{self.algorithm}, {self.scene}, {environments}, torch on {threads}{device}"

    @property
    def warm_up(self) -> int:
        """Steps before those that are measured, unless a flag sets them."""
        return RECORDED_WARM_UP if self._is_recorded else WARM_UP.get(self.algorithm, OTHER_WARM_UP)

    @property
    def steps(self) -> int:
        """Steps that are measured, unless a flag sets them."""
        return RECORDED_STEPS if self._is_recorded else STEPS.get(self.algorithm, OTHER_STEPS)

    @property
    def _is_recorded(self) -> bool:
        return is_recorded(self.scene)

    def names(self, buffers: Iterable[str]) -> list[str]:
        """Return the buffers that can be used, the baseline first."""
        if self.algorithm == "PrioritizedDQN":
            return [UNCOMPRESSED, *(name for name in buffers if split_name(name)[0] == "ours" and name != UNCOMPRESSED)]
        names = [name for name in buffers if name != SB3_OPTIMIZED or not is_on_policy(self.algorithm)]
        return [SB3, *(name for name in names if name != SB3)]


def jobs_of_rounds(
    cases: Sequence[Case],
    buffers: Sequence[str],
    rounds: int,
    warm_up: int | None,
    steps: int | None,
    size: int | None,
) -> list[list[Job]]:
    """Return the jobs of each round, of each case one after the other."""
    return [
        [
            Job(case.label, name, {"name": name.partition("#")[0], "seed": seed, **vars(case), **of_case})
            for case in cases
            for of_case in [
                {
                    "warm_up": warm_up or case.warm_up,
                    "steps": steps or case.steps,
                    "buffer_size": size,
                }
            ]
            for name in case.names(buffers)
        ]
        for seed in range(rounds)
    ]


def by_buffer(rounds: Iterable[Results]) -> Results:
    """Return ``{label: {name: {"runs": [...]}}}``, with the first error of each buffer."""
    results: Results = {}
    for of_round in rounds:
        for label, of_label in of_round.items():
            for name, run in of_label.items():
                of_buffer = results.setdefault(label, {}).setdefault(name, {"runs": []})
                of_buffer["runs"].append(run)
                if "error" in run:
                    of_buffer.setdefault("error", run["error"])
    return results


def baseline_of(of_label: Iterable[str]) -> str:
    """Return the name of the buffer that the others are compared with."""
    return SB3 if SB3 in of_label else UNCOMPRESSED


def pairs(of_label: dict[str, Any], name: str) -> list[tuple[Measurement, Measurement]]:
    """Return the runs of a buffer, each with that of the baseline in the same round, if both succeeded."""
    runs = [of_label.get(each, {"runs": []})["runs"] for each in (name, baseline_of(of_label))]
    return [(ours, base) for ours, base in zip(*runs) if "error" not in ours and "error" not in base]


def paired(of_label: dict[str, Any], name: str, key: str) -> list[float]:
    """Return a buffer's ratio to the baseline for each round in which both were measured."""
    of_key = [(ours[key], base[key]) for ours, base in pairs(of_label, name) if key in ours and base.get(key, 0) > 0]
    return [ours / base for ours, base in of_key]


def _has_equal_weights(of_label: dict[str, Any], name: str) -> bool:
    return all(ours["weights"] == base["weights"] for ours, base in pairs(of_label, name))


def _rows(results: Results) -> Iterable[tuple[str, dict[str, Any], str]]:
    """Yield label, results and name of each buffer but the baseline, in the same order in all rounds."""
    for label, of_label in results.items():
        yield from ((label, of_label, name) for name in of_label if name != baseline_of(of_label))


def table(results: Results) -> str:
    """Return a row per training and buffer: memory, and whether weights are equal."""
    rows = []
    for label, of_label, name in _rows(results):
        if not pairs(of_label, name):
            rows.append([label, title(name), "failed", "", ""])
            continue
        cells = [_median(of_label, name, key) for key in ("growth", "rss")]
        rows.append([label, title(name), *cells, _weights(of_label, name)])
    return markdown(["training", "buffer", "memory", "process at the end", "weights equal"], rows)


def _weights(of_label: dict[str, Any], name: str) -> str:
    if _has_equal_weights(of_label, name):
        return "yes"
    return "no" if name == SB3_OPTIMIZED else "**no**"


def _median(of_label: dict[str, Any], name: str, key: str) -> str:
    found = paired(of_label, name, key)
    return f"{statistics.median(found):.1%}" if found else ""


def sections(results: Results) -> list[str]:
    """Return the report."""
    return [
        "Medians of paired runs with equal seeds, relative to SB3's buffer; PrioritizedDQN is compared with the "
        "uncompressed buffer of this package. `memory` is the growth of the process (RSS) with each further "
        "transition, `process at the end` all of its memory. The weights with SB3's own `optimize_memory_usage` differ "
        "where a time limit ends an episode, which it does not store. `recorded` scenes are replayed from memory, and "
        "`tiny` ones are trained with a tiny network, too.",
        table(results),
    ]


def _cases(arguments: argparse.Namespace) -> list[Case]:
    """Return what the flags select and is installed."""
    found = []
    for algorithm in arguments.algorithms:
        for scene in arguments.scenes:
            if reason := missing(algorithm, scene):
                CONSOLE.print(f"skipping {algorithm} on {scene}: {reason}", markup=False)
                continue
            for n_envs in arguments.envs or [N_ENVS[algorithm]]:
                threads = [None if each == "all" else int(each) for each in arguments.torch_threads]
                found += [Case(algorithm, scene, n_envs, n_threads, arguments.device) for n_threads in threads]
    return found


def _record(jobs: Iterable[Job]) -> None:
    """Record what trainings replay."""
    needed: dict[tuple[str, str, int], int] = {}
    for job in jobs:
        of_job = job.arguments
        key = of_job["algorithm"], of_job["scene"], of_job["n_envs"]
        needed[key] = -(-(of_job["warm_up"] + of_job["steps"]) // of_job["n_envs"])
    for (algorithm, scene, n_envs), n_steps in needed.items():
        if is_recorded(scene):
            with CONSOLE.status(f"recording {scene}"):
                recording_of(algorithm, scene, n_envs, n_steps)


def _before(path: Path | None) -> dict[str, Any]:
    """Return the content of a file of results, empty if there is none."""
    if path is None or not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=BUFFERS, rounds=2)
    flags.add_argument("--algorithms", nargs="+", default=ALGORITHMS, choices=list(SETTINGS), help="(default: DQN PPO)")
    flags.add_argument("--scenes", nargs="+", default=SCENES, help=f"(default: {' '.join(SCENES)})")
    flags.add_argument("--envs", type=int, nargs="+", help="numbers of environments (default: 1; of PPO: 8)")
    flags.add_argument("--torch-threads", nargs="+", default=["1"], choices=["1", "all"], help="(default: 1)")
    flags.add_argument("--device", default="cpu", help="of models and buffers (default: cpu)")
    flags.add_argument("--steps", type=int, help="measured steps (default: depends on the training)")
    flags.add_argument("--warm-up", type=int, help="steps before (likewise)")
    flags.add_argument("--buffer-size", type=int, help="of replay buffers (default: all transitions of the training)")
    flags.add_argument("--quick", action="store_true", help=f"one pair of few steps on {' and '.join(QUICK)}")
    flags.add_argument("--update", action="store_true", help="keep the results of other trainings in the file --out")
    add_package_flag(flags)
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.scenes, arguments.algorithms, arguments.buffers, arguments.rounds = SMOKE, ["DQN"], ["auto"], 1
        arguments.warm_up, arguments.steps = 64, 64
    elif arguments.quick:
        arguments.rounds = 1
        arguments.steps, arguments.warm_up = arguments.steps or 1_024, arguments.warm_up or 1_024
        arguments.scenes = QUICK if arguments.scenes is SCENES else arguments.scenes
    packages = packages_of(arguments.package)
    names = available(names_of_versions(arguments.buffers, packages), arguments.peers)
    sizes = arguments.warm_up, arguments.steps, arguments.buffer_size
    rounds = jobs_of_rounds(_cases(arguments), names, arguments.rounds, *sizes)
    _record(rounds[0])
    before = _before(arguments.out) if arguments.update else {}
    options = {"rounds": arguments.rounds, **before.get("arguments", {})}
    if before.get("version", version()) != version():
        options["others measured with"] = before["version"]
    measured: list[Results] = []
    for jobs in rounds:
        measured.append(run_interleaved(measure, jobs, 1, arguments.peers, packages))
        results = by_buffer(measured)
        # After each round, as a whole run takes hours.
        save(arguments.out, "training", options, {**before.get("results", {}), **results}, arguments.peers)
    print("\n\n".join(sections(results)))


if __name__ == "__main__":
    main()

"""Whole trainings with each buffer: time relative to SB3's, memory, and whether weights are equal.

    python benchmarks/training.py
    python benchmarks/training.py --algorithms PPO --scenes tiny:Crafter-v0 --buffers auto none --pairs 100

Times are of trainings in turns in one process (``training_turns.py``). Memory is what a process (RSS) grows by with
each further transition; for that, each buffer is trained in a process of its own, with the same seed, after which
weights must be bit-identical (``training_loops.py``). SB3 has no prioritized buffer, so ``PrioritizedDQN`` is compared
with ``none``, this package's uncompressed one.

Scenes are the sources of ``sources.py``, in three kinds of loops: with the environment; ``recorded:MsPacman`` replays
its frames from memory, as if the environment took no time; ``tiny:MsPacman`` does so with a tiny network, too, so that
the buffer takes most of the time. Settings are in ``settings.py``; torch uses one thread.

Processes that measure times keep the memory that they free. How much that gains by itself is measured once, with SB3's
buffer, with and without it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import training_loops
import training_turns
from measurement import Job
from ratios import Results, extent
from session import parser, run, save, serve
from settings import N_ENVS
from tables import markdown
from training_loops import RECORDED, TINY, baseline_of, is_on_policy, is_recorded, missing, recording_of

from adapters.buffer_names import SB3_OPTIMIZED, title

TITLE = "Trainings"
ALGORITHMS = ["DQN", "SAC", "PPO", "PrioritizedDQN"]
SCENES = {
    "DQN": [
        "MsPacman",
        *(f"{kind}{scene}" for kind in (RECORDED, TINY) for scene in ("MsPacman", "Crafter-v0", "Doom84-v0")),
    ],
    "SAC": ["CarRacing-v3", f"{RECORDED}CarRacing-v3"],
    "PPO": ["MsPacman", *(f"{kind}{scene}" for kind in (RECORDED, TINY) for scene in ("MsPacman", "Crafter-v0"))],
    "PrioritizedDQN": [f"{RECORDED}MsPacman"],
}
#: What to name where a buffer takes most of the time.
FAST_BUFFERS = ["none"]
#: Scenes whose memory is measured; that of the same frames does not depend on the network.
MEMORY_SCENES = {
    "DQN": ["MsPacman", f"{RECORDED}Crafter-v0", f"{RECORDED}Doom84-v0"],
    "SAC": [f"{RECORDED}CarRacing-v3"],
    "PPO": [f"{RECORDED}MsPacman", f"{RECORDED}Crafter-v0"],
    "PrioritizedDQN": [f"{RECORDED}MsPacman"],
}
#: Transitions before those that are measured, and these.
MEMORY_STEPS = {"DQN": (2_048, 4_096), "PrioritizedDQN": (2_048, 4_096), "SAC": (1_024, 1_024), "PPO": (1_024, 1_024)}
SMOKE_SCENES, SMOKE_STEPS = [f"{TINY}Noise84-v0"], (64, 64)
FREED, KEPT, RETURNED = "freed memory", "SB3, kept", "SB3, returned"
FREED_SCENE, FREED_ROUNDS = f"{RECORDED}MsPacman", 2


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    found = {
        label: of_label["auto"]
        for label, of_label in results.items()
        if "time" in of_label.get("auto", {}) and baseline_of(label.partition(",")[0]) == "SB3"
    }
    memory = extent([_share(results, label, "auto") for label, each in found.items() if "growth" in each], "{:.1%}")
    texts = [f"With the default codec, a buffer takes {memory} of the memory of SB3's."]
    for is_tiny, what in ((False, "A training"), (True, "With a tiny network and no environment, it")):
        times = [each["time"] for label, each in found.items() if (TINY in label) == is_tiny]
        if times:
            texts.append(f"{what} takes {extent(times, '{:.2f}')} times as long.")
    return " ".join(texts)


def sections(results: Results) -> list[str]:
    """Return the tables."""
    freed = results.get(FREED, {})
    return [
        "Time: one model is trained with both buffers in turns in one process, which keeps the memory that it "
        "frees. Each turn is compared with its neighbors; the interval is of 95% (bootstrap over turns). `add` and "
        "`batch` compare medians of single calls in the training. Memory: what a process of its own (RSS) grows by "
        "with each further transition, of PPO during its first rollout of 1,024; in parentheses what the buffer "
        "reports where that was not measured, which is less. Weights are compared after equal trainings in two "
        "processes. `recorded` scenes are replayed from memory, as if the environment took no time; `tiny` ones are "
        "trained with a tiny network, too. torch has one thread. SB3 has no prioritized buffer, so PrioritizedDQN is "
        "compared with this package's `none`.",
        _table(results),
        *(["## Freed memory", *_freed(freed)] if freed else []),
    ]


def _share(results: Results, label: str, name: str) -> float | None:
    """Return the memory of a buffer relative to the baseline: measured, otherwise as it reports."""
    of_label = results[label]
    base = of_label.get(baseline_of(label.partition(",")[0]), {}).get("growth")
    growth = of_label[name].get("growth")
    return growth / base if growth is not None and base else of_label[name].get("reported")


def _table(results: Results) -> str:
    rows = []
    for label, of_label in results.items():
        baseline = baseline_of(label.partition(",")[0])
        base = of_label.get(baseline, {})
        for name, each in of_label.items():
            if name == baseline or label == FREED:
                continue
            if "error" in each:
                rows.append([label, title(name), "failed", *[""] * 5])
                continue
            cells = ["", "", "", ""]
            if "time" in each:
                cells = [f"{each['time']:.3f}x", f"{each['low']:.3f}x to {each['high']:.3f}x"]
                cells += [f"{each[call] / each[f'base {call}']:.2f}x" for call in ("add", "read")]
            share = _share(results, label, name)
            memory = "" if share is None else f"{share:.1%}"
            if "growth" in each:
                memory += f", {each['growth']:,.0f} B instead of {base.get('growth', 0):,.0f}"
            elif memory:
                memory = f"({memory})"
            rows.append([label, title(name), *cells, memory, _weights(name, each, base)])
    header = ["training", "buffer", "time", "interval", "`add`", "batch", "memory of a transition", "weights equal"]
    return markdown(header, rows)


def _weights(name: str, each: dict[str, Any], base: dict[str, Any]) -> str:
    if "weights" not in each or "weights" not in base:
        return ""
    if each["weights"] == base["weights"]:
        return "yes"
    # It does not store whether a time limit has ended an episode.
    return "no" if name == SB3_OPTIMIZED else "**no**"


def _freed(freed: dict[str, dict[str, Any]]) -> Iterable[str]:
    kept, returned = freed.get(KEPT, {}), freed.get(RETURNED, {})
    if "seconds" not in kept or "seconds" not in returned:
        return ["This measurement failed."]
    each = [f"{one['seconds']:.1f} s and {one['faults']:,.0f} page faults" for one in (kept, returned)]
    return [
        f"With SB3's buffer, DQN on {FREED_SCENE} takes {kept['seconds'] / returned['seconds']:.2f} times as long in a "
        f"process that keeps freed memory as in one that returns it to the system: {each[0]} instead of {each[1]}, "
        f"medians of {FREED_ROUNDS} processes. No buffer is credited with that in the table above."
    ]


def freed_sentence(results: Results) -> str:
    """Return what keeping freed memory gains by itself, for the README; nothing if it was not measured."""
    freed = results.get(FREED, {})
    kept, returned = (freed.get(name, {}).get("seconds") for name in (KEPT, RETURNED))
    if not kept or not returned:
        return ""
    return (
        "The process keeps freed memory, as a compressed buffer makes it do: with SB3's, that alone makes DQN on "
        f"recorded MsPacman take {kept / returned:.2f} times as long"
    )


README_COLUMNS = ["training", "memory", "time", "recorded", "tiny network"]


def readme_rows(results: Results) -> list[list[str]]:
    """Return the rows of the README's table: of each training, its memory and the times of each kind."""
    optimized = [
        share
        for label, of_label in results.items()
        if SB3_OPTIMIZED in of_label and (share := _share(results, label, SB3_OPTIMIZED)) is not None
    ]
    rows = [["SB3's buffer", "100%", *["1.00x"] * 3]]
    measured = extent(optimized, "{:.0%}") or "not yet measured"
    rows.append(["SB3's buffer with `optimize_memory_usage=True`", measured, *[""] * 3])
    by_training: dict[str, dict[str, str]] = defaultdict(dict)
    for label, of_label in results.items():
        found = of_label.get("auto", {})
        if "time" in found and baseline_of(label.partition(",")[0]) == "SB3":
            kind = next((kind for kind in (RECORDED, TINY) if kind in label), "")
            cells = by_training[re.sub(r"-v\d+$", "", label.replace(kind, ""))]
            cells[kind] = f"{found['time']:.2f}x"
            if "growth" in found:
                cells.setdefault("memory", f"{_share(results, label, 'auto'):.1%}")
    kinds = "memory", "", RECORDED, TINY
    return rows + [[name, *(cells.get(kind, "") for kind in kinds)] for name, cells in by_training.items()]


def _memory_jobs(algorithm: str, scene: str, names: list[str], is_smoke: bool) -> list[Job]:
    """Return the jobs that measure memory and weights, after recording what they replay."""
    n_envs, (warm_up, steps) = N_ENVS[algorithm], SMOKE_STEPS if is_smoke else MEMORY_STEPS[algorithm]
    if is_recorded(scene):
        recording_of(algorithm, scene, n_envs, -(-(warm_up + steps) // n_envs))
    given = {"algorithm": algorithm, "scene": scene, "n_envs": n_envs, "warm_up": warm_up, "steps": steps}
    baseline = baseline_of(algorithm)
    optimized = [SB3_OPTIMIZED] if baseline == "SB3" and not is_on_policy(algorithm) else []
    names = list(dict.fromkeys([baseline, *names, *optimized]))
    return [Job(f"{algorithm}, {scene}", name, given) for name in names]


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=["auto"])
    flags.add_argument("--algorithms", nargs="+", default=ALGORITHMS, choices=ALGORITHMS)
    flags.add_argument("--scenes", nargs="+", help="(default: several for each algorithm)")
    flags.add_argument("--pairs", type=int, help="turns of a buffer (default: depends on the algorithm)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.algorithms, arguments.scenes = ["DQN", "PrioritizedDQN"], SMOKE_SCENES
    turns: list[Job] = []
    memory: list[Job] = []
    options = {"n_pairs": arguments.pairs} if arguments.pairs else {}
    for algorithm in arguments.algorithms:
        for scene in arguments.scenes or SCENES[algorithm]:
            if reason := missing(algorithm, scene):
                print(f"skipping {algorithm} on {scene}: {reason}")
                continue
            given = [*arguments.buffers, *(FAST_BUFFERS if TINY in scene and not arguments.smoke else [])]
            names = [name for name in dict.fromkeys(given) if name != baseline_of(algorithm)]
            turns += [
                training_turns.job_of(name, algorithm, scene, is_smoke=arguments.smoke, **options) for name in names
            ]
            if arguments.scenes or scene in MEMORY_SCENES[algorithm]:
                memory += _memory_jobs(algorithm, scene, names, arguments.smoke)
    results = run(training_turns.measure, training_turns.prepare(turns), arguments)
    for label, of_label in run(training_loops.measure, memory, arguments).items():
        for name, measured in of_label.items():
            results.setdefault(label, {}).setdefault(name, {}).update(measured)
    if arguments.smoke or not arguments.scenes:
        [first, *_] = _memory_jobs("DQN", SMOKE_SCENES[0] if arguments.smoke else FREED_SCENE, [], arguments.smoke)
        jobs = [Job(FREED, name, {**first.arguments, "keeps_memory": name == KEPT}) for name in (KEPT, RETURNED)]
        results |= run(measure_freed, jobs, arguments, rounds=1 if arguments.smoke else FREED_ROUNDS)
    pairs = {f"turns of {name}": arguments.pairs or training_turns.SIZES[name][0] for name in arguments.algorithms}
    save(arguments, "training", pairs, results)
    print("\n\n".join([summary(results), *sections(results)]))


def measure_freed(name: str, **arguments: Any) -> dict[str, Any]:
    """Train with SB3's buffer; ``name`` is that of the measurement."""
    return training_loops.measure("SB3", **arguments)


if __name__ == "__main__":
    serve(measure_freed)
    main()

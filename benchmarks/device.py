"""Batches and whole trainings with a CUDA device, with observations in the memory of the host and of the device.

    python benchmarks/device.py

Batches: the time until one is on the device, and of the call of ``sample`` alone (``device_batches.py``). Trainings:
their time with both buffers in turns in one process (``training_turns.py``), and whether weights are equal
(``training_loops.py``), as ``training.py`` measures them without a device.
"""

from __future__ import annotations

from typing import Any

import device_batches
import training_loops
import training_turns
from measurement import Job
from ratios import Results, extent
from session import parser, run, save
from sources import record
from tables import markdown
from training_loops import RECORDED, TINY

from adapters.buffer_names import is_on_device, title

TITLE = "GPU"
BUFFERS = ["auto", "auto@device"]
BATCH_SCENES, BATCH_SIZES = ["MsPacman", "Crafter-v0"], [32, 256, 1024]
BATCHES = {"rows": 10_000, "n_batches": 200, "warm_up": 50}
SMOKE_BATCHES = {"rows": 200, "n_batches": 2, "warm_up": 0}
SIZES = {"n_pairs": 8, "warm_up": 4}
#: Trainings in turns, with options.
TRAININGS: list[tuple[str, str, dict[str, Any]]] = [
    ("DQN", f"{RECORDED}MsPacman", {}),
    ("DQN", f"{RECORDED}Crafter-v0", {}),
    ("DQN", f"{RECORDED}MsPacman", {"batch_size": 256}),
    ("SAC", f"{RECORDED}CarRacing-v3", {}),
    ("PPO", f"{RECORDED}MsPacman", {}),
    ("PPO", f"{RECORDED}MsPacman", {"n_envs": 64}),
]
#: The training whose weights are compared.
EQUAL = {"algorithm": "PPO", "scene": "MsPacman", "n_envs": 8, "warm_up": 2_048, "steps": 2_048}
NOT_MEASURED = "not yet measured"


def _batches(results: Results) -> Results:
    return {label: found for label, found in results.items() if any("ready" in each for each in found.values())}


def _trainings(results: Results) -> Results:
    return {label: found for label, found in results.items() if any("time" in each for each in found.values())}


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    texts = []
    for name in BUFFERS:
        times = [found[name]["time"] for found in _trainings(results).values() if "time" in found.get(name, {})]
        batches = [
            found[name]["ready"]["ratio"] for found in _batches(results).values() if "ready" in found.get(name, {})
        ]
        where = '`storage="device"`' if is_on_device(name) else "the default storage"
        texts.append(
            f"With {where}, trainings on a GPU take {extent(times, '{:.2f}') or '?'} times as long as with SB3's "
            f"buffer, and batches {extent(batches, '{:.2f}') or '?'} times until they are there."
        )
    return " ".join(texts)


def sections(results: Results) -> list[str]:
    """Return the tables."""
    rows = []
    for label, found in _trainings(results).items():
        for name, each in found.items():
            if "time" in each:
                interval = f"{each['low']:.3f}x to {each['high']:.3f}x"
                calls = [f"{each[call] / each[f'base {call}']:.2f}x" for call in ("add", "read")]
                rows.append([label, title(name), f"{each['time']:.3f}x", interval, *calls, f"{each['reported']:.1%}"])
    of_batches = []
    for label, found in _batches(results).items():
        for name, each in found.items():
            if "ready" in each:
                cells = [f"{each[key]['ratio']:.2f}x ({each[key]['ours']:.2f} ms)" for key in ("ready", "call")]
                cells += [f"{each['ready']['theirs']:.2f} ms", f"{each['nbytes']:,.0f} B"]
                of_batches.append([label, title(name), *cells])
    weights = [
        [label, title(name), "yes" if each["weights"] == found["SB3"]["weights"] else "**no**"]
        for label, found in results.items()
        for name, each in found.items()
        if name != "SB3" and "weights" in each and "weights" in found.get("SB3", {})
    ]
    return [
        "Trainings in turns in one process that keeps the memory that it frees, relative to SB3's buffer, with an "
        "interval of 95%; `add` and `batch` compare medians of single calls; `memory` is what the buffer reports, "
        "on the device if it is there.",
        markdown(["training", "buffer", "time", "interval", "`add`", "batch", "memory"], rows),
        "Batches: medians, relative to SB3's buffer, in turns in one process. A training goes on after the call; it "
        "waits for the batch when the device has nothing else to do.",
        markdown(
            ["batch", "buffer", "until it is there", "the call alone", "SB3", "memory of a transition"], of_batches
        ),
        "Weights after equal trainings in two processes:",
        markdown(["training", "buffer", "weights equal"], weights),
    ]


def readme_rows(results: Results) -> list[list[str]]:
    """Return the rows of the README's table: a GPU, without and with ``storage="device"``."""
    rows = []
    label, found = next(iter(_trainings(results).items()), ("", {}))
    for name, where in zip(BUFFERS, ("on a GPU", 'on a GPU, `storage="device"`')):
        each = found.get(name, {})
        memory, time = NOT_MEASURED, NOT_MEASURED
        if "time" in each:
            memory, time = f"{each['reported']:.1%}", f"{each['time']:.2f}x"
        rows.append([f"{label}, {where}" if label else where, memory, "", time, ""])
    return rows


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=BUFFERS)
    flags.add_argument("--scenes", nargs="+", default=BATCH_SCENES, help="of batches (default: %(default)s)")
    arguments = flags.parse_args()
    device, scenes, sizes, batches, equal = "cuda", arguments.scenes, BATCH_SIZES, BATCHES, EQUAL
    trainings = TRAININGS
    if arguments.smoke:
        device, scenes, sizes, batches = "cpu", ["Noise84-v0"], [8], SMOKE_BATCHES
        trainings, equal = [("DQN", f"{TINY}Noise84-v0", {})], {
            "algorithm": "DQN", "scene": f"{TINY}Noise84-v0", "n_envs": 1, "warm_up": 64, "steps": 64,
        }  # fmt: skip
    else:
        import torch as th

        if not th.cuda.is_available():
            flags.error("there is no CUDA device")
    of_device: dict[str, Any] = {"device": device, **({} if arguments.smoke else SIZES)}
    turns = [
        training_turns.job_of(name, algorithm, scene, is_smoke=arguments.smoke, **options, **of_device)
        for algorithm, scene, options in trainings
        for name in arguments.buffers
    ]
    results = run(training_turns.measure, training_turns.prepare(turns), arguments)
    for scene in scenes:
        record(scene, 1, batches["rows"])  # not while it is measured
    jobs = [
        Job(f"batch, {scene}, {size}", name, {"scene": scene, "batch_size": size, "device": device, **batches})
        for scene in scenes
        for size in sizes
        for name in arguments.buffers
    ]
    results |= run(device_batches.measure, jobs, arguments)
    jobs = [
        Job(f"weights, {equal['algorithm']}, {equal['scene']}", name, {**equal, "device": device})
        for name in ("SB3", *arguments.buffers)
    ]
    results |= run(training_loops.measure, jobs, arguments)
    save(arguments, "device", {"pairs": SIZES["n_pairs"], "batches": batches["n_batches"]}, results)
    print("\n\n".join([summary(results), *sections(results)]))


if __name__ == "__main__":
    main()

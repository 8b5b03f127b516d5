"""Measure how long batches take until they are on a CUDA device, relative to SB3's buffer, in one process.

    python benchmarks/device_batches.py
    python benchmarks/device_batches.py --scenes MsPacman --buffers auto zstd3 --batch-sizes 256 1024

The same frames are added to SB3's buffer and another one, both for the device, and batches are sampled from them in
turns, each from random numbers of its own, as if the other one did not exist. Measured are the time of the call, after
which the training goes on, and the time until the batch is on the device, when it waits. Before each batch the thread
sleeps, as long as a fast update takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
from frame_recording import play
from measurement import Job, Measurement
from ratios import Results, ratio_interval
from session import parser, run_interleaved, save, serve
from sources import record
from tables import markdown

from adapters import sb3_class
from adapters.buffer_names import title
from sb3_compressed import buffer_statistics

SCENES = ["MsPacman", "Crafter-v0", "Doom84-v0"]
BATCH_SIZES = [32, 256, 1024]
ROWS, N_BATCHES = 10_000, 200
SMOKE_ROWS, SMOKE_BATCHES = 200, 2
#: Batches before those that are measured, and seconds between two.
WARM_UP, UPDATE_SECONDS = 50, 0.002


def measure(
    name: str, scene: str, batch_size: int, rows: int, n_batches: int, warm_up: int, device: str = "cuda"
) -> Measurement:
    """Return median milliseconds of both buffers, and their ratios with intervals of 95%.

    :param name: of the buffer
    :param rows: transitions in each buffer
    :return: for ``call`` and ``ready``, what a buffer takes (``ours`` and ``theirs``), ``ratio``, ``low`` and ``high``;
        and for ``memory`` its ``nbytes`` a transition, on the device if it is there
    """
    import torch as th

    recording = record(scene, 1, rows)
    buffers = [new_buffer(each, recording, rows, device) for each in ("SB3", name)]
    for step in islice(play(recording), rows):
        for buffer in buffers:
            step.add_to(buffer)
    wait: Callable[[], None] = th.cuda.synchronize if device == "cuda" else lambda: None
    calls: list[list[float]] = [[], []]
    ready: list[list[float]] = [[], []]
    states: list[Any] = [np.random.get_state()] * 2  # noqa: NPY002  # what SB3 draws from
    for _ in range(warm_up + n_batches):
        for index, buffer in enumerate(buffers):
            np.random.set_state(states[index])  # noqa: NPY002
            time.sleep(UPDATE_SECONDS)
            wait()
            begin = time.perf_counter()
            batch = buffer.sample(batch_size)
            called = time.perf_counter()
            wait()
            ready[index].append(time.perf_counter() - begin)
            calls[index].append(called - begin)
            states[index] = np.random.get_state()  # noqa: NPY002
            del batch
    result: Measurement = {}
    for key, (theirs, ours) in (("call", calls), ("ready", ready)):
        theirs, ours = theirs[warm_up:], ours[warm_up:]
        low, high = ratio_interval(ours, theirs)
        result[key] = {
            "ours": 1000 * statistics.median(ours),
            "theirs": 1000 * statistics.median(theirs),
            "ratio": statistics.median(ours) / statistics.median(theirs),
            "low": low,
            "high": high,
        }
    size = buffer_statistics(buffers[1])
    result["memory"] = {"nbytes": (size.device_memory_nbytes or size.memory_nbytes) / size.transitions}
    return result


def new_buffer(name: str, recording: Any, rows: int, device: str) -> Any:
    """Return an empty buffer."""
    space = recording.observation_space
    cls, arguments = sb3_class(name, "replay", space)
    return cls(rows, space, recording.action_space, device=device, n_envs=1, **arguments)


def table(results: Results) -> str:
    """Return a row per scene, batch size and buffer."""
    rows = []
    for label, of_label in results.items():
        for name, each in of_label.items():
            if "error" in each:
                rows.append([label, title(name), "failed", *[""] * 3])
                continue
            cells = [f"{each[key]['ratio']:.2f}x ({each[key]['ours']:.2f} ms)" for key in ("ready", "call")]
            cells.append(f"{each['ready']['theirs']:.2f} ms")
            rows.append([label, title(name), *cells])
    return markdown(["batch", "buffer", "until it is on the device", "the call alone", "SB3"], rows)


def memory_table(results: Results) -> list[str]:
    """Return a row per buffer with the memory of a transition, and what it says, if that was measured."""
    rows = [
        [label, title(name), f"{each['memory']['nbytes']:,.0f} B"]
        for label, of_label in results.items()
        for name, each in of_label.items()
        if "memory" in each
    ]
    about = "Memory of a transition, on the device if the buffer is there."
    return [about, markdown(["batch", "buffer", "memory"], rows)] if rows else []


def sections(results: Results) -> list[str]:
    """Return the report."""
    return [
        "Medians of the time until a batch is on the device, and of the call of `sample` alone, relative to SB3's "
        "buffer, in one process in turns. A training goes on after the call; it waits for the batch when the device "
        "has nothing else to do.",
        table(results),
        *memory_table(results),
    ]


def main() -> None:
    """Run from the command line."""
    serve(measure)
    import torch as th

    flags = parser(__doc__, buffers=["auto", "auto@device", "none"], rounds=1)
    flags.add_argument("--scenes", nargs="+", default=SCENES, help=f"(default: {' '.join(SCENES)})")
    flags.add_argument("--batch-sizes", nargs="+", type=int, default=BATCH_SIZES, help="(default: 32 256 1024)")
    arguments = flags.parse_args()
    device, rows, n_batches, warm_up = "cuda", ROWS, N_BATCHES, WARM_UP
    if arguments.smoke:
        device, rows, n_batches, warm_up = "cpu", SMOKE_ROWS, SMOKE_BATCHES, 0
        arguments.scenes, arguments.batch_sizes = ["Noise84-v0"], [8]
    elif not th.cuda.is_available():
        flags.error("there is no CUDA device")
    jobs = []
    for scene in arguments.scenes:
        record(scene, 1, rows)  # not while it is measured
        given = {"scene": scene, "rows": rows, "n_batches": n_batches, "warm_up": warm_up, "device": device}
        for batch_size in arguments.batch_sizes:
            label = f"{scene}, {batch_size}"
            jobs += [Job(label, name, {**given, "batch_size": batch_size}) for name in arguments.buffers]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "device_batches", {"rows": rows, "batches": n_batches}, results, arguments.peers)
    print("\n\n".join(sections(results)))


if __name__ == "__main__":
    main()

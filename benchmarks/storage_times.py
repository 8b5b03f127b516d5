"""What a folder costs beside memory, and how long the slowest calls of ``add`` take.

    python benchmarks/storage_times.py --sources MsPacman BeamRider Doom84-v0 --adds 250000

Of each source, a buffer in memory and one with ``storage=<folder>`` are filled, again and again, with the default
method, each in a process of its own. Times of ``add`` are CPU times of the calling thread: they contain neither other
programs, nor the training of codecs in another thread, nor waiting for the disk. The longest one by the clock contains
all of these. Percentiles are over all adds after the first 1,000, in which the first codec is trained, but those where
the recording begins again. Times of ``sample`` are medians by the clock.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from frame_recording import Recording, play
from measurement import Job, Measurement
from metrics import one_thread
from ratios import Results
from session import parser, run_interleaved, save, serve
from sources import Source, record
from tables import markdown

from sb3_compressed.step import Step

NAMES = "memory", "folder"
SOURCES = ["MsPacman", "BeamRider", "Doom84-v0"]
N_ENVS = 4
N_ROWS, SMOKE_ROWS = 2_500, 100
FIRST = 1_000  # adds that are not counted
BATCH_SIZES = 32, 256
N_SAMPLES, SMOKE_SAMPLES = 500, 5
PERCENTILES = 50, 99.9, 99.99, 99.999
#: Milliseconds that a single ``add`` should not exceed.
LONG = 5


def measure(name: str, source: str, adds: int, rows: int, samples: int) -> Measurement:
    """Return milliseconds of ``add`` and ``sample``.

    :param name: ``memory`` or ``folder``
    :param adds: number of rows to add
    :param rows: rows of the buffer, and of the recording that is repeated
    :param samples: number of batches of each size
    """
    from sb3_compressed import CompressedReplayBuffer

    one_thread()
    recording = record(source, N_ENVS, rows)
    with tempfile.TemporaryDirectory() as folder:
        storage = Path(folder) / "buffer" if name == "folder" else "memory"
        spaces = recording.observation_space, recording.action_space
        buffer = CompressedReplayBuffer(rows * N_ENVS, *spaces, device="cpu", n_envs=N_ENVS, storage=storage)
        times = np.empty((adds, 2))
        for number, step in enumerate(itertools.islice(_laps(recording, rows), adds)):
            begin = time.thread_time_ns(), time.perf_counter_ns()
            step.add_to(buffer)
            times[number] = time.thread_time_ns() - begin[0], time.perf_counter_ns() - begin[1]
        is_counted = np.arange(adds) % rows != 0
        is_counted[: min(FIRST, adds // 2)] = False
        milliseconds, by_clock = times[is_counted].T / 1e6
        result: Measurement = {f"add, {each}%": float(np.percentile(milliseconds, each)) for each in PERCENTILES}
        result["add, longest"], result["add, longest by clock"] = float(milliseconds.max()), float(by_clock.max())
        result["share of long adds"] = float((milliseconds > LONG).mean())
        for batch_size in BATCH_SIZES:
            result[f"sample({batch_size})"] = _sampling_ms(buffer, batch_size, samples)
        buffer.close()
    return result


def _laps(recording: Recording, rows: int) -> Iterator[Step]:
    """Yield the steps of a recording again and again."""
    while True:
        yield from itertools.islice(play(recording), rows)


def _sampling_ms(buffer: Any, batch_size: int, n: int) -> float:
    times = []
    for _ in range(n):
        begin = time.perf_counter_ns()
        buffer.sample(batch_size)
        times.append(time.perf_counter_ns() - begin)
    return float(np.median(times)) / 1e6


def table(results: Results) -> str:
    """Return a row per source and place, with ratios to memory."""
    rows = []
    for label, of_label in results.items():
        memory = of_label.get("memory", {})
        for name, measured in of_label.items():
            if "error" in measured:
                rows.append([label, name, "failed", *[""] * (len(PERCENTILES) + 2 + len(BATCH_SIZES))])
                continue
            cells = [_ms(measured[f"add, {each}%"]) for each in PERCENTILES]
            cells[0] += _ratio(measured, memory, f"add, {PERCENTILES[0]}%")
            cells += [_ms(measured[key]) for key in ("add, longest", "add, longest by clock")]
            cells.append(f"{100 * (1 - measured['share of long adds']):.4f}%")
            for batch_size in BATCH_SIZES:
                key = f"sample({batch_size})"
                cells.append(_ms(measured[key]) + _ratio(measured, memory, key))
            rows.append([label, name, *cells])
    header = [
        "observations",
        "storage",
        "`add`, median",
        *(f"{each}%" for each in PERCENTILES[1:]),
        "longest",
        "by clock",
    ]
    header += [f"at most {LONG} ms", *(f"`sample({batch_size})`" for batch_size in BATCH_SIZES)]
    return markdown(header, rows)


def _ms(value: float) -> str:
    return f"{value:.3g} ms"


def _ratio(measured: Measurement, memory: Measurement, key: str) -> str:
    return f" ({measured[key] / memory[key]:.2f}x)" if measured is not memory and key in memory else ""


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, rounds=1)
    flags.add_argument("--sources", nargs="+", default=SOURCES, help="e.g. MsPacman Doom84-v0")
    flags.add_argument("--adds", type=int, default=250_000, help=f"rows of {N_ENVS} transitions (default: %(default)s)")
    arguments = flags.parse_args()
    rows, samples = (SMOKE_ROWS, SMOKE_SAMPLES) if arguments.smoke else (N_ROWS, N_SAMPLES)
    if arguments.smoke:
        arguments.adds, arguments.sources = 3 * rows, arguments.sources[:1]
    sources = [source for source in arguments.sources if Source(source).missing_module is None]
    for source in sources:
        record(source, N_ENVS, rows)
    options = {"adds": arguments.adds, "rows": rows, "samples": samples}
    jobs = [Job(source, name, {"source": source, **options}) for source in sources for name in NAMES]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "storage_times", {**options, "rounds": arguments.rounds}, results, arguments.peers)
    print(table(results))


if __name__ == "__main__":
    main()

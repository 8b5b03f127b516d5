"""Memory and times of one buffer while it is filled, up to a million transitions, and what the first buffer costs.

    python benchmarks/scale.py --sizes 10000 100000 1000000

One process fills one buffer and measures at each size, batches in turns with those of a buffer of the smallest size,
since the times of a shared machine vary by more than sizes change them. A recording of 100,000 transitions of MsPacman
is repeated, as recording a million would take half an hour. When the buffer is full, a quarter of it is overwritten,
and its memory measured again. SB3's buffer takes 56 kB a transition, so it has room for the sizes up to 100,000 only.
What the first buffer of a process costs, :mod:`measure_startup` measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import plots
from frame_recording import Recording, play
from measure_startup import measure_startup, startup_table
from measurement import Job, Measurement
from metrics import median_us, one_thread, resident_nbytes, timed
from ratios import Results
from session import parser, run, save, serve
from sources import record
from tables import markdown

from adapters import make_replay
from adapters.buffer_names import title
from sb3_compressed.step import Step

TITLE = "Size of the buffer"
SIZES, SMOKE_SIZES = [10_000, 30_000, 100_000, 300_000, 1_000_000], [400, 800]
SOURCE, RECORDED_SIZE = "MsPacman", 100_000
MAX_SB3_SIZE = 100_000  # 5.6 GB
N_ENVS, N_BATCHES, N_ADDS = 4, 2_000, 2_000
OVERWRITTEN = "overwritten"
N_STARTUPS = 5


def measure(name: str, sizes: list[int]) -> Measurement:
    """Fill one buffer and overwrite a part of it.

    :return: for each size, the bytes by which the process (RSS) has grown, ``rss``, microseconds of a batch of 32 and
        of ``add`` for each transition, and ``relative``, the time of a batch relative to one of the smallest size; and
        ``overwritten``, the bytes after a quarter of the buffer was overwritten
    """
    one_thread()
    recording = record(SOURCE, N_ENVS, min(sizes[-1], RECORDED_SIZE) // N_ENVS)
    warm = _filled(name, recording, 100)  # triggers what happens once in a process, and is kept
    warm.sample(32)
    before = resident_nbytes()
    buffer, steps, n_added = make_replay(name, recording, sizes[-1] // N_ENVS), _repeated(recording), 0
    result: Measurement = {}
    for size in sizes:
        rows = size // N_ENVS
        n_timed = min(N_ADDS, rows - n_added)
        for step in islice(steps, rows - n_added - n_timed):
            buffer.add(step)
        add = median_us(timed(buffer.add, step) for step in islice(steps, n_timed)) / N_ENVS
        n_added, rss = rows, resident_nbytes() - before
        if size == sizes[0]:
            smallest = _filled(name, recording, rows)
            before = resident_nbytes() - rss  # its memory does not count
        turns = [(timed(buffer.sample, 32), timed(smallest.sample, 32)) for _ in range(N_BATCHES)]
        sample, of_smallest = (median_us(times) for times in zip(*turns, strict=True))
        result[str(size)] = {"rss": rss, "add": add, "sample(32)": sample, "relative": sample / of_smallest}
    for step in islice(steps, n_added // 4):
        buffer.add(step)
    result[OVERWRITTEN] = {"rss": resident_nbytes() - before}
    del warm
    return result


def _filled(name: str, recording: Recording, rows: int) -> Any:
    buffer = make_replay(name, recording, rows)
    for step in islice(play(recording), rows):
        buffer.add(step)
    return buffer


def _repeated(recording: Recording) -> Iterator[Step]:
    while True:
        yield from play(recording)


def _sizes(measured: Measurement) -> list[int]:
    return [int(size) for size in measured if size.isdigit()]


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    of_label = results[SOURCE]
    ours = of_label["auto"]
    sizes = _sizes(ours)
    last = ours[str(sizes[-1])]
    startup = results["startup"]["others"]["together"]["nbytes"]
    return (
        f"A buffer of {sizes[-1]:,} transitions of {SOURCE} takes {last['rss'] / 1e9:.2f} GB, "
        f"{ours[OVERWRITTEN]['rss'] / 1e9:.2f} GB after a quarter of it was overwritten, and a batch takes "
        f"{last['relative']:.2f} times as long as from {sizes[0]:,}. The first buffer of a process takes "
        f"{startup / 1e6:.0f} MB more."
    )


def sections(results: Results) -> list[str]:
    """Return the table."""
    rows = []
    for name, measured in results[SOURCE].items():
        for size in _sizes(measured):
            each = measured[str(size)]
            cells = [f"{each['rss'] / 1e9:.3g} GB", f"{each['rss'] / size:,.0f} B"]
            times = [f"{each[key]:,.1f} us" for key in ("add", "sample(32)")] + [f"{each['relative']:.2f}x"]
            rows.append([title(name), f"{size:,}", *cells, *times])
        if OVERWRITTEN in measured:
            nbytes = measured[OVERWRITTEN]["rss"]
            after = [f"{nbytes / 1e9:.3g} GB", f"{nbytes / _sizes(measured)[-1]:,.0f} B"]
            rows.append([title(name), "a quarter overwritten", *after, "", "", ""])
    header = ["buffer", "transitions", "memory (RSS)", "of a transition", "`add`, of a transition", "`sample(32)`"]
    header.append("in turns with the smallest size")
    return [
        f"{SOURCE}, random actions, {N_ENVS} environments; a recording of {RECORDED_SIZE:,} transitions is "
        "repeated. Times in microseconds are of this machine, and vary by half.",
        markdown(header, rows),
        "## The first buffer of a process",
        "What a process with a compressed buffer of 4x84x84 frames takes beyond SB3 and torch, however small its "
        "buffer. The first process after an installation compiles the kernels:",
        startup_table(results),
    ]


def plot(results: Results, path: Path) -> None:
    """Plot memory and the time of a batch over the size."""
    of_label = results[SOURCE]
    plots.scale(
        {name: {size: measured[str(size)] for size in _sizes(measured)} for name, measured in of_label.items()}, path
    )


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=["auto"])
    flags.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="transitions (default: %(default)s)")
    arguments = flags.parse_args()
    sizes: list[int] = SMOKE_SIZES if arguments.smoke else sorted(arguments.sizes)
    record(SOURCE, N_ENVS, min(sizes[-1], RECORDED_SIZE) // N_ENVS)
    of_sb3: dict[str, Any] = {"sizes": [size for size in sizes if size <= MAX_SB3_SIZE]}
    jobs = [Job(SOURCE, "SB3", of_sb3), *(Job(SOURCE, name, {"sizes": sizes}) for name in arguments.buffers)]
    results = run(measure, jobs, arguments)
    results["startup"] = measure_startup(1 if arguments.smoke else N_STARTUPS, compiled=arguments.smoke)
    save(arguments, "scale", {"recorded transitions": RECORDED_SIZE}, results)
    print("\n\n".join([summary(results), *sections(results)]))


if __name__ == "__main__":
    serve(measure)
    main()

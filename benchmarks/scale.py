"""Measure how memory per transition, ``add`` and ``sample`` change with the size of a buffer, up to a million.

    python benchmarks/scale.py --sizes 10000 100000 1000000

Measures as ``replay.py`` on MsPacman, with one process per size, and reports ratios to the same buffer at the smallest
size. SB3's buffer takes 56 kB per transition, so it is measured up to 100,000.
"""

from __future__ import annotations

from measure_replay import TIMED_STEPS
from measurement import Job
from ratios import Results
from replay import N_ENVS, measure
from session import available, parser, run_interleaved, save
from sources import record
from tables import markdown

from adapters.buffer_names import title

SIZES = [10_000, 30_000, 100_000, 300_000, 1_000_000]
BUFFERS = ["auto", "zstd3"]
MAX_SB3_SIZE = 100_000  # 5.6 GB


def table(results: Results) -> str:
    """Return a row per buffer and size: the memory, and all numbers relative to the smallest size."""
    smallest = next(iter(results))
    keys = [key for key, value in results[smallest]["SB3"].items() if isinstance(value, int | float)]
    header = [
        "buffer",
        "transitions",
        "memory (RSS)",
        "of a transition",
        "relative",
        *(f"`{key}`" for key in keys if key != "rss"),
    ]
    rows = []
    for name, base in results[smallest].items():
        for size, of_size in results.items():
            measured = of_size.get(name, {})
            if keys[0] in measured and keys[0] in base:
                cells = [f"{measured[key] / base[key]:.2f}x" if base[key] > 0 else "" for key in keys]
                memory = [f"{measured['rss'] * int(size) / 1e9:.3g} GB", f"{measured['rss']:,.0f} B"]
                rows.append([title(name), f"{int(size):,}", *memory, *cells])
    return markdown(header, rows)


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=BUFFERS)
    flags.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="transitions (default: %(default)s)")
    flags.add_argument("--source", default="MsPacman", help="e.g. MsPacman or MsPacman:trained (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.sizes, arguments.rounds = [400], 1
    names = available(["SB3", *arguments.buffers], arguments.peers)
    # All sizes read the same recording.
    record(arguments.source, N_ENVS, max(arguments.sizes) // N_ENVS + TIMED_STEPS)
    jobs = [
        Job(str(size), name, {"source": arguments.source, "size": size})
        for size in sorted(arguments.sizes)
        for name in names
        if name != "SB3" or size <= MAX_SB3_SIZE
    ]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "scale", {"source": arguments.source, "rounds": arguments.rounds}, results, arguments.peers)
    print(table(results))


if __name__ == "__main__":
    main()

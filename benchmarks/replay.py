"""Measure the memory, ``add`` and ``sample`` of replay buffers on real observations.

    python benchmarks/replay.py --sources Pong MsPacman:trained --buffers auto auto@1 extra:zstd-3 cpprb

Every buffer has its own process, and medians over several interleaved rounds are reported. Memory is the growth of the
process (RSS) from before the buffer is created until it is full. ``add`` is timed on the second lap over the ring, with
observations in the memory layout of real training. A shorter run verifies that each buffer returns what was added.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from measure_replay import TIMED_STEPS, measure_replay
from measurement import Job, Measurement
from session import EXTRAPOLATION_KEYS, available, parser, run_interleaved, save, serve
from sources import record
from tables import ratio_table

from adapters import make_replay

GAMES = ["MsPacman", "Pong", "Breakout", "Seaquest", "Qbert", "Riverraid"]
BUFFERS = ["auto", "zstd3", "none"]
N_ENVS = 4


def measure(name: str, source: str, size: int) -> Measurement:
    """Measure one buffer; see :func:`~measure_replay.measure_replay`."""
    rows = size // N_ENVS
    recording = record(source, N_ENVS, rows + TIMED_STEPS)
    measured = measure_replay(partial(make_replay, name, recording), recording, rows)
    return {key: value for key, value in measured.items() if key not in EXTRAPOLATION_KEYS}


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, buffers=BUFFERS)
    flags.add_argument("--sources", nargs="+", default=GAMES, help="e.g. Pong Pong:trained CarRacing-v3")
    flags.add_argument("--size", type=int, default=100_000, help="transitions in the buffer (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.sources, arguments.size, arguments.rounds = arguments.sources[:1], 800, 1
    names = available(["SB3", *arguments.buffers], arguments.peers)
    for source in arguments.sources:
        record(source, N_ENVS, arguments.size // N_ENVS + TIMED_STEPS)
    options: dict[str, Any] = {"size": arguments.size}
    jobs = [Job(source, name, {"source": source, **options}) for source in arguments.sources for name in names]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "replay", {**options, "rounds": arguments.rounds}, results, arguments.peers)
    print(ratio_table(results))


if __name__ == "__main__":
    main()

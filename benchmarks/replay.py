"""Replay buffers on real observations: memory from the operating system, times as ratios to SB3's buffer.

    python benchmarks/replay.py --sources Pong MsPacman:trained --contenders auto auto@1 extra:zstd-3 cpprb

Every buffer gets a process of its own, buffers take turns over several rounds, medians are reported. Memory is what
the process grows by from before the buffer is made until it is full. ``add`` is timed on the second lap over the ring,
with observations in the memory layout of real training. What each buffer returns is compared with what was added,
in a shorter run of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from recording import record
from session import available, parser, run_interleaved, save, serve
from tables import ratio_table

from contenders import make_replay
from sb3_compressed.benchmarking.replay_benchmark import EXTRAPOLATED_BY, TIMED_STEPS, measure_replay
from sb3_compressed.benchmarking.runner import Job, Measurement

GAMES = ["MsPacman", "Pong", "Breakout", "Seaquest", "Qbert", "Riverraid"]
CONTENDERS = ["auto", "zstd3", "none"]
N_ENVS = 4


def measure(contender: str, source: str, size: int) -> Measurement:
    """Fill one buffer and return bytes of memory a transition and microseconds."""
    rows = size // N_ENVS
    measured = measure_replay(partial(make_replay, contender), record(source, N_ENVS, rows + TIMED_STEPS), rows)
    return {key: value for key, value in measured.items() if key not in EXTRAPOLATED_BY}


def main() -> None:
    """Run the benchmark from the command line."""
    serve(measure)
    flags = parser(__doc__, contenders=CONTENDERS)
    flags.add_argument("--sources", nargs="+", default=GAMES, help="as Pong, Pong:trained, CarRacing-v3")
    flags.add_argument("--size", type=int, default=100_000, help="transitions in the buffer (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.sources, arguments.size, arguments.rounds = arguments.sources[:1], 800, 1
    names = available(["SB3", *arguments.contenders], arguments.peers)
    for source in arguments.sources:
        record(source, N_ENVS, arguments.size // N_ENVS + TIMED_STEPS)
    options: dict[str, Any] = {"size": arguments.size}
    jobs = [Job(source, name, {"source": source, **options}) for source in arguments.sources for name in names]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "replay", {**options, "rounds": arguments.rounds}, results, arguments.peers)
    print(ratio_table(results))


if __name__ == "__main__":
    main()

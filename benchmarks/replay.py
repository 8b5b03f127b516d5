"""Replay buffers on real observations: memory from the operating system, times as ratios to SB3's buffer.

    python benchmarks/replay.py --sources Pong MsPacman:trained --contenders auto auto@1 extra:zstd-3 cpprb

Every buffer gets a process of its own, buffers take turns over several rounds, medians are reported. Memory is what
the process grows by from before the buffer is made until it is full. ``add`` is timed on the second lap over the ring,
with observations in the memory layout of real training. What each buffer returns is compared with what was added,
in a shorter run of its own.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from measure import median_us, one_thread, resident_nbytes, timed
from recording import Recording, play, record
from session import Job, Measurement, available, parser, save, serve, take_turns
from tables import ratio_table
from truth import check_replay

from contenders import Setup, make_replay

GAMES = ["MsPacman", "Pong", "Breakout", "Seaquest", "Qbert", "Riverraid"]
CONTENDERS = ["auto", "zstd3", "none"]
BATCH_SIZES = (32, 256, 1024)
WARM_STEPS = 300  # whatever is compiled, learned or allocated at first use
TIMED_STEPS = 500  # of add, on the second lap
CHECKED_STEPS = 500
N_ENVS = 4


def measure(contender: str, source: str, size: int) -> Measurement:
    """Fill one buffer and return bytes of memory a transition and microseconds."""
    one_thread()
    rows = size // N_ENVS
    recording = record(source, N_ENVS, rows + TIMED_STEPS)
    warm_rows = min(WARM_STEPS, rows)
    # A small buffer meets what is met only once in a process. It stays, so that none of its memory is reused.
    warm = make_replay(contender, Setup.of(recording, warm_rows))
    for step in islice(play(recording), warm_rows):
        warm.add(step)
    for batch_size in BATCH_SIZES:
        warm.sample(batch_size)

    steps = play(recording)
    first = next(steps)
    before = resident_nbytes()
    buffer = make_replay(contender, Setup.of(recording, rows))
    buffer.add(first)
    for step in islice(steps, rows - 1):
        buffer.add(step)
    result: Measurement = {"rss": (resident_nbytes() - before) / (rows * N_ENVS)}
    result["add"] = median_us(timed(buffer.add, step) for step in islice(steps, TIMED_STEPS)) / N_ENVS
    for batch_size in BATCH_SIZES:
        rounds = 6400 // batch_size + 20
        result[f"sample({batch_size})"] = median_us(timed(buffer.sample, batch_size) for _ in range(rounds))
    del warm
    return {**result, "wrong": _check(contender, recording, rows)}


def _check(contender: str, recording: Recording, rows: int) -> str:
    rows = min(CHECKED_STEPS, rows // 2)
    return check_replay(make_replay(contender, Setup.of(recording, rows)), play(recording), rows)


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
    results = take_turns(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "replay", {**options, "rounds": arguments.rounds}, results, arguments.peers)
    print(ratio_table(results))


if __name__ == "__main__":
    main()

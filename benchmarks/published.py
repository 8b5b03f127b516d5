"""Reproduce the table published by sb3-extra-buffers, with its codecs, ours and SB3's buffers.

    python benchmarks/published.py --codecs zstd-5 zstd3 rle-jit

From its README: MsPacman, 4 stacked frames, 4 environments, 40,000 slots. *Save* is the total time of ``add`` until a
replay buffer with ``optimize_memory_usage`` is full. *Load* is the time of reading a rollout buffer once in batches of
64 (here on the CPU). Memory is reported both as computed by its script, the sizes of the Python objects in the slots,
and as RSS. Its frames are from a trained policy; ``--source MsPacman:trained`` uses a half-trained one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from batch_checks import check_replay, check_rollout
from frame_recording import play
from measurement import Job, Measurement
from metrics import exhaust, one_thread, resident_nbytes, timed
from ratios import Results
from session import available, parser, run_interleaved, save, serve
from sources import record
from tables import markdown

from adapters import make_replay, make_rollout
from sb3_compressed.step import Step

CODECS = [
    *("auto", "none", "zstd-100", "zstd-50", "zstd-5", "lz4-frame/1", "zstd-20", "zstd-3", "zstd-1", "zstd1", "zstd3"),
    *("igzip0", "rle", "rle-jit", "rle-old", "lz4-block/1", "igzip1", "zstd5", "lz4-block/5", "lz4-frame/5"),
    *("gzip0", "gzip1", "gzip3", "igzip3", "zstd10", "lz4-block/9", "lz4-frame/9", "lz4-block/16", "lz4-frame/12"),
    *("zstd15", "zstd22"),
]
THEIRS_ONLY = {"rle-old", "lz4-block/16"}  # here, rle gives the results of rle-old, and LZ4 has no level above 12
OURS_ONLY = {"auto"}
N_ENVS = 4
BATCH_SIZE = 64
WARM_STEPS = 50
CHECKED_STEPS = 100


def measure(name: str, source: str, size: int, test: str) -> Measurement:
    """Return the memory in bytes and the latency in seconds of the test ``save`` or ``load``."""
    one_thread()
    rows = size // N_ENVS
    recording = record(source, N_ENVS, max(rows, 2 * CHECKED_STEPS))

    def make(n_rows: int) -> Any:
        if test == "load":
            return make_rollout(name, recording, n_rows)
        options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
        return make_replay(name, recording, n_rows, **options)

    warm = make(WARM_STEPS)
    _add_all(warm, islice(play(recording), WARM_STEPS))
    if test == "load":
        list(warm.buffer.get(BATCH_SIZE))
    steps = play(recording)
    first = next(steps)
    before = resident_nbytes()
    filled = make(rows)
    filled.add(first)
    seconds = _add_all(filled, islice(steps, rows - 1)) * rows / max(rows - 1, 1)
    result: Measurement = {"rss": resident_nbytes() - before, "counted": counted_nbytes(filled.buffer)}
    result["latency"] = seconds if test == "save" else timed(exhaust, filled.buffer.get(BATCH_SIZE))
    del warm
    checked, steps = make(CHECKED_STEPS), play(recording)
    if test == "load":
        return {**result, "wrong": check_rollout(checked, steps, CHECKED_STEPS)}
    # optimize_memory_usage overwrites terminal observations with the next episode's first one, as in SB3.
    return {**result, "wrong": check_replay(checked, steps, CHECKED_STEPS, has_ends=False)}


def counted_nbytes(buffer: Any) -> int:
    """Return the memory of the observations as computed by the script of sb3-extra-buffers.

    Payloads shared by several slots of our buffers count once, as our buffers report.
    """
    if hasattr(buffer, "observations_nbytes"):
        return int(buffer.observations_nbytes)
    slots = np.ravel(buffer.observations)
    return sys.getsizeof(buffer.observations) + (sum(map(sys.getsizeof, slots)) if slots.dtype == object else 0)


def _add_all(filled: Any, steps: Iterator[Step]) -> float:
    return sum(timed(filled.add, step) for step in steps)


def table(results: Results) -> str:
    """Return a row per codec: both tests, ours and theirs, relative to SB3's buffer."""
    names = dict.fromkeys(name.removeprefix("extra:") for of_test in results.values() for name in of_test)
    header = ["codec"]
    for test in ("save", "load"):
        for what in ("memory, counted", "memory (RSS)", "latency"):
            header += [f"{test} {what}, ours", "theirs"]
    rows = []
    for name in names:
        if name == "SB3":
            continue
        cells = []
        for test in ("save", "load"):
            of_test = results[test]
            for key, form in (("counted", "{:.2%}"), ("rss", "{:.2%}"), ("latency", "{:.2f}x")):
                for buffer in (name, f"extra:{name}"):
                    value = of_test.get(buffer, {}).get(key)
                    cells.append("" if value is None else form.format(value / of_test["SB3"][key]))
        rows.append([f"`{name}`", *cells])
    return markdown(header, rows)


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, rounds=1)
    flags.add_argument("--codecs", nargs="+", default=CODECS, help="e.g. zstd-5 rle-jit (default: all in its table)")
    flags.add_argument("--source", default="MsPacman", help="e.g. MsPacman or MsPacman:trained (default: %(default)s)")
    flags.add_argument("--size", type=int, default=40_000, help="slots (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.codecs, arguments.size, arguments.rounds = arguments.codecs[:2], 400, 1
    ours = [codec for codec in arguments.codecs if codec not in THEIRS_ONLY]
    theirs = [f"extra:{codec}" for codec in arguments.codecs if codec not in OURS_ONLY]
    names = available(["SB3", *ours, *theirs], arguments.peers)
    options = {"source": arguments.source, "size": arguments.size}
    record(arguments.source, N_ENVS, max(arguments.size // N_ENVS, 2 * CHECKED_STEPS))
    jobs = [Job(test, name, {**options, "test": test}) for test in ("save", "load") for name in names]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "published", {**options, "rounds": arguments.rounds}, results, arguments.peers)
    print(table(results))


if __name__ == "__main__":
    main()

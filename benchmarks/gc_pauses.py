"""Measure how long Python's garbage collector pauses a training, with buffers of up to a million transitions.

    python benchmarks/gc_pauses.py --buffers auto delta zstd3 --size 1000000

Each buffer is filled with frames of MsPacman in a separate process; a recording of 100,000 transitions is repeated.
``add`` is the longest automatic collection while it is filled, ``collect`` the median of five calls of ``gc.collect()``
when it is full, and ``tracked`` the number of objects that these visit, most of them of torch and numba. SB3's buffer
takes 56 kB per transition, so it is measured with 20,000: the collector does not visit the content of its arrays.
"""

from __future__ import annotations

import gc
import itertools
import time
from typing import Any

import numpy as np
from frame_recording import play
from measurement import Job, Measurement
from metrics import one_thread
from ratios import Results
from session import parser, run_interleaved, save, serve
from sources import record
from tables import markdown

from adapters.buffer_names import title

N_ENVS = 4
SIZE, SMOKE_SIZE = 1_000_000, 400
MAX_SB3_SIZE = 20_000  # 1.1 GB
RECORDED_SIZE = 100_000
BUFFERS = ["auto", "delta", "zstd-dict", "zstd3"]
N_COLLECTIONS = 5


class Pauses:
    """The longest automatic collection within a ``with`` block, in milliseconds."""

    longest = 0.0

    def __enter__(self) -> Pauses:
        gc.callbacks.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self)

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Measure the time between the beginning and the end of a collection."""
        if phase == "start":
            self._begin = time.perf_counter()
        else:
            self.longest = max(self.longest, 1000 * (time.perf_counter() - self._begin))


def measure(name: str, size: int, source: str) -> Measurement:
    """Return the longest collections in milliseconds, and the number of tracked objects.

    :param name: ``SB3``, or a compression method
    :param size: number of transitions
    :param source: name of the source
    """
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_compressed import CompressedReplayBuffer

    one_thread()
    rows = size // N_ENVS
    recorded_rows = min(rows, RECORDED_SIZE // N_ENVS)
    recording = record(source, N_ENVS, recorded_rows)
    cls: Any = ReplayBuffer if name == "SB3" else CompressedReplayBuffer
    options = {} if name == "SB3" else {"compression_method": name, "num_threads": 1}
    spaces = recording.observation_space, recording.action_space
    buffer = cls(size, *spaces, device="cpu", n_envs=N_ENVS, **options)
    laps = itertools.chain.from_iterable(itertools.islice(play(recording), recorded_rows) for _ in itertools.count())
    with Pauses() as pauses:
        for step in itertools.islice(laps, rows):
            step.add_to(buffer)
        buffer.sample(32)
    times = []
    for _ in range(N_COLLECTIONS):
        begin = time.perf_counter()
        gc.collect()
        times.append(1000 * (time.perf_counter() - begin))
    return {"size": size, "add": pauses.longest, "collect": float(np.median(times)), "tracked": len(gc.get_objects())}


def table(results: Results) -> str:
    """Return a row per buffer."""
    rows = [
        [
            title(name),
            f"{measured['size']:,.0f}",
            f"{measured['add']:.0f} ms",
            f"{measured['collect']:.0f} ms",
            f"{measured['tracked']:,.0f}",
        ]
        for of_source in results.values()
        for name, measured in of_source.items()
        if "error" not in measured
    ]
    return markdown(["buffer", "transitions", "longest while filled", "`gc.collect()`", "tracked objects"], rows)


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, buffers=BUFFERS, rounds=1)
    flags.add_argument("--size", type=int, default=SIZE, help="transitions (default: %(default)s)")
    flags.add_argument("--source", default="MsPacman", help="e.g. MsPacman or MsPacman:trained (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.size, arguments.rounds = SMOKE_SIZE, 1
    record(arguments.source, N_ENVS, min(arguments.size, RECORDED_SIZE) // N_ENVS)
    sizes = dict.fromkeys(arguments.buffers, arguments.size)
    sizes = {"SB3": min(arguments.size, MAX_SB3_SIZE), **sizes}
    jobs = [Job(arguments.source, name, {"size": size, "source": arguments.source}) for name, size in sizes.items()]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "gc_pauses", {"size": arguments.size, "rounds": arguments.rounds}, results, arguments.peers)
    print(table(results))


if __name__ == "__main__":
    main()

"""What a transition costs that is added by ``extend``, beside one that is added by a loop of ``add``.

    python benchmarks/extend.py --sources MsPacman Crafter-v0 HalfCheetah-v5 --envs 1 8

Recorded transitions are added in blocks to two buffers, in memory or each in a folder: to one step by step, to the
other by one call for the whole block. Whichever is first alternates from block to block. In memory, SB3's own
``extend`` is measured beside them. Times are by the clock, and medians over the blocks after the first ones, in which
codecs are trained. At the end, both buffers must contain the same observations.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from frame_recording import play
from measurement import Job, Measurement
from metrics import one_thread
from ratios import Results
from session import parser, run_interleaved, save, serve
from sources import Source, record
from tables import markdown

from sb3_compressed.step import Step

SOURCES = ["MsPacman", "Crafter-v0", "HalfCheetah-v5"]
N_ENVS = [1, 8]
PLACES = "memory", "folder"
#: Steps of a call, and how many calls there are.
BLOCKS, SMOKE_BLOCKS = {10: 200, 1_000: 12}, {10: 4}
#: The share of the first blocks, which are not measured.
FIRST_SHARE = 0.25


def measure(name: str, source: str, n_envs: int, length: int, n_blocks: int) -> Measurement:
    """Return microseconds of a transition by each way of adding it.

    :param name: ``memory`` or ``folder``
    :param length: steps of a call
    :param n_blocks: how many calls
    """
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_compressed import CompressedReplayBuffer

    one_thread()
    recording = record(source, n_envs, length * n_blocks)
    steps = play(recording)
    arguments = (length * n_blocks * n_envs, recording.observation_space, recording.action_space, "cpu", n_envs)
    with tempfile.TemporaryDirectory() as folder:
        added, extended = (
            CompressedReplayBuffer(*arguments, storage=Path(folder) / way if name == "folder" else "memory")
            for way in ("add", "extend")
        )
        ways: dict[str, Callable[[list[Step], tuple[Any, ...]], None]] = {
            "add": lambda block, _: _add_each(block, added),
            "extend": lambda _, joined: extended.extend(*joined),
        }
        if name == "memory":
            uncompressed = ReplayBuffer(*arguments)
            ways["SB3"] = lambda _, joined: uncompressed.extend(*joined)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(n_blocks):
            block = list(itertools.islice(steps, length))
            joined = _joined(block)
            for way in [*ways][:: -1 if number % 2 else 1]:
                begin = time.perf_counter()
                ways[way](block, joined)
                seconds[way].append(time.perf_counter() - begin)
        result: Measurement = {
            way: statistics.median(each[int(FIRST_SHARE * n_blocks) :]) / length / n_envs * 1e6
            for way, each in seconds.items()
        }
        for row in range(length * n_blocks):
            if not np.array_equal(added.observations[row], extended.observations[row]):
                result["error"] = f"row {row} differs"
        added.close()
        extended.close()
    return result


def _add_each(block: list[Step], buffer: Any) -> None:
    for step in block:
        step.add_to(buffer)


def _joined(block: list[Step]) -> tuple[Any, ...]:
    """Return the arguments of ``extend`` for some steps."""
    arrays = [np.stack([getattr(step, name) for step in block]) for name in ("obs", "next_obs", "action", "reward")]
    return (*arrays, np.stack([step.done for step in block]), [step.infos for step in block])


def table(results: Results) -> str:
    """Return a row per source, number of environments, length of a call and place."""
    rows = []
    for label, of_label in results.items():
        for name, found in of_label.items():
            if "add" not in found:
                rows.append([label, name, "failed", "", "", ""])
                continue
            sb3 = f"{found['SB3']:.1f} us" if "SB3" in found else ""
            faster = f"{found['add'] / found['extend']:.1f}x"
            rows.append([label, name, f"{found['add']:.1f} us", f"{found['extend']:.1f} us", faster, sb3])
    header = ["transitions", "storage", "loop of `add`", "`extend`", "faster", "SB3's `extend`"]
    return markdown(header, rows)


def main() -> None:
    """Run the benchmark from the command line."""
    serve(measure)
    flags = parser(__doc__, rounds=1)
    flags.add_argument("--sources", nargs="+", default=SOURCES, help="e.g. MsPacman HalfCheetah-v5")
    flags.add_argument("--envs", nargs="+", type=int, default=N_ENVS, help="numbers of environments")
    arguments = flags.parse_args()
    blocks = BLOCKS
    if arguments.smoke:
        blocks, arguments.sources, arguments.envs = SMOKE_BLOCKS, arguments.sources[:1], arguments.envs[:1]
    sources = [source for source in arguments.sources if Source(source).missing_module is None]
    cases = [(source, n, length) for source in sources for n in arguments.envs for length in blocks]
    jobs: list[Job] = []
    for source, n, length in cases:
        options = {"source": source, "n_envs": n, "length": length, "n_blocks": blocks[length]}
        record(source, n, max(length * n_blocks for length, n_blocks in blocks.items()))
        label = f"{source}, {n} environment{'s' if n > 1 else ''}, {length:,} steps a call"
        jobs += [Job(label, name, options) for name in PLACES]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "extend", {"rounds": arguments.rounds}, results, arguments.peers)
    print(table(results))


if __name__ == "__main__":
    main()

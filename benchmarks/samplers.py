"""Prioritized sampling: drawing a batch and updating its priorities, without a buffer, and as a part of buffers.

    python benchmarks/samplers.py --items 1000000 100000000 --sources MsPacman HalfCheetah-v5

Without a buffer, items have the priorities of exponentially distributed TD errors. Times are CPU times, medians over
many draws and updates in turn; memory is the growth of the process with each item. cpprb and TorchRL use float32, this
package float64. TorchRL needs the compiled extension of its wheel, which loads only with the version of PyTorch that it
was built for.

Of each source, a buffer with ``sampler="prioritized"`` is compared with one that samples uniformly, in one process.
Both are full; in turn, a row is added and a batch of 256 sampled, and the priorities of the batch are updated. Where
observations are vectors, a prioritized buffer of cpprb is measured as well, whose batches are converted to tensors.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

import numpy as np
from frame_recording import play
from measurement import Job, Measurement
from metrics import one_thread, resident_nbytes
from ratios import Results
from session import available, parser, run_interleaved, save, serve
from sources import record
from tables import markdown

from adapters.buffer_names import title
from adapters.prioritized_samplers import ALPHA, BETA, make_sampler

OURS = "prioritized"
NAMES = [OURS, "cpprb", "torchrl", "torchrl:trees"]
BUFFERS, SAMPLERS = "buffers", ("uniform", "prioritized")
N_ENVS = 4
BATCH_SIZE = 256
PEER_KEY = f"sample and update({BATCH_SIZE})"
KEYS = (f"draw({BATCH_SIZE})", f"update({BATCH_SIZE})")
ITEMS, SMOKE_ITEMS = [1_000_000, 100_000_000], [1_000, 10_000]
ADDED = 100_000  # items at once
WARMUP = 50  # draws before the measured ones


def measure(name: str, **arguments: Any) -> Measurement:
    """Return microseconds of CPU time.

    :param name: one of ``NAMES``, or ``BUFFERS``
    :param arguments: those of the function that measures it
    """
    one_thread()
    if name == BUFFERS:
        return _measure_buffers(**arguments)
    return _measure_cpprb(**arguments) if "source" in arguments else _measure_sampler(name, **arguments)


def _measure_sampler(name: str, n_items: int, repeats: int) -> Measurement:
    """Return the times of drawing a batch and updating it, and bytes for each item."""
    rng = np.random.default_rng(0)
    warm_up = make_sampler(name, 1_000)  # what happens once in a process
    warm_up.add(0, 1_000)
    warm_up.update(warm_up.draw(BATCH_SIZE), np.ones(BATCH_SIZE, np.float32))
    before = resident_nbytes()
    sampler = make_sampler(name, n_items)
    for begin in range(0, n_items, ADDED):
        end = min(begin + ADDED, n_items)
        sampler.add(begin, end)
        # So that none has the priority of new items.
        sampler.update(np.arange(begin, end), rng.exponential(size=end - begin).astype(np.float32))
    nbytes = (resident_nbytes() - before) / n_items
    draws, updates = [], []
    for _ in range(WARMUP + repeats):
        td_errors = rng.exponential(size=BATCH_SIZE).astype(np.float32)
        begin = time.process_time_ns()
        items = sampler.draw(BATCH_SIZE)
        drawn = time.process_time_ns()
        sampler.update(items, td_errors)
        updates.append(time.process_time_ns() - drawn)
        draws.append(drawn - begin)
    result: Measurement = {key: statistics.median(each[WARMUP:]) / 1e3 for key, each in zip(KEYS, (draws, updates))}
    return {**result, "nbytes": nbytes}


def _measure_buffers(source: str, size: int, repeats: int) -> Measurement:
    """Return the times of adding a row and of sampling a batch, uniform and prioritized."""
    import torch as th

    from sb3_compressed import CompressedReplayBuffer

    recording = record(source, N_ENVS, size // N_ENVS + WARMUP + repeats)
    options: dict[str, Any] = {"device": "cpu", "n_envs": N_ENVS}
    buffers: dict[str, Any] = {
        sampler: CompressedReplayBuffer(
            size, recording.observation_space, recording.action_space, **options, sampler=sampler
        )
        for sampler in SAMPLERS
    }
    times = defaultdict[str, list[int]](list)
    rng = np.random.default_rng(0)
    for number, step in enumerate(play(recording)):
        for sampler, buffer in [*buffers.items()][:: -1 if number % 2 else 1]:
            begin = time.process_time_ns()
            step.add_to(buffer)
            added = time.process_time_ns()
            if number < size // N_ENVS:
                continue
            td_errors = th.from_numpy(rng.exponential(size=BATCH_SIZE))
            drawing = time.process_time_ns()
            batch = buffer.sample(BATCH_SIZE)
            if sampler != "uniform":
                buffer.update_priorities(batch.indices, td_errors)
            times[f"{sampler} sample({BATCH_SIZE})"].append(time.process_time_ns() - drawing)
            times[f"{sampler} add"].append(added - begin)
    return {key: statistics.median(each[WARMUP:]) / 1e3 for key, each in times.items()}


def _measure_cpprb(source: str, size: int, repeats: int) -> Measurement:
    """Return the time of sampling a batch as tensors and updating its priorities, with cpprb."""
    import torch as th
    from cpprb import PrioritizedReplayBuffer

    recording = record(source, N_ENVS, size // N_ENVS + WARMUP + repeats)
    obs, action = recording.observation_space, recording.action_space
    fields = {name: {"shape": obs.shape, "dtype": obs.dtype} for name in ("obs", "next_obs")}
    fields |= {"act": {"shape": action.shape, "dtype": action.dtype}, "rew": {}, "done": {}}
    buffer = PrioritizedReplayBuffer(size, fields, alpha=ALPHA)
    rng = np.random.default_rng(0)
    times: list[int] = []
    for number, step in enumerate(play(recording)):
        buffer.add(obs=step.obs, next_obs=step.next_obs, act=step.action, rew=step.reward, done=step.done)
        if number < size // N_ENVS:
            continue
        td_errors = th.from_numpy(rng.exponential(size=BATCH_SIZE))
        begin = time.process_time_ns()
        batch = buffer.sample(BATCH_SIZE, BETA)
        indices = batch.pop("indexes")
        {name: th.as_tensor(array) for name, array in batch.items()}
        buffer.update_priorities(indices, td_errors.numpy())
        times.append(time.process_time_ns() - begin)
    return {PEER_KEY: statistics.median(times[WARMUP:]) / 1e3}


def tables(results: Results) -> str:
    """Return a table of samplers alone and, if there are results, one of buffers."""
    buffers = {label: found[BUFFERS] for label, found in results.items() if BUFFERS in found}
    parts = [table({label: found for label, found in results.items() if label not in buffers})]
    if buffers:
        peers = {label: found["cpprb"] for label, found in results.items() if label in buffers and "cpprb" in found}
        parts += [
            f"Buffers of the default compression method, with {N_ENVS} environments:", buffer_table(buffers, peers)
        ]  # fmt: skip
    return "\n\n".join(parts)


def buffer_table(results: dict[str, Measurement], peers: dict[str, Measurement]) -> str:
    """Return a row per source: the times of uniform and prioritized buffers, their ratio and difference.

    :param peers: of some sources, those of cpprb
    """
    rows = []
    for label, measured in results.items():
        if "error" in measured:
            rows.append([label, "failed", *[""] * 5])
            continue
        uniform, prioritized = (measured[f"{sampler} sample({BATCH_SIZE})"] for sampler in SAMPLERS)
        add = measured["prioritized add"] / measured["uniform add"]
        times = [f"{value:.0f} us" for value in (uniform, prioritized)]
        peer = peers.get(label, {}).get(PEER_KEY)
        versus = "" if peer is None else f"{prioritized / peer:.2f}x"
        differences = f"{prioritized / uniform:.2f}x", f"{prioritized - uniform:+.0f} us", f"{add:.2f}x"
        rows.append([label, *times, *differences, versus])
    sample = f"`sample({BATCH_SIZE})`"
    header = ["observations, transitions", f"uniform {sample}", f"prioritized {sample} and `update_priorities`"]
    return markdown([*header, "ratio", "difference", "`add`, ratio", "prioritized / cpprb's"], rows)


def table(results: Results) -> str:
    """Return a row per number of items and library, with ratios of this package's time to the others'."""
    rows = []
    for label, of_label in results.items():
        ours = _total(of_label.get(OURS, {}))
        for name, measured in of_label.items():
            total = _total(measured)
            if total is None:
                rows.append([label, title(name), "failed", "", "", "", ""])
                continue
            cells = [f"{measured[key]:.1f} us" for key in KEYS]
            ratio = f"{ours / total:.2f}x" if ours is not None else ""
            rows.append([label, title(name), *cells, f"{total:.1f} us", ratio, f"{measured['nbytes']:.1f} B"])
    header = ["items", "sampler", *(f"`{key}`" for key in KEYS), "both", "sb3-compressed / it", "memory of an item"]
    return markdown(header, rows)


def _total(measured: Measurement) -> float | None:
    return sum(measured[key] for key in KEYS) if KEYS[0] in measured else None


def main() -> None:
    """Run the benchmark from the command line."""
    serve(measure)
    flags = parser(__doc__, buffers=NAMES)
    flags.add_argument("--items", nargs="+", type=int, default=ITEMS, help="numbers of items (default: %(default)s)")
    flags.add_argument("--repeats", type=int, default=3_000, help="draws and updates (default: %(default)s)")
    flags.add_argument("--sources", nargs="+", default=[], help="also measure buffers, e.g. of MsPacman HalfCheetah-v5")
    flags.add_argument("--size", type=int, default=100_000, help="transitions of these (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.items, arguments.size, arguments.repeats, arguments.rounds = SMOKE_ITEMS, 400, 20, 1
    names = available(arguments.buffers, arguments.peers)
    jobs = [
        Job(f"{n_items:,}", name, {"n_items": n_items, "repeats": arguments.repeats})
        for n_items in arguments.items
        for name in names
    ]
    for source in arguments.sources:
        recording = record(source, N_ENVS, arguments.size // N_ENVS + WARMUP + arguments.repeats)
        job_arguments = {"source": source, "size": arguments.size, "repeats": arguments.repeats}
        of_vectors = ["cpprb"] if "cpprb" in names and len(recording.observation_space.shape or ()) == 1 else []
        jobs += [Job(f"{source}, {arguments.size:,}", name, job_arguments) for name in (BUFFERS, *of_vectors)]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    keys = ["items", *(["sources", "size"] if arguments.sources else []), "repeats", "rounds"]
    options = {key: getattr(arguments, key) for key in keys}
    save(arguments.out, "samplers", options, results, arguments.peers)
    print(tables(results))


if __name__ == "__main__":
    main()

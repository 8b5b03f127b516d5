"""Prioritized sampling and sequences, beside cpprb and TorchRL.

    python benchmarks/samplers.py
    python benchmarks/samplers.py --items 1000000 100000000

Prioritized sampling without a buffer: items have the priorities of exponentially distributed TD errors. Times are CPU
times, medians over many draws and updates in turn; memory is the growth of the process with each item. cpprb and
TorchRL use float32, this package float64. TorchRL needs the compiled extension of its wheel, which loads only with the
version of PyTorch that it was built for.

A buffer with ``sampler="prioritized"`` is compared with one that samples uniformly, in one process. Both are full; in
turn, a row is added and a batch of 256 sampled, and the priorities of the batch are updated. Where observations are
vectors, a prioritized buffer of cpprb is measured as well, whose batches are converted to tensors.

Sequences are described in ``measure_sequences.py``.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

import numpy as np
from frame_recording import play
from measure_sequences import BATCH_SIZE as N_SEQUENCES
from measure_sequences import COPIES, LENGTH, ONLY, SINGLE, VECTORS, measure_sequences
from measurement import Job, Measurement
from metrics import one_thread, resident_nbytes
from ratios import Results
from session import available, parser, run, save, serve
from sources import record
from tables import markdown

from adapters.buffer_names import title
from adapters.prioritized_samplers import ALPHA, BETA, make_sampler

TITLE = "Samplers"
OURS = "prioritized"
NAMES = [OURS, "cpprb", "torchrl"]
BUFFERS, SAMPLERS = "buffers", ("uniform", "prioritized")
N_ENVS = 4
BATCH_SIZE = 256
PEER_KEY = f"sample and update({BATCH_SIZE})"
KEYS = (f"draw({BATCH_SIZE})", f"update({BATCH_SIZE})")
ITEMS, SMOKE_ITEMS = [1_000_000, 10_000_000], [1_000, 10_000]
ADDED = 100_000  # items at once
REPEATS, WARMUP = 2_000, 50  # draws, and those before
#: Buffers with a prioritized sampler, and with sequences, by their transitions.
BUFFER_SIZES, SMOKE_BUFFER_SIZES = {"MsPacman": 20_000, "HalfCheetah-v5": 100_000}, {"MsPacman": 400}
SEQUENCE_SIZES, SMOKE_SEQUENCE_SIZES = [100_000, 1_000_000, 10_000_000], [400, 2_000]
ITEM_LABEL, BUFFER_LABEL, SEQUENCE_LABEL = "items", "buffer", "sequences"


def measure(name: str, **arguments: Any) -> Measurement:
    """Return microseconds: of CPU time, and of sequences by the clock.

    :param name: one of ``NAMES``, or ``BUFFERS``
    :param arguments: those of the function that measures it
    """
    one_thread()
    if "length" in arguments:
        return measure_sequences(name, **arguments)
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


def _of_kind(results: Results, kind: str) -> Results:
    """Return the results whose label begins with a kind, without it."""
    return {label.removeprefix(f"{kind}: "): found for label, found in results.items() if label.startswith(f"{kind}: ")}


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    buffers = {label: found.get(BUFFERS, {}) for label, found in _of_kind(results, BUFFER_LABEL).items()}
    more = [
        f"{label.partition(',')[0]} {found[f'prioritized {key}'] - found[f'uniform {key}']:+.0f} us "
        f"({found[f'uniform {key}']:,.0f} us uniform)"
        for label, found in buffers.items()
        if f"prioritized {(key := f'sample({BATCH_SIZE})')}" in found
    ]
    ratios = [
        f"{found[SINGLE] / found[COPIES]:.1f} times as fast on {label.partition(',')[0]}"
        for label, of_label in _of_kind(results, SEQUENCE_LABEL).items()
        if SINGLE in (found := of_label.get("auto", {}))
    ]
    return (
        f"Compared with a uniform batch of {BATCH_SIZE}, a prioritized one with its update takes {', '.join(more)}. "
        f"{N_SEQUENCES} sequences of {LENGTH} are sampled {', '.join(ratios)} as the same number of single transitions."
    )


def sections(results: Results) -> list[str]:
    """Return the tables."""
    buffers = _of_kind(results, BUFFER_LABEL)
    sequences = _of_kind(results, SEQUENCE_LABEL)
    return [
        "CPU times of this machine, those of sequences by the clock. Prioritized sampling without a buffer:",
        _item_table(_of_kind(results, ITEM_LABEL)),
        f"Buffers of the default compression method, with {N_ENVS} environments:",
        _buffer_table(buffers),
        f"{N_SEQUENCES} sequences of {LENGTH}, on images:",
        _image_table({label: found for label, found in sequences.items() if not label.startswith(VECTORS)}),
        "The same on vectors; TorchRL finds the ends of episodes for each batch, as after each added transition:",
        _vector_table({label: found for label, found in sequences.items() if label.startswith(VECTORS)}),
    ]


def _item_table(results: Results) -> str:
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


def _buffer_table(results: Results) -> str:
    """Return a row per source: the times of uniform and prioritized buffers, and their difference."""
    rows = []
    for label, of_label in results.items():
        measured = of_label[BUFFERS]
        if "error" in measured:
            rows.append([label, "failed", *[""] * 4])
            continue
        uniform, prioritized = (measured[f"{sampler} sample({BATCH_SIZE})"] for sampler in SAMPLERS)
        peer = of_label.get("cpprb", {}).get(PEER_KEY)
        cells = [f"{uniform:.0f} us", f"{prioritized:.0f} us", f"{prioritized - uniform:+.0f} us"]
        cells.append(f"{measured['prioritized add'] / measured['uniform add']:.2f}x")
        rows.append([label, *cells, "" if peer is None else f"{prioritized / peer:.2f}x"])
    sample = f"`sample({BATCH_SIZE})`"
    header = ["observations, transitions", f"uniform {sample}", f"prioritized {sample} and `update_priorities`"]
    return markdown([*header, "difference", "`add`, ratio", "prioritized / cpprb's"], rows)


def _image_table(results: Results) -> str:
    rows = []
    for label, of_label in results.items():
        measured = of_label["auto"]
        if "error" not in measured:
            times = [f"{measured[key] / 1e3:.2f} ms" for key in (SINGLE, COPIES, ONLY)]
            rows.append([label, *times, f"{measured[SINGLE] / measured[COPIES]:.1f}x"])
    return markdown(["source", f"`{SINGLE}`", COPIES, ONLY, "copies, as fast as single ones"], rows)


def _vector_table(results: Results) -> str:
    rows = [
        [label.partition(", ")[2], title(name), f"{measured[COPIES] / 1e3:.2f} ms"]
        for label, of_label in results.items()
        for name, measured in of_label.items()
        if COPIES in measured
    ]
    return markdown(["transitions", "buffer", "time"], rows)


def _jobs(arguments: Any) -> list[Job]:
    """Return all jobs, after recording what they replay."""
    names = available(arguments.buffers, arguments.peers)
    is_smoke = arguments.smoke
    items, repeats = (SMOKE_ITEMS, 20) if is_smoke else (arguments.items, REPEATS)
    jobs = [
        Job(f"{ITEM_LABEL}: {n_items:,}", name, {"n_items": n_items, "repeats": repeats})
        for n_items in items
        for name in names
    ]
    for source, size in (SMOKE_BUFFER_SIZES if is_smoke else BUFFER_SIZES).items():
        recording = record(source, N_ENVS, size // N_ENVS + WARMUP + repeats)
        given = {"source": source, "size": size, "repeats": repeats}
        is_vector = len(recording.observation_space.shape or ()) == 1
        of_source = [BUFFERS, *(["cpprb"] if is_vector and "cpprb" in names else [])]
        jobs += [Job(f"{BUFFER_LABEL}: {source}, {size:,}", name, given) for name in of_source]
        if not is_vector:
            length = 5 if is_smoke else LENGTH
            given = {"source": source, "size": size, "length": length}
            jobs.append(Job(f"{SEQUENCE_LABEL}: {source}, {size:,}", "auto", given))
    for size in SMOKE_SEQUENCE_SIZES if is_smoke else SEQUENCE_SIZES:
        given = {"source": VECTORS, "size": size, "length": 5 if is_smoke else LENGTH}
        of_vectors = ["auto", *(["torchrl"] if "torchrl" in names else [])]
        jobs += [Job(f"{SEQUENCE_LABEL}: {VECTORS}, {size:,}", name, given) for name in of_vectors]
    return jobs


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=NAMES)
    flags.add_argument("--items", nargs="+", type=int, default=ITEMS, help="numbers of items (default: %(default)s)")
    arguments = flags.parse_args()
    results = run(measure, _jobs(arguments), arguments, rounds=arguments.rounds)
    save(arguments, "samplers", {"repeats": REPEATS, "rounds": arguments.rounds}, results)
    print("\n\n".join([summary(results), *sections(results)]))


if __name__ == "__main__":
    serve(measure)
    main()

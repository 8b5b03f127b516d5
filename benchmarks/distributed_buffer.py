"""Replay buffers behind Ray: bytes over the network, ``sample``, and throughput with several processes.

    python benchmarks/distributed_buffer.py

Every buffer is measured in processes of its own, which share the cores of this machine, so compare ratios only. It is
compared with SB3's buffer in an actor and with TorchRL's ``RayReplayBuffer``; see ``adapters/ray_buffers.py``.

Times of ``sample`` are means over batches in immediate succession, without asking for batches ahead, and with the best
number of batches that are asked for ahead; and medians after other work of the learner, when all of these have arrived.
Bytes are those of arrays and payloads, without headers of Ray, and without codecs, which are sent once.
"""

from __future__ import annotations

from typing import Any

from measurement import Job, Measurement
from ratios import Results, extent
from session import available, parser, run, save, serve
from sources import record
from tables import markdown

TITLE = "Distributed buffers"
GAMES = ["MsPacman", "Pong"]
SOURCE = GAMES[0]
N_ENVS = 4
PARTS = ["bytes", "sampling", "throughput"]
OURS = "distributed"
PEERS = ["SB3", "SB3, arrays", "torchrl:ray", "torchrl:sockets"]
NAMES = {
    "local": "sb3-compressed, `CompressedReplayBuffer`, without Ray",
    OURS: "sb3-compressed, `DistributedReplayBuffer`",
    "SB3": "SB3 in an actor",
    "SB3, arrays": "SB3 in an actor that returns arrays",
    "torchrl:ray": "TorchRL, `RayReplayBuffer`",
    "torchrl:sockets": 'TorchRL, `RayReplayBuffer`, `transport="distributed"`',
}
COLLECTORS, SHARDS, SMOKE_COUNTS = [1, 2, 4], [1, 2], [1]
SIZE, BYTES_SIZE, SMOKE_SIZE = 20_000, 10_000, 1_200
SECONDS, SMOKE_SECONDS = 1.5, 0.02
SAMPLES_PER_INSERT = 8
BATCH_SIZES = (256, 32)


def measure(name: str, part: str, source: str, rows: int, **arguments: Any) -> Measurement:
    """Measure one buffer.

    :param name: one of ``NAMES``, or ``LZ4`` for the bytes of observations that are compressed one by one
    :param part: one of ``PARTS``
    :param rows: steps of the buffer
    :param arguments: those of the function that measures it
    """
    if part == "bytes":
        import distributed_bytes

        recording = record(source, N_ENVS, 2 * rows)
        if name == "LZ4":
            return distributed_bytes.measure_lz4(recording, rows // 10)
        return distributed_bytes.measure_bytes(recording, rows)
    recording = record(source, N_ENVS, rows)
    if part == "sampling":
        from distributed_sampling import measure_sampling

        return measure_sampling(name, recording, rows, **arguments)
    from distributed_throughput import measure_throughput

    return measure_throughput(recording, rows, **arguments)


def best(measured: Measurement, batch_size: int) -> tuple[float, int]:
    """Return the lowest time of a batch in milliseconds, and for how many batches that were asked for ahead."""
    key = f"sample({batch_size})"
    times = {0: measured[key]}
    for label, value in measured.items():
        if label.startswith(f"{key}, ") and label.endswith(" ahead"):
            times[int(label.removeprefix(f"{key}, ").removesuffix(" ahead"))] = value
    depth = min(times, key=times.__getitem__)
    return times[depth], depth


def _bytes(results: Results) -> dict[str, dict[str, Measurement]]:
    return {label.removeprefix("bytes, "): found for label, found in results.items() if label.startswith("bytes, ")}


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    ours = [found[OURS] for found in _bytes(results).values() if "error" not in found[OURS]]
    shares = [extent([each[key] / each["raw"] for each in ours], "{:.1%}") for key in ("to shard", "to learner(256)")]
    times = {name: best(found, 256)[0] for name, found in results["sampling"].items() if "error" not in found}
    others = ", ".join(f"{NAMES[name]} {time / times[OURS]:.1f}" for name, time in times.items() if name in PEERS)
    return (
        f"A transition takes {shares[0]} of the bytes of raw observations on its way to a shard, and {shares[1]} on "
        f"its way to the learner. Batches of 256 in immediate succession take the others this many times as "
        f"long: {others}; without Ray, {times['local'] / times[OURS]:.2f}. After other work, when batches have "
        "arrived, this package still has to decode them, and others may take less."
    )


def sections(results: Results) -> list[str]:
    """Return the tables."""
    throughput = {label: found[OURS] for label, found in results.items() if label.startswith("throughput, ")}
    return [
        f"{', '.join(_bytes(results))}, random actions, {N_ENVS} environments; all processes on this machine.",
        "## `sample`",
        "Without asking ahead; with the best number of batches that are asked for ahead; and after other work, when "
        "all of these have arrived:",
        _sampling_table(results["sampling"]),
        "## Bytes per transition",
        "Of arrays and payloads, without headers of Ray, and without codecs, which are sent once after each training.",
        _bytes_table(_bytes(results)),
        "## Throughput on this machine",
        "Transitions a second. Collectors replay a recording, without environments and policies.",
        _throughput_table(throughput),
    ]


def _sampling_table(results: dict[str, Measurement]) -> str:
    rows = []
    for name, measured in results.items():
        if "error" in measured:
            rows.append([NAMES[name], "failed", *[""] * 5])
            continue
        cells = []
        for batch_size in BATCH_SIZES:
            key = f"sample({batch_size})"
            time, depth = best(measured, batch_size)
            cells += [
                f"{measured[key]:.2f} ms",
                f"{time:.2f} ms ({depth} ahead)",
                f"{measured[f'{key}, ready']:.2f} ms",
            ]
        rows.append([NAMES[name], *cells])
    header = [
        f"`sample({size})`{suffix}" for size in BATCH_SIZES for suffix in ("", ", best prefetch", ", all arrived")
    ]
    return markdown(["buffer", *header], rows)


def _bytes_table(results: dict[str, dict[str, Measurement]]) -> str:
    keys = ["to shard", "to shard, second", "to learner(256)", "to learner(256), without prefetch", "to learner(32)"]
    rows = []
    for game, found in results.items():
        measured = found[OURS]
        if "error" in measured:
            rows.append([game, "failed", *[""] * 5])
            continue
        cells = [f"{measured[key]:,.0f} B ({measured[key] / measured['raw']:.2%})" for key in keys]
        lz4 = found.get("LZ4", {}).get("to shard")
        rows.append([game, *cells, f"{lz4 / measured['raw']:.1%}" if lz4 else ""])
    header = ["game", "to the shard, first 10,000", "to the shard, next 10,000", "to the learner, `sample(256)`"]
    return markdown([*header, "without prefetch", "`sample(32)`", "LZ4 of each observation"], rows)


def _throughput_table(results: dict[str, Measurement]) -> str:
    rows = []
    for label, measured in results.items():
        n_shards = label.split()[1]
        if "error" in measured:
            rows.append([n_shards, "", "failed", ""])
            continue
        for key, rate in measured.items():
            if key.startswith("inserts, "):
                collectors = key.removeprefix("inserts, ")
                rows.append(
                    [n_shards, collectors.split()[0], f"{rate:,.0f}/s", f"{measured[f'both, {collectors}']:,.0f}/s"]
                )
    return markdown(["shards", "collectors", "inserted", f"inserted, {SAMPLES_PER_INSERT} sampled for each"], rows)


def _jobs(arguments: Any, part: str) -> list[Job]:
    """Return the jobs of a part."""
    is_smoke = arguments.smoke
    size, seconds = (SMOKE_SIZE, SMOKE_SECONDS) if is_smoke else (SIZE, SECONDS)
    given: dict[str, Any] = {"part": part, "source": SOURCE, "rows": size // N_ENVS, "seconds": seconds}
    if part == "sampling":
        return [
            Job(part, name, given) for name in available(["local", OURS, *([] if is_smoke else PEERS)], arguments.peers)
        ]
    if part == "bytes":
        rows = (SMOKE_SIZE // 2 if is_smoke else BYTES_SIZE) // N_ENVS
        games = GAMES[:1] if is_smoke else GAMES
        return [
            Job(f"bytes, {game}", name, {"part": part, "source": game, "rows": rows})
            for game in games
            for name in (OURS, "LZ4")
        ]
    given["collectors"] = SMOKE_COUNTS if is_smoke else COLLECTORS
    given["samples_per_insert"] = SAMPLES_PER_INSERT
    return [
        Job(f"throughput, {n_shards} shard{'s' if n_shards > 1 else ''}", OURS, {**given, "n_shards": n_shards})
        for n_shards in (SMOKE_COUNTS if is_smoke else SHARDS)
    ]


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__)
    arguments = flags.parse_args()
    results: Results = {}
    for part in PARTS:
        results |= run(measure, _jobs(arguments, part), arguments, rounds=arguments.rounds)
    save(arguments, "distributed_buffer", {"size": SIZE, "rounds": arguments.rounds}, results)
    print("\n\n".join([summary(results), *sections(results)]))


if __name__ == "__main__":
    main()

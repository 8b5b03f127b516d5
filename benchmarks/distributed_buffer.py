"""Measure replay buffers behind Ray: bytes, `sample`, inserts, training, and throughput with several processes.

    python benchmarks/distributed_buffer.py --quick

Every buffer is measured in processes of its own, which share the cores of this machine, so compare ratios only. It is
compared with SB3's buffer in an actor and with TorchRL's ``RayReplayBuffer``; see ``adapters/ray_buffers.py``. From the
measured costs, a model derives what larger clusters need, see ``cluster_model.py``; the table of throughput has its
predictions for this machine, which no throughput was used for.

Times of ``sample`` are means over batches in immediate succession, without asking for batches ahead, and with the best
number of batches that are asked for ahead; and medians by the clock after other work of the learner, when all of these
have arrived. Bytes contain headers and codecs. Trainings are paired: each seed is trained with both buffers.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any

from cluster_model import Cluster, Costs, limits, weights_share
from measurement import Job, Measurement
from metrics import one_thread, timed
from process_times import OtherPrograms
from ratios import Results
from sb3_envs import wrap_as_sb3
from session import available, parser, run_interleaved, save, serve
from settings import SETTINGS
from sources import Source, record
from tables import markdown

GAMES = ["MsPacman", "Pong", "Breakout", "Seaquest", "Qbert", "Riverraid"]
SOURCE, TRAINING_SOURCE = "MsPacman", "Pong"
N_ENVS = 4
PARTS = ["bytes", "sampling", "inserts", "throughput", "costs", "training"]
PEERS = ["SB3", "SB3, arrays", "torchrl:ray", "torchrl:sockets"]
TITLES = {
    "local": "sb3-compressed, `CompressedReplayBuffer`, without Ray",
    "distributed": "sb3-compressed, `DistributedReplayBuffer`",
    "SB3": "SB3 in an actor",
    "SB3, arrays": "SB3 in an actor that returns arrays",
    "torchrl:ray": "TorchRL, `RayReplayBuffer`",
    "torchrl:sockets": 'TorchRL, `RayReplayBuffer`, `transport="distributed"`',
    "LZ4": "LZ4 of each observation",
}
COLLECTORS, SHARDS = [1, 2, 4, 8], [1, 2, 4]
SAMPLES_PER_INSERT = 8
RAW_NBYTES = 56_448  # of observation and next observation, 84x84, four frames
BATCH_SIZES = (256, 32)
#: What ``sample`` is to reach: times of peers in ours, with and without asking ahead; and ours in the local buffer's.
LEAST_RATIOS = {"best": 2, "none": 5}
MOST_RATIOS = {256: 1.2, 32: 1.5}
MAX_SHARES = {"to shard": 0.012, "to learner(256)": 0.04}
MIN_INSERTS = 50_000
MAX_TRAINING_RATIO = 1.05


def measure(name: str, part: str, **arguments: Any) -> Measurement:
    """Measure one buffer.

    :param name: one of ``TITLES``
    :param part: one of ``PARTS``
    :param arguments: those of the function that measures it
    :return: its numbers, and ``others``, how many cores other programs have used meanwhile
    """
    others = OtherPrograms()
    measured = _measure(name, part, **arguments)
    return {**measured, "others": others.cores()}


def _measure(name: str, part: str, **arguments: Any) -> Measurement:
    if part == "training":
        return _train(name, **arguments)
    source, rows = arguments.pop("source"), arguments.pop("rows")
    if part == "sampling":
        from distributed_sampling import measure_sampling

        return measure_sampling(name, record(source, N_ENVS, rows), rows, **arguments)
    if part == "bytes":
        import distributed_bytes

        recording = record(source, N_ENVS, 2 * rows)
        if name == "LZ4":
            return distributed_bytes.measure_lz4(recording, rows // 10)
        return distributed_bytes.measure_bytes(recording, rows)
    recording = record(source, N_ENVS, rows)
    if part == "costs":
        from distributed_costs import measure_costs

        return measure_costs(source, recording, rows, **arguments)
    import distributed_throughput

    if part == "inserts":
        return distributed_throughput.measure_inserts(recording, rows, **arguments)
    return distributed_throughput.measure_throughput(recording, rows, **arguments)


def _train(name: str, game: str, steps: int, learning_starts: int, seed: int) -> Measurement:
    """Train DQN once, in one environment, and return the seconds."""
    from stable_baselines3 import DQN

    from sb3_compressed import CompressedReplayBuffer

    one_thread()
    source = Source(game)
    env = wrap_as_sb3(source.make(1), source.n_stack)
    buffer: Any = CompressedReplayBuffer
    if name == "distributed":
        from sb3_compressed.distributed import DistributedReplayBuffer

        buffer = DistributedReplayBuffer
    settings = {**SETTINGS["DQN"], "learning_starts": learning_starts}
    model = DQN("CnnPolicy", env, seed=seed, device="cpu", **settings, replay_buffer_class=buffer)
    seconds = timed(model.learn, steps)
    if name == "distributed":
        model.replay_buffer.close()  # type: ignore[union-attr]
    return {"seconds": seconds}


def best(measured: Measurement, batch_size: int) -> tuple[float, int]:
    """Return the lowest time of a batch in milliseconds, and for how many batches that were asked for ahead."""
    key = f"sample({batch_size})"
    times = {0: measured[key]}
    for label, value in measured.items():
        if label.startswith(f"{key}, ") and label.endswith(" ahead"):
            times[int(label.removeprefix(f"{key}, ").removesuffix(" ahead"))] = value
    depth = min(times, key=times.__getitem__)
    return times[depth], depth


def sections(results: Results, arguments: dict[str, Any]) -> list[str]:
    """Return titles, texts and tables of all parts that were measured."""
    parts: list[tuple[str, Callable[[], list[str]]]] = [
        ("Targets", lambda: [_targets(results)]),
        ("`sample`", lambda: [_sampling_table(results)]),
        ("Bytes per transition", lambda: [_bytes_table(results)]),
        ("Throughput on this machine", lambda: _throughput(results, arguments)),
        ("Larger clusters", lambda: _clusters(results)),
    ]
    others = [each["others"] for of_label in results.values() for each in of_label.values() if "others" in each]
    found: list[str] = []
    if others:
        cores = f"{max(others):.1f} cores, {statistics.median(others):.2f} in the median measurement"
        found.append(f"Meanwhile, other programs used up to {cores}.")
    for title, write in parts:
        texts = [text for text in write() if text]
        if texts:
            found += [f"## {title}", *texts]
    return found


# -- tables ------------------------------------------------------------------------------------------------------


def _targets(results: Results) -> str:
    rows = [*_byte_targets(results), *_sampling_targets(results), *_other_targets(results)]
    header = ["what", "target", "measured", "reached"]
    cells = [[*row[:3], ("yes" if row[3] else "**no**") if row[1] else ""] for row in rows]
    return markdown(header, cells) if rows else ""


def _byte_targets(results: Results) -> list[tuple[str, str, str, bool]]:
    of_games = [found["distributed"] for label, found in results.items() if label.startswith("bytes, ")]
    of_games = [measured for measured in of_games if "error" not in measured]
    rows = []
    for key, most in MAX_SHARES.items():
        if of_games:
            share = statistics.geometric_mean([measured[key] / measured["raw"] for measured in of_games])
            what = f"bytes {key.partition('(')[0]}, geometric mean of {len(of_games)} games, of raw observations"
            rows.append((what, f"at most {most:.1%}", f"{share:.2%}", share <= most))
    return rows


def _sampling_targets(results: Results) -> list[tuple[str, str, str, bool]]:
    measured = results.get("sampling", {})
    ours, local = measured.get("distributed", {}), measured.get("local", {})
    rows = []
    for batch_size in BATCH_SIZES:
        key = f"sample({batch_size})"
        for name in PEERS:
            theirs = measured.get(name, {})
            if key not in ours or key not in theirs:
                continue
            for which, least in LEAST_RATIOS.items():
                times = [best(each, batch_size)[0] if which == "best" else each[key] for each in (theirs, ours)]
                ratio = times[0] / times[1]
                ahead = "best prefetch" if which == "best" else "no prefetch"
                target = f"at least {least}x faster" if batch_size == BATCH_SIZES[0] else ""
                rows.append((f"`{key}`, {ahead}: {TITLES[name]}", target, f"{ratio:.1f}x", ratio >= least))
        if key in ours and key in local:
            ratio, most = ours[f"{key}, ready"] / local[f"{key}, ready"], MOST_RATIOS[batch_size]
            rows.append((f"`{key}`, full pipeline: local buffer", f"at most {most}x", f"{ratio:.2f}x", ratio <= most))
    return rows


def _other_targets(results: Results) -> list[tuple[str, str, str, bool]]:
    rows = []
    inserts = results.get("inserts", {}).get("distributed", {})
    if "inserts, 2 ahead" in inserts:
        rate = inserts["inserts, 2 ahead"]
        what = "acknowledged inserts of encoded segments into one shard, transitions"
        rows.append((what, f"at least {MIN_INSERTS:,}/s", f"{rate:,.0f}/s", rate >= MIN_INSERTS))
    pairs = _training_ratios(results)
    if pairs:
        ratio = statistics.median(pairs)
        cell = f"{ratio:.3f}x ({min(pairs):.3f}x to {max(pairs):.3f}x in {len(pairs)} pairs)"
        what = "time of training DQN, one shard and no collectors: local buffer"
        rows.append((what, f"at most {MAX_TRAINING_RATIO}x", cell, ratio <= MAX_TRAINING_RATIO))
    return rows


def _training_ratios(results: Results) -> list[float]:
    return [
        found["distributed"]["seconds"] / found["local"]["seconds"]
        for label, found in results.items()
        if label.startswith("training, ") and all("seconds" in found.get(name, {}) for name in ("distributed", "local"))
    ]


def _sampling_table(results: Results) -> str:
    rows = []
    for name, measured in results.get("sampling", {}).items():
        if "error" in measured:
            rows.append([TITLES[name], f"failed: {measured['error']}", *[""] * 5])
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
        rows.append([TITLES[name], *cells])
    header = [
        f"`sample({size})`{suffix}" for size in BATCH_SIZES for suffix in ("", ", best prefetch", ", full pipeline")
    ]
    return markdown(["buffer", *header], rows) if rows else ""


def _bytes_table(results: Results) -> str:
    keys = ["to shard", "to shard, second", "to learner(256)", "to learner(256), without prefetch", "to learner(32)"]
    rows = []
    for label, found in results.items():
        if not label.startswith("bytes, "):
            continue
        measured = found["distributed"]
        cells = [f"{measured[key]:,.0f} B ({measured[key] / measured['raw']:.2%})" for key in keys]
        lz4 = found.get("LZ4", {}).get("to shard")
        rows.append([label.removeprefix("bytes, "), *cells, f"{lz4 / measured['raw']:.1%}" if lz4 else ""])
    header = ["game", "to the shard, first 10,000", "to the shard, next 10,000", "to the learner, `sample(256)`"]
    return markdown([*header, "without prefetch", "`sample(32)`", "LZ4 of each observation"], rows) if rows else ""


def costs_of(results: Results) -> Costs | None:
    """Return what the model needs, ``None`` if not all of it was measured."""
    parts = [results.get(part, {}).get("distributed", {}) for part in ("costs", "inserts", "sampling")]
    of_bytes = results.get(f"bytes, {SOURCE}", {}).get("distributed", {})
    if any(not part or "error" in part for part in (*parts, of_bytes)):
        return None
    costs, inserts, sampling = parts
    key = "sample(256)"
    _, depth = best(sampling, 256)
    inserting, drawing = inserts["cpu"]["2 ahead"], sampling["cpu"][f"{key}, {depth} ahead" if depth else key]
    per_sample = 1e-3 / 256  # from milliseconds of a batch
    return Costs(
        act=costs["environment"] + costs["policy"],
        encode=costs["add"],
        collect=0.0,
        insert=inserting["Shard"],
        draw=drawing["Shard"] * per_sample,
        decode=drawing["learner"] * per_sample,
        decode_elapsed=sampling[f"{key}, ready"] * per_sample,
        ray_insert=inserting["Ray"],
        ray_sample=drawing["Ray"] * per_sample,
        publish=costs["publish"],
        receive=costs["receive"],
        inserted_nbytes=of_bytes["to shard"],
        sampled_nbytes=of_bytes["to learner(256)"],
        weights_nbytes=costs["weights_nbytes"],
    )


def _throughput(results: Results, arguments: dict[str, Any]) -> list[str]:
    costs = costs_of(results)
    rows, errors = [], []
    for label, found in results.items():
        if not label.startswith("throughput, "):
            continue
        measured, n_shards = found["distributed"], int(label.split()[1])
        if "error" in measured:
            rows.append([str(n_shards), f"failed: {measured['error']}", *[""] * 5])
            continue
        for n_collectors in arguments["collectors"]:
            cells = [str(n_shards), str(n_collectors)]
            for kind, ratio in (("inserts", 0), ("both", SAMPLES_PER_INSERT)):
                rate = measured[f"{kind}, {n_collectors} collector{'s' if n_collectors > 1 else ''}"]
                cells.append(f"{rate:,.0f}/s")
                if costs is None:
                    cells.append("")
                    continue
                predicted, bottleneck = _predicted(costs, n_collectors, n_shards, ratio, arguments["cores"])
                errors.append(predicted / rate)
                cells.append(f"{predicted:,.0f}/s ({bottleneck})")
            rows.append(cells)
    if not rows:
        return []
    table = markdown(
        ["shards", "collectors", "inserted", "model", f"inserted, {SAMPLES_PER_INSERT} sampled for each", "model"], rows
    )
    text = (
        "Collectors replay a recording, without environments and policies. Transitions a second, and what the model "
        f"predicts for {arguments['cores']} cores with the bottleneck that it names"
    )
    if not errors:
        return [f"{text}.", table]
    extent = f"{min(errors):.2f} to {max(errors):.2f} of what was measured, median {statistics.median(errors):.2f}"
    return [f"{text}: {extent}.", table]


def _predicted(
    costs: Costs, n_collectors: int, n_shards: int, samples_per_insert: float, cores: int
) -> tuple[float, str]:
    """Return the predicted transitions a second of collectors without environments, and the bottleneck."""
    without_environments = Costs(**{**vars(costs), "act": 0.0})
    found = limits(without_environments, Cluster(n_collectors, n_shards, samples_per_insert, n_cores=cores))
    bottleneck = min(found, key=found.__getitem__)
    return found[bottleneck], bottleneck


def _clusters(results: Results) -> list[str]:
    costs = costs_of(results)
    if costs is None:
        return []
    us = {
        "environment and policy, per transition": costs.act,
        "encode and send, per transition": costs.encode,
        "insert into a shard, per transition": costs.insert,
        "draw and pack, per sampled transition": costs.draw,
        "decode, per sampled transition (by the clock)": costs.decode_elapsed,
        "Ray's processes, per inserted transition": costs.ray_insert,
        "Ray's processes, per sampled transition": costs.ray_sample,
        "publish weights, per version": costs.publish,
        "receive weights, per version and collector": costs.receive,
    }
    rows = [[what, f"{seconds * 1e6:,.1f} us"] for what, seconds in us.items()]
    rows += [
        ["bytes to a shard, per transition", f"{costs.inserted_nbytes:,.0f} B"],
        ["bytes to the learner, per sampled transition", f"{costs.sampled_nbytes:,.0f} B"],
        ["weights, per version", f"{costs.weights_nbytes / 1e6:.1f} MB"],
    ]
    tables = [
        f"Measured on {SOURCE} with {N_ENVS} environments per collector, CPU times:",
        markdown(["cost", ""], rows),
    ]
    rows = []
    for ratio in (0.8, 8):
        for gbits in (10, 100):
            cluster = Cluster(256, 32, ratio, n_nodes=33, n_cores=16, bits_per_second=gbits * 1e9, weights_interval=10)
            found = limits(costs, cluster)
            bottleneck = min(found, key=found.__getitem__)
            raw = cluster.bits_per_second / 8 / (ratio * RAW_NBYTES)
            cells = [f"{found[key]:,.0f}/s" for key in ("collectors", "shards", "learner", "network into the learner")]
            cells += [f"{raw:,.0f}/s", bottleneck, f"{weights_share(costs, cluster):.1%}"]
            rows.append([f"{gbits} Gbit/s", f"{ratio:g}", *cells])
    header = ["network", "samples per insert", "collectors", "shards", "learner", "network into the learner"]
    header += ["the same, raw frames", "bottleneck", "weights' share of the network"]
    text = (
        "Transitions a second that 256 collectors on 32 nodes could insert if nothing but the resource of a column "
        "limited them (one shard and 16 cores per node, a further node for the learner, which is not training, and new "
        "weights every ten seconds):"
    )
    return [*tables, text, markdown(header, rows)]


# -- running -----------------------------------------------------------------------------------------------------


def _jobs(arguments: Any, part: str) -> list[Job]:
    """Return the jobs of a part."""
    common: dict[str, Any] = {"part": part, "source": SOURCE, "rows": arguments.size // N_ENVS}
    timed_part = {**common, "seconds": arguments.seconds}
    if part == "sampling":
        names = available(["local", "distributed", *PEERS], arguments.peers)
        return [Job(part, name, timed_part) for name in names]
    if part == "bytes":
        of_games = [(game, {**common, "source": game, "rows": arguments.byte_rows}) for game in arguments.games]
        return [Job(f"bytes, {game}", name, each) for game, each in of_games for name in ("distributed", "LZ4")]
    if part == "throughput":
        options = {"collectors": arguments.collectors, "samples_per_insert": SAMPLES_PER_INSERT}
        return [
            Job(
                f"throughput, {n_shards} shard{'s' if n_shards > 1 else ''}",
                "distributed",
                {**timed_part, **options, "n_shards": n_shards},
            )
            for n_shards in arguments.shards
        ]
    if part == "training":
        training = {"part": part, "game": TRAINING_SOURCE, "steps": arguments.training_steps}
        training["learning_starts"] = arguments.training_steps // 4
        names = ["local", "distributed"]
        return [
            Job(f"training, seed {seed}", name, {**training, "seed": seed})
            for seed in range(arguments.pairs)
            for name in names[:: -1 if seed % 2 else 1]
        ]
    return [Job(part, "distributed", timed_part)]


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, rounds=1)
    flags.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    flags.add_argument("--games", nargs="+", default=GAMES, help="for the bytes (default: %(default)s)")
    flags.add_argument("--size", type=int, default=20_000, help="transitions of a buffer (default: %(default)s)")
    flags.add_argument("--seconds", type=float, default=1.5, help="of each time measured (default: %(default)s)")
    flags.add_argument("--collectors", nargs="+", type=int, default=COLLECTORS)
    flags.add_argument("--shards", nargs="+", type=int, default=SHARDS)
    flags.add_argument("--training-steps", type=int, default=8_000, help="of each training (default: %(default)s)")
    flags.add_argument("--pairs", type=int, default=2, help="of trainings (default: %(default)s)")
    flags.add_argument("--quick", action="store_true", help="take about a minute: no training, one game")
    arguments = flags.parse_args()
    arguments.byte_rows = 10_000 // N_ENVS
    if arguments.quick:
        arguments.parts = [part for part in arguments.parts if part != "training"]
        arguments.games, arguments.seconds, arguments.size = arguments.games[:1], 0.4, 5_000
        arguments.collectors, arguments.shards = [1, 4], [1]
    if arguments.smoke:
        arguments.games, arguments.size, arguments.seconds, arguments.byte_rows = arguments.games[:1], 1_200, 0.02, 150
        arguments.collectors, arguments.shards, arguments.training_steps, arguments.pairs = [1], [1], 160, 1
    results: dict[str, dict[str, Measurement]] = {}
    for part in arguments.parts:
        results |= run_interleaved(measure, _jobs(arguments, part), arguments.rounds, arguments.peers)
    names = ["size", "seconds", "collectors", "shards", "training_steps", "pairs", "rounds"]
    options = {**{name: getattr(arguments, name) for name in names}, "cores": os.cpu_count()}
    save(arguments.out, "distributed_buffer", options, results, arguments.peers)
    print("\n\n".join(sections(results, options)))


if __name__ == "__main__":
    main()

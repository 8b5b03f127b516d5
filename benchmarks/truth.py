"""Whether buffers return what was added: a benchmark of one that does not is worth nothing.

    python benchmarks/truth.py --sources Breakout CarRacing-v3 --contenders auto cpprb torchrl extra:rle-jit

Every benchmark looks at this by itself, too.
"""

from __future__ import annotations

from recording import record
from session import available, parser, run_interleaved, save, serve
from tables import markdown

from contenders import Setup, make_replay
from sb3_compressed.benchmarking.frame_recording import play
from sb3_compressed.benchmarking.roundtrip import check_replay
from sb3_compressed.benchmarking.runner import Job, Measurement

N_ENVS = 4


def measure(contender: str, source: str, rows: int) -> Measurement:
    """Return what is wrong with the batches of a replay buffer, or nothing."""
    recording = record(source, N_ENVS, 2 * rows)
    replay = make_replay(contender, Setup.of(recording, rows))
    return {"wrong": check_replay(replay, play(recording), rows)}


def main() -> None:
    """Check from the command line."""
    serve(measure)
    flags = parser(__doc__, contenders=["auto", "zstd3", "none"], rounds=1)
    flags.add_argument("--sources", nargs="+", default=["Breakout", "Pong"], help="as Pong, Pong:trained, CarRacing-v3")
    flags.add_argument("--steps", type=int, default=1000, help="that the buffers hold (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.sources, arguments.steps = arguments.sources[:1], 100
    names = available(["SB3", *arguments.contenders], arguments.peers)
    options = {"rows": arguments.steps}
    for source in arguments.sources:
        record(source, N_ENVS, 2 * arguments.steps)
    jobs = [Job(source, name, {"source": source, **options}) for source in arguments.sources for name in names]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "truth", options, results, arguments.peers)
    said = {name: [results[source][name] for source in results] for name in names}
    rows = [
        [f"`{name}`", *(one.get("error") or one.get("wrong") or "true" for one in of_name)]
        for name, of_name in said.items()
    ]
    print(markdown(["buffer", *results], rows))


if __name__ == "__main__":
    main()

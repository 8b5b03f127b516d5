"""Verify that buffers return what was added.

    python benchmarks/roundtrip.py --sources Breakout CarRacing-v3 --buffers auto cpprb torchrl extra:rle-jit

The benchmarks of replay and rollout buffers verify it, too.
"""

from __future__ import annotations

from batch_checks import check_replay
from frame_recording import play
from measurement import Job, Measurement
from session import available, parser, run_interleaved, save, serve
from sources import record
from tables import markdown

from adapters import make_replay

N_ENVS = 4


def measure(name: str, source: str, rows: int) -> Measurement:
    """Return a description of wrong data in the batches of a replay buffer, if any."""
    recording = record(source, N_ENVS, 2 * rows)
    replay = make_replay(name, recording, rows)
    return {"wrong": check_replay(replay, play(recording), rows)}


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, buffers=["auto", "zstd3", "none"], rounds=1)
    flags.add_argument("--sources", nargs="+", default=["Breakout", "Pong"], help="e.g. Pong Pong:trained CarRacing-v3")
    flags.add_argument("--steps", type=int, default=1000, help="steps in the buffers (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.sources, arguments.steps = arguments.sources[:1], 100
    names = available(["SB3", *arguments.buffers], arguments.peers)
    options = {"rows": arguments.steps}
    for source in arguments.sources:
        record(source, N_ENVS, 2 * arguments.steps)
    jobs = [Job(source, name, {"source": source, **options}) for source in arguments.sources for name in names]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "roundtrip", options, results, arguments.peers)
    outcomes = {name: [of_source[name] for of_source in results.values()] for name in names}
    rows = [
        [f"`{name}`", *(one.get("error") or one["wrong"] or "ok" for one in of_name)]
        for name, of_name in outcomes.items()
    ]
    print(markdown(["buffer", *results], rows))


if __name__ == "__main__":
    main()

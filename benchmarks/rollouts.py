"""Rollout buffers: memory, ``add`` and one pass of ``get`` on real observations.

    python benchmarks/rollouts.py --sources Pong --buffers auto zstd-5 extra:zstd-5

As in PPO for Atari games: 128 steps of 8 environments, batches of 256. Memory is the growth of the process (RSS) from
before the buffer is created until it is full. The first rollout is not timed; ``get`` is one epoch, a pass over all
batches.
"""

from __future__ import annotations

from functools import partial

from measure_rollout import measure_rollout
from measurement import Job, Measurement
from ratios import Results, extent, ratios
from session import available, parser, run, save, serve
from sources import record
from tables import mean_table, source_table

from adapters import make_rollout

TITLE = "Rollout buffers"
SOURCES = ["MsPacman", "Crafter-v0", "Doom84-v0"]
BUFFERS = ["auto", "zstd3", "none", "extra:zstd-3", "extra:rle-jit"]
N_ENVS, N_STEPS, N_ROLLOUTS = 8, 128, 8
SMOKE_STEPS, SMOKE_ROLLOUTS = 32, 2


def measure(name: str, source: str, n_steps: int, rollouts: int) -> Measurement:
    """Measure one buffer; see :func:`~measure_rollout.measure_rollout`."""
    recording = record(source, N_ENVS, n_steps * rollouts)
    return measure_rollout(partial(make_rollout, name, recording), recording, n_steps, rollouts)


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    memory, add, get = (
        extent(ratios(results, "auto", key), form)
        for key, form in (("rss", "{:.0%}"), ("add", "{:.2f}"), ("get", "{:.2f}"))
    )
    return (
        f"With the default codec, a rollout buffer takes {memory} of the memory of SB3's. `add` takes {add} times "
        f"as long, and a pass of `get` {get} times."
    )


def sections(results: Results) -> list[str]:
    """Return the tables."""
    return [
        f"Relative to SB3's buffer, {N_STEPS} steps of {N_ENVS} environments, batches of 256, random actions. "
        "Geometric means over the scenes:",
        mean_table(results),
        "## Each scene",
        source_table(results),
    ]


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=BUFFERS)
    flags.add_argument("--sources", nargs="+", default=SOURCES, help="e.g. Pong CarRacing-v3")
    arguments = flags.parse_args()
    n_steps, n_rollouts = (SMOKE_STEPS, SMOKE_ROLLOUTS) if arguments.smoke else (N_STEPS, N_ROLLOUTS)
    names, sources = available(["SB3", *arguments.buffers], arguments.peers), arguments.sources
    if arguments.smoke:
        sources = sources[:1]
    for source in sources:
        record(source, N_ENVS, n_steps * n_rollouts)
    given = {"n_steps": n_steps, "rollouts": n_rollouts}
    jobs = [Job(source, name, {"source": source, **given}) for source in sources for name in names]
    results = run(measure, jobs, arguments, rounds=arguments.rounds)
    save(arguments, "rollouts", {**given, "rounds": arguments.rounds}, results)
    print("\n\n".join([summary(results), *sections(results)]))


if __name__ == "__main__":
    serve(measure)
    main()

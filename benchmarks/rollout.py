"""Measure the memory, ``add`` and ``get`` of rollout buffers on real observations.

    python benchmarks/rollout.py --sources Pong --buffers auto zstd-5 extra:zstd-5

As in PPO for Atari games: 128 steps of 8 environments, batches of 256. Memory is the growth of the process (RSS) from
before the buffer is created until it is full. The first rollout is not timed; ``get`` is one epoch, a pass over all
batches.
"""

from __future__ import annotations

from functools import partial

from measure_rollout import measure_rollout
from measurement import Job, Measurement
from session import EXTRAPOLATION_KEYS, available, parser, run_interleaved, save, serve
from sources import record
from tables import ratio_table

from adapters import make_rollout

GAMES = ["MsPacman", "Pong", "Breakout", "Seaquest", "Qbert", "Riverraid"]
BUFFERS = ["auto", "zstd3", "none"]
N_ENVS = 8


def measure(name: str, source: str, n_steps: int, rollouts: int) -> Measurement:
    """Measure one buffer; see :func:`~measure_rollout.measure_rollout`."""
    recording = record(source, N_ENVS, n_steps * rollouts)
    measured = measure_rollout(partial(make_rollout, name, recording), recording, n_steps, rollouts)
    return {key: value for key, value in measured.items() if key not in EXTRAPOLATION_KEYS}


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, buffers=BUFFERS)
    flags.add_argument("--sources", nargs="+", default=GAMES, help="e.g. Pong Pong:trained CarRacing-v3")
    flags.add_argument("--n-steps", type=int, default=128, help="steps per rollout (default: %(default)s)")
    flags.add_argument("--rollouts", type=int, default=10, help="number of rollouts (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.sources, arguments.n_steps, arguments.rollouts, arguments.rounds = arguments.sources[:1], 32, 2, 1
    names = available(["SB3", *arguments.buffers], arguments.peers)
    options = {"n_steps": arguments.n_steps, "rollouts": arguments.rollouts}
    for source in arguments.sources:
        record(source, N_ENVS, arguments.n_steps * arguments.rollouts)
    jobs = [Job(source, name, {"source": source, **options}) for source in arguments.sources for name in names]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "rollout", {**options, "rounds": arguments.rounds}, results, arguments.peers)
    print(ratio_table(results))


if __name__ == "__main__":
    main()

"""Rollout buffers on real observations: memory, ``add``, and one pass over all batches, as ratios to SB3's buffer.

    python benchmarks/rollout.py --sources Pong --contenders auto zstd-5 extra:zstd-5

As PPO uses them: 128 steps of 8 environments, batches of 256.
Memory is what the process grows by from before the buffer is made until it is full; times are of the second and later
rollouts, ``get`` is one epoch: all batches once.
"""

from __future__ import annotations

from functools import partial

from recording import record
from session import available, parser, run_interleaved, save, serve
from tables import ratio_table

from contenders import make_rollout
from sb3_compressed.benchmarking.rollout_benchmark import measure_rollout
from sb3_compressed.benchmarking.runner import Job, Measurement

GAMES = ["MsPacman", "Pong", "Breakout", "Seaquest", "Qbert", "Riverraid"]
CONTENDERS = ["auto", "zstd3", "none"]
N_ENVS = 8


def measure(contender: str, source: str, n_steps: int, rollouts: int) -> Measurement:
    """Fill and read one buffer several times and return bytes of memory a step and microseconds."""
    recording = record(source, N_ENVS, n_steps * rollouts)
    return measure_rollout(partial(make_rollout, contender), recording, n_steps, rollouts)


def main() -> None:
    """Run the benchmark from the command line."""
    serve(measure)
    flags = parser(__doc__, contenders=CONTENDERS)
    flags.add_argument("--sources", nargs="+", default=GAMES, help="as Pong, Pong:trained, CarRacing-v3")
    flags.add_argument("--n-steps", type=int, default=128, help="steps of a rollout (default: %(default)s)")
    flags.add_argument("--rollouts", type=int, default=10, help="how many are collected (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.sources, arguments.n_steps, arguments.rollouts, arguments.rounds = arguments.sources[:1], 32, 2, 1
    names = available(["SB3", *arguments.contenders], arguments.peers)
    options = {"n_steps": arguments.n_steps, "rollouts": arguments.rollouts}
    for source in arguments.sources:
        record(source, N_ENVS, arguments.n_steps * arguments.rollouts)
    jobs = [Job(source, name, {"source": source, **options}) for source in arguments.sources for name in names]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "rollout", {**options, "rounds": arguments.rounds}, results, arguments.peers)
    print(ratio_table(results))


if __name__ == "__main__":
    main()

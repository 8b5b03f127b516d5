"""Whether buffers return what was added: a benchmark of one that does not is worth nothing.

    python benchmarks/truth.py --sources Breakout CarRacing-v3 --contenders auto cpprb torchrl extra:rle-jit

Every benchmark looks at this by itself, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from recording import Step, play, record
from session import Job, Measurement, available, parser, save, serve, take_turns
from tables import markdown

from contenders import Batch, Replay, Rollout, Setup, make_replay

BATCH = 256
N_ENVS = 4


def check_replay(replay: Replay, steps: Iterator[Step], rows: int, *, has_ends: bool = True) -> str:
    """Go twice over the ring and sample on the way; return what is wrong, or nothing.

    Every transition is found by its reward, which is its serial number.

    :param rows: how many steps the buffer holds
    :param has_ends: whether the next observation at an episode's end must be its last one
    """
    known: deque[Step] = deque(maxlen=rows)
    for i in range(2 * rows):
        step = next(steps)
        replay.add(step)
        known.append(_kept(step))
        if i > 8 and i % max(rows // 8, 1) == 0:
            wrong = _compare(replay.read(replay.sample(BATCH)), known, has_next=True, has_ends=has_ends)
            if wrong:
                return f"after {i + 1} steps: {wrong}"
    return ""


def check_rollout(rollout: Rollout, steps: Iterator[Step], rows: int) -> str:
    """Fill and empty it twice; return what is wrong with the batches, or nothing."""
    for _ in range(2):
        known: deque[Step] = deque(maxlen=rows)
        rollout.reset()
        for _ in range(rows):
            step = next(steps)
            rollout.add(step)
            known.append(_kept(step))
        for batch in rollout.get(BATCH):
            if wrong := _compare(rollout.read(batch), known, has_next=False):
                return wrong
    return ""


def _kept(step: Step) -> Step:
    return replace(step, obs=step.obs.copy(), next_obs=step.next_obs.copy(), done=step.done.copy())


def _compare(batch: Batch, known: deque[Step], *, has_next: bool, has_ends: bool = True) -> str:
    first, n_envs = int(known[0].reward[0]), len(known[0].reward)
    counts = dict.fromkeys(("observations", "next observations", "next observations at episode ends", "unknown"), 0)
    for i, serial in enumerate(batch.serial):
        row, env = divmod(int(serial) - first, n_envs)
        if not 0 <= row < len(known):
            counts["unknown"] += 1
            continue
        step = known[row]
        counts["observations"] += not np.array_equal(batch.obs[i], step.obs[env])
        if has_next and (has_ends or not step.done[env]) and not np.array_equal(batch.next_obs[i], step.next_obs[env]):
            counts["next observations at episode ends" if step.done[env] else "next observations"] += 1
    return ", ".join(f"{n} {what} of {len(batch.serial)} wrong" for what, n in counts.items() if n)


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
    results = take_turns(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "truth", options, results, arguments.peers)
    said = {name: [results[source][name] for source in results] for name in names}
    rows = [
        [f"`{name}`", *(one.get("error") or one.get("wrong") or "true" for one in of_name)]
        for name, of_name in said.items()
    ]
    print(markdown(["buffer", *results], rows))


if __name__ == "__main__":
    main()

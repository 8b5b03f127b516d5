"""Kill processes of trainings on Ray hundreds of times, and check that nothing acknowledged is lost.

Each round is a training of DQN with collectors and shards, and with a second buffer whose shards are in memory. At
random times, processes of it are killed: collectors, shards, the learner, or nodes of a cluster. Each sampled
transition is compared with what the environment emitted. After each kill of the learner and each round, everything in
the folders of the shards is compared with what they have acknowledged.

    python benchmarks/fault_soak.py --kills 300
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # also for the processes that are killed

from distributed.fault_session import FaultSession, audit_memory, audit_shards

#: Kills in a round.
N_KILLS = 25
#: How often each kind of process is killed. Ray's processes end with the learner, so there is no cluster then.
KINDS = (
    {"collector": 4, "shard": 5, "memory shard": 4, "learner": 2},
    {"collector": 4, "shard": 5, "memory shard": 4, "node": 2},
)
OPTIONS = ("--memory",), ("--memory", "--nodes", "2")


class Round(NamedTuple):
    """What a round has counted.

    :param kills: how often each kind of process was killed
    :param n_checked: number of sampled transitions that were compared, since the last start of the learner
    :param n_acknowledged: number of transitions that shards with folders have acknowledged
    :param n_lost: how many of these are missing, although nothing has overwritten them
    :param n_memory_lost: number of acknowledged transitions that shards in memory have lost, since that start
    :param n_memory_counted: how many of these the learner has counted
    :param seconds: duration
    """

    kills: Counter[str]
    n_checked: int
    n_acknowledged: int
    n_lost: int
    n_memory_lost: int
    n_memory_counted: int
    seconds: float


def plan(n_kills: int, seed: int) -> Iterator[list[str]]:
    """Yield what is killed in each round, in turns without and with a cluster."""
    chosen, number = random.Random(seed), 0
    while n_kills > 0:
        kinds = KINDS[number % len(KINDS)]
        yield chosen.choices(list(kinds), list(kinds.values()), k=min(n_kills, N_KILLS))
        n_kills, number = n_kills - N_KILLS, number + 1


def run(kinds: list[str], number: int, seed: int, folder: Path) -> Round:
    """Run one round.

    :param kinds: what is killed
    :param number: that of the round
    :param folder: a new one
    :raises AssertionError: if a transition is there twice, was not emitted so, or is missing
    """
    begin = time.perf_counter()
    with FaultSession(folder, seed + number, *OPTIONS[number % len(OPTIONS)]) as session:
        try:
            for kind in kinds:
                session.kill(kind)
            report = session.program.wait_for_progress()
            result = session.stop()
            audit, memory = audit_shards(folder), audit_memory(folder, result.n_memory_acknowledged)
            session.require_nothing_left()
        finally:
            session.close()
    n_checked = report.shards.n_checked + (report.memory.n_checked if report.memory else 0)
    return Round(
        session.kills, n_checked, audit.n_acknowledged, audit.n_lost, memory.n_lost, result.n_memory_lost,
        time.perf_counter() - begin,
    )  # fmt: skip


def main() -> int:
    """Run, print a table, and return 1 if the learner has not counted all losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="number of kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed, and when (default: %(default)s)")
    arguments = parser.parse_args()
    kinds = list(dict.fromkeys(kind for of_round in KINDS for kind in of_round))
    table = Table("round", *kinds, "compared", "acknowledged", "lost", "lost from memory", "counted", "s")
    rounds = []
    for number, chosen in enumerate(plan(arguments.kills, arguments.seed)):
        with tempfile.TemporaryDirectory(prefix="fault-soak-") as folder:
            rounds.append(done := run(chosen, number, arguments.seed, Path(folder)))
        counts = done.n_checked, done.n_acknowledged, done.n_lost, done.n_memory_lost, done.n_memory_counted
        table.add_row(
            str(number), *(str(done.kills[kind]) for kind in kinds), *(f"{count:,}" for count in counts),
            f"{done.seconds:.0f}",
        )  # fmt: skip
        print(f"round {number}: {done}", file=sys.stderr, flush=True)
    Console().print(table, f"{sum(each.kills.total() for each in rounds)} kills")
    return int(any(each.n_memory_counted < each.n_memory_lost for each in rounds))


if __name__ == "__main__":
    sys.exit(main())

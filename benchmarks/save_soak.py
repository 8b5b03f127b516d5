"""Save a distributed buffer thousands of times while its processes are stopped and killed, and check each save.

In each round, a learner saves all the time while other processes add transitions. At random times, a shard is stopped
for less or more than the timeout, or a shard, a writer, a node of a cluster or the learner is killed. Each save that
returns must contain what was acknowledged before it began, and after each save that raises, the one before must still
be there. Rounds have shards in memory or in folders, with and without a cluster, and with buffers so small that
transitions are overwritten.

    python benchmarks/save_soak.py --rounds 20
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # also for the processes that are killed

from distributed.save_session import SaveSession

#: Faults in a round, and how often each kind is chosen. Ray's processes end with the learner, and a cluster does not.
N_FAULTS = 25
KINDS = {"pause": 6, "stop": 3, "shard": 6, "writer": 4}
ROUNDS: tuple[tuple[list[str], str], ...] = (
    (["--shards", "2"], "learner"),
    (["--shards", "3", "--storage"], "learner"),
    (["--shards", "4", "--size", "3000"], "learner"),
    (["--shards", "2", "--storage", "--size", "3000"], "learner"),
    (["--shards", "2", "--nodes", "2"], "node"),
    (["--shards", "2", "--nodes", "2", "--storage"], "node"),
)


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24, help="number of rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what happens, and when (default: %(default)s)")
    arguments = parser.parse_args()
    table = Table("round", "options", "saves", "failed", "compared", "faults", "acknowledged", "lost", "s")
    faults: Counter[str] = Counter()
    n_saves = 0
    for number in range(arguments.rounds):
        begin = time.perf_counter()
        options, kind = ROUNDS[number % len(ROUNDS)]
        kinds = {**KINDS, kind: 2}
        chosen = random.Random(arguments.seed + number).choices([*kinds], [*kinds.values()], k=N_FAULTS)
        with tempfile.TemporaryDirectory(prefix="save-soak-") as folder:
            session = SaveSession(Path(folder), arguments.seed + number, *options)
            try:
                for each in chosen:
                    session.cause(each)
                result = session.stop()
            finally:
                session.close()
        faults += session.faults
        n_saves += session.n_saves
        row = (
            str(number), " ".join(options), f"{session.n_saves:,}", str(session.n_failed), f"{session.n_checked:,}",
            str(session.faults.total()), f"{result.n_acknowledged:,}", f"{result.n_lost:,}",
            f"{time.perf_counter() - begin:.0f}",
        )  # fmt: skip
        table.add_row(*row)
        print(*row, dict(session.faults), result, file=sys.stderr, flush=True)
    Console().print(table, f"{n_saves} saves", dict(faults))


if __name__ == "__main__":
    main()

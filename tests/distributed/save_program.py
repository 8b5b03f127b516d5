"""A learner that saves a distributed buffer all the time: ``python -m distributed.save_program FOLDER``.

Several processes add transitions meanwhile. Each save that returns is compared with what was acknowledged before it
began; after each save that raises, the one before must still be there. It prints a line of JSON, a
:class:`SaveReport`, after each save, and continues from ``FOLDER`` when it is started again after a kill. When
``FOLDER/stop`` exists, it compares the counts of the buffer, prints :class:`SaveResult` and ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from fork_server import fork_executables
from gymnasium import spaces
from numpy.typing import NDArray

from distributed.fault_program import WORKER, Nodes
from distributed.ledger import Record, new_record, read_ledger
from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.distributed import DistributedReplayBuffer
from sb3_compressed.distributed.checkpoint_manifest import Manifest, read_manifest
from sb3_compressed.distributed.ray_session import ACTOR_FAILURES, connect
from sb3_compressed.distributed.writer import ReplayWriter
from sb3_compressed.errors import CheckpointNotFound, ShardUnavailable

#: The number of a transition is its action: the number of its source, and that of the step.
STEP_BITS = 32
SPACE = spaces.Box(-np.inf, np.inf, (4,), np.float64)
ACTIONS = spaces.Discrete(1 << 62)
FACTORS = np.array([1, 7_919, 104_729, 1_299_709], np.uint64)
#: Rows that a writer adds in a call, and the learner before each save.
N_ROWS = 40
SEGMENT_LENGTH = 10
#: Rows whose acknowledgement a writer may not have received yet.
N_IN_FLIGHT = 3 * SEGMENT_LENGTH
#: Seconds to wait for the other writers.
DEADLINE = 60.0
#: The number of the learner's writer; others follow.
LEARNER = 0
#: Sources of one run of the program, and of one writer.
N_RUN_SOURCES, N_WRITER_SOURCES = 1 << 20, 1 << 14


def observations_of(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the observations before transitions, ``(n, 4)``."""
    return (numbers.astype(np.uint64)[:, np.newaxis] * FACTORS >> np.uint64(11)).astype(np.float64)


class SaveReport(NamedTuple):
    """What the program prints.

    :param n_saves: how many saves have returned
    :param n_failed: how many have raised
    :param n_checked: number of transitions in these saves, all of which were compared
    :param n_restarts: number of restarts of shards
    :param shards: their process ids
    :param writers: those of the other writers
    :param raylets: those of Ray on the nodes that may be killed
    """

    n_saves: int
    n_failed: int
    n_checked: int
    n_restarts: int
    shards: list[int]
    writers: list[int]
    raylets: list[int]


class SaveResult(NamedTuple):
    """What the program prints at its end.

    :param n_acknowledged: number of transitions that were acknowledged since it began
    :param n_inserted: how many were inserted, as the learner has counted
    :param n_lost: how many of these and the loaded ones shards have lost, as the learner has counted
    :param n_transitions: how many the last save contains
    :param n_loaded: how many there were when it began
    """

    n_acknowledged: int
    n_inserted: int
    n_lost: int
    n_transitions: int
    n_loaded: int


class Source:
    """Numbers the transitions of a writer, and records which were acknowledged.

    :param writer: adds them
    :param ledger: the folder of records
    :param number: the number of the source
    """

    def __init__(self, writer: Any, ledger: Path, number: int) -> None:
        self.writer = writer
        self.n_added = 0
        self.number = number
        self._record: Record = new_record(ledger, number)

    def add(self) -> None:
        """Add one transition."""
        number = np.array([self.number << STEP_BITS | self.n_added])
        reward = (number % 4096).astype(np.float32)
        is_done = np.array([False])
        self.writer.add(observations_of(number), observations_of(number + 1), number, reward, is_done, [{}])
        self.n_added += 1

    def acknowledge(self, n_steps: int) -> None:
        """Record that so many of its steps were acknowledged."""
        self._record.acknowledge(n_steps)


class BusyWriter:
    """A process that adds transitions.

    :param writer: adds them
    :param ledger: the folder of records
    :param number: the number of the source
    """

    def __init__(self, writer: ReplayWriter, ledger: Path, number: int) -> None:
        self._writer, self._source = writer, Source(writer, ledger, number)

    def pid(self) -> int:
        """Return the id of the process."""
        return os.getpid()

    def run(self) -> bool:
        """Add some transitions; return whether all were stored or will be sent again."""
        for _ in range(N_ROWS):
            self._source.add()
            if self._writer.n_lost:  # a shard was restarted, and has resized the ring
                return False
            self._source.acknowledge(self._writer.n_acknowledged)
        return True


class Part(NamedTuple):
    """Consecutive steps of a source in a ring."""

    source: int
    first: int
    last: int


def parts_of(path: Path) -> list[Part]:
    """Compare all transitions of a ring with what was added, and return them, the oldest first."""
    ring: Any = CompressedReplayBuffer.from_checkpoint(path, device="cpu", num_threads=1)
    rows = (np.arange(ring.size()) + (ring.pos if ring.full else 0)) % ring.buffer_size
    numbers = np.asarray(ring.actions)[rows, 0, 0]
    np.testing.assert_array_equal(np.asarray(ring.observations[rows])[:, 0], observations_of(numbers), str(path))
    np.testing.assert_array_equal(np.asarray(ring.next_observations[rows])[:, 0], observations_of(numbers + 1))
    np.testing.assert_array_equal(np.asarray(ring.rewards)[rows, 0], (numbers % 4096).astype(np.float32))
    begins = np.unique([0, *(np.flatnonzero(np.diff(numbers) != 1) + 1), len(numbers)]).tolist()
    dones = np.asarray(ring.dones)[rows, 0]
    parts = []
    for begin, end in itertools.pairwise(begins):
        first, last = int(numbers[begin]), int(numbers[end - 1]) + 1
        assert end == len(numbers) or dones[end - 1], f"an episode continues with another source in {path}"
        parts.append(Part(first >> STEP_BITS, first & (1 << STEP_BITS) - 1, last & (1 << STEP_BITS) - 1))
    return parts


class SaveCheck:
    """Compares saves with what was acknowledged before they began.

    :param folder: that of the saves
    :param is_overwritten: whether the buffer is so small that transitions are overwritten
    """

    def __init__(self, folder: Path, *, is_overwritten: bool) -> None:
        self._folder, self._is_overwritten = folder, is_overwritten
        self._manifest: Manifest | None = None
        self._parts: dict[str, list[Part]] = {}
        #: How many steps of sources may be missing, since their shard has lost them.
        self._excused: dict[int, int] = {}
        self.n_transitions = 0

    def record(self) -> None:
        """Compare the contents of the save, which is the one to be there after saves that fail."""
        self._manifest = manifest = read_manifest(self._folder)
        self._parts = {name: parts_of(path) for name, path in manifest.rings_in(self._folder).items()}
        sizes = {name: sum(part.last - part.first for part in parts) for name, parts in self._parts.items()}
        assert sizes == {name: ring.n_transitions for name, ring in (manifest.rings or {}).items()}
        self.n_transitions = sum(sizes.values())

    def check(
        self,
        acknowledged: Mapping[int, int],
        names: Mapping[int, str],
        lost: Set[str] = frozenset(),
        gaps: Set[int] = frozenset(),
        wait_for_gaps: Callable[[], Set[int]] = frozenset,
    ) -> None:
        """Check a save that has returned.

        :param acknowledged: how many steps of each source were acknowledged before the save began
        :param names: the writer of each source
        :param lost: the rings in memory whose process has ended since the last save that has returned
        :param gaps: sources of which steps in between were dropped
        :param wait_for_gaps: returns them again, when the processes that may have dropped more have reported it
        """
        before = self._parts
        self.record()
        repeated = {
            part.source for parts in self._parts.values() for part, following in itertools.pairwise(parts)
            if part.source == following.source
        }  # fmt: skip
        if repeated - gaps:
            gaps = wait_for_gaps()
        self._parts = {name: _without_gaps(parts, gaps) for name, parts in self._parts.items()}
        for name, parts in self._parts.items():
            context = f"{name} contains {parts}, after {before.get(name)}, {acknowledged}"
            sources = [part.source for part in parts]
            assert sources == sorted({*sources}), context
            assert all(part.first == 0 for part in parts[1:] if part.source not in gaps), context
            for part in parts[:-1]:
                assert part.source in gaps or part.last >= acknowledged.get(part.source, 0), context
            if name not in lost and before.get(name):
                first, first_before = parts[0], before[name][0]
                assert first[:2] >= first_before[:2] if self._is_overwritten else first[:2] == first_before[:2], context
        for source, n_steps in acknowledged.items():
            name = names[source]
            if name in lost:
                self._excused[source] = n_steps + N_IN_FLIGHT
            if n_steps <= self._excused.get(source, 0) or source in gaps:
                continue
            parts = self._parts.get(name, [])
            assert parts, f"{name} is missing, {n_steps} of {source} were acknowledged"
            ends = {part.source: part.last for part in parts}
            is_older = source < parts[0].source  # it was overwritten, or lost before
            assert is_older or ends.get(source, 0) >= n_steps, f"{n_steps} of {source} were acknowledged: {parts}"

    def require_unchanged(self) -> None:
        """Check that the last save is there, and can be read."""
        try:
            manifest = read_manifest(self._folder)
        except CheckpointNotFound:
            assert self._manifest is None
            return
        assert manifest == self._manifest
        self.record()


def _without_gaps(parts: list[Part], gaps: Set[int]) -> list[Part]:
    """Return the parts of a ring, with one part for each source that has gaps."""
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1].source == part.source and part.source in gaps:
            merged[-1] = merged[-1]._replace(last=part.last)
        else:
            merged.append(part)
    return merged


class Writers:
    """The processes that add transitions; those that end are replaced."""

    def __init__(self, buffer: DistributedReplayBuffer, n_writers: int, ledger: Path, run: int) -> None:
        self._buffer, self._ledger, self._run = buffer, ledger, run
        #: The writer of each source.
        self.names: dict[int, str] = {}
        #: The sources of which steps were dropped.
        self.gaps: set[int] = set()
        self._n_learner_sources = self._n_dropped = 0
        self.learner = self._new_learner()
        self._n_sources, self._sources = [0] * n_writers, [0] * n_writers
        self._writers = [buffer.writer(f"writer-{index}", 1) for index in range(n_writers)]
        self._actors: list[Any] = [self._new_actor(index) for index in range(n_writers)]
        self._calls = [actor.run.remote() for actor in self._actors]
        self._pid_calls = [actor.pid.remote() for actor in self._actors]
        self.pids = [0] * n_writers

    def _new_source(self, writer: int, number: int = 0) -> int:
        return self._run * N_RUN_SOURCES + writer * N_WRITER_SOURCES + number

    def _new_actor(self, index: int) -> Any:
        self._sources[index] = source = self._new_source(index + 1, self._n_sources[index])
        self._n_sources[index] += 1
        self.names[source] = f"writer-{index}"
        remote: Any = ray.remote(BusyWriter)
        return remote.options(num_cpus=0).remote(self._writers[index], self._ledger, source)

    def _new_learner(self) -> Source:
        source = self._new_source(LEARNER, self._n_learner_sources)
        self._n_learner_sources += 1
        self.names[source] = "learner-0"
        return Source(self._buffer, self._ledger, source)

    def update(self) -> None:
        """Let all writers continue, and add some transitions."""
        for _ in range(N_ROWS):
            with suppress(ShardUnavailable):
                self.learner.add()
        n_dropped = self._buffer.statistics().n_lost - sum(view.n_lost for view in self._buffer.shards)
        if n_dropped > self._n_dropped:
            self._n_dropped = n_dropped
            self.gaps.add(self.learner.number)
            self.learner = self._new_learner()
        for index, call in enumerate(self._calls):
            if self.pids[index] == 0 and ray.wait([self._pid_calls[index]], timeout=0)[0]:
                with suppress(*ACTOR_FAILURES):
                    self.pids[index] = ray.get(self._pid_calls[index])
            if not ray.wait([call], timeout=0)[0]:
                continue
            try:
                is_complete = ray.get(call)
            except ACTOR_FAILURES:
                is_complete = False
            else:
                if not is_complete:
                    self.gaps.add(self._sources[index])
            if not is_complete:
                self._actors[index], self.pids[index] = self._new_actor(index), 0
                self._pid_calls[index] = self._actors[index].pid.remote()
            self._calls[index] = self._actors[index].run.remote()

    def wait_for_gaps(self) -> set[int]:
        """Wait until the calls of all writers have returned, and return the sources of which steps were dropped."""
        ended, _ = ray.wait(self._calls, num_returns=len(self._calls), timeout=DEADLINE)
        for source, call in zip(self._sources, self._calls, strict=True):
            with suppress(*ACTOR_FAILURES):
                if call in ended and not ray.get(call):
                    self.gaps.add(source)
        return self.gaps

    def stop(self) -> None:
        """Wait until all have ended."""
        for call in self._calls:
            with suppress(*ACTOR_FAILURES):
                ray.get(call)
        for actor in self._actors:
            ray.kill(actor)


def main() -> None:
    """Save until stopped or killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--storage", action="store_true", help="store transitions in FOLDER/shards")
    parser.add_argument("--shards", type=int, default=2, help="number of shards")
    parser.add_argument("--writers", type=int, default=3, help="number of processes that add transitions")
    parser.add_argument("--nodes", type=int, default=0, help="nodes of a cluster; 0 for Ray on this machine")
    parser.add_argument("--size", type=int, default=10**6, help="buffer_size; transitions are overwritten below this")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds to wait for a shard")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    fork_executables()
    nodes = Nodes(arguments.nodes) if arguments.nodes else None
    connect()
    run = len([*folder.glob("run-*")]) + 1
    ledger, saves = folder / f"run-{run}", folder / "saves"
    ledger.mkdir(parents=True)
    is_resumed = arguments.storage and run % 2 == 0
    storage: dict[str, Any] = {}
    if arguments.storage:
        storage = {"storage": folder / "shards", "storage_mode": "resume" if is_resumed else "overwrite"}
    buffer = DistributedReplayBuffer(
        arguments.size, SPACE, ACTIONS, "cpu", n_shards=arguments.shards, timeout=arguments.timeout,
        segment_length=SEGMENT_LENGTH, ray_options={} if nodes is None else WORKER, **storage,
    )  # fmt: skip
    check = SaveCheck(saves, is_overwritten=arguments.size < 10**6)
    is_first = not (saves / "distributed.json").exists()
    if not is_first:
        check.record()
        if not is_resumed:
            buffer.load_checkpoint(saves)
    buffer.save_checkpoint(saves, overwrite=is_resumed)
    if not is_first and not is_resumed:  # the whole save was loaded
        expected = check.n_transitions
        check.record()
        assert check.n_transitions == expected, f"{check.n_transitions} transitions were loaded instead of {expected}"
    elif is_resumed:  # nothing acknowledged was lost
        _check_resumed(check, folder / f"run-{run - 1}")
    else:
        check.record()
    n_loaded = check.n_transitions
    writers = Writers(buffer, arguments.writers, ledger, run)
    incarnations: dict[str, str] = {}
    n_saves = n_failed = n_checked = 0
    while True:
        is_last = (folder / "stop").exists()
        if is_last:
            writers.stop()
        else:
            writers.update()
        raylets = [] if nodes is None else nodes.update()
        acknowledged = {number: life.n_acknowledged for number, life in read_ledger(ledger).items()}
        try:
            buffer.save_checkpoint(saves)
        except ShardUnavailable as error:
            print(f"failed: {error}", file=sys.stderr, flush=True)
            n_failed += 1
            check.require_unchanged()
            continue
        n_saves += 1
        acknowledged[writers.learner.number] = writers.learner.n_added
        manifest = read_manifest(saves)
        statuses = {name: buffer.shards[shard].status for name, (_, shard) in manifest.writers.items()}
        new = {name: status.incarnation for name, status in statuses.items() if status is not None}
        lost = {name for name in new if new[name] != incarnations.get(name, new[name])}
        incarnations = new
        check.check(
            acknowledged, writers.names, set() if arguments.storage else lost, writers.gaps, writers.wait_for_gaps
        )
        n_checked += check.n_transitions
        pids = [_pid(view) for view in buffer.shards]
        report = SaveReport(
            n_saves, n_failed, n_checked, buffer.statistics().n_restarts, pids, writers.pids, raylets
        )  # fmt: skip
        print(json.dumps(report._asdict()), flush=True)
        if is_last:
            break
    lives = read_ledger(ledger)
    result = SaveResult(
        sum(life.n_acknowledged for life in lives.values()) + writers.learner.n_added, buffer.statistics().n_inserted,
        sum(view.n_lost for view in buffer.shards), check.n_transitions, n_loaded,
    )  # fmt: skip
    buffer.close()
    if nodes is not None:
        nodes.shutdown()
    print(json.dumps(result._asdict()), flush=True)


def _check_resumed(check: SaveCheck, ledger: Path) -> None:
    """Check the first save of shards that were resumed from their folders: nothing acknowledged may be missing."""
    acknowledged = {number: life.n_acknowledged for number, life in read_ledger(ledger).items()}
    names = {
        number: f"writer-{writer - 1}" if (writer := number % N_RUN_SOURCES // N_WRITER_SOURCES) else "learner-0"
        for number in acknowledged
    }
    check.check(acknowledged, names)


def _pid(view: Any) -> int:
    try:
        return int(ray.get(view.actor.pid.remote(), timeout=1.0))
    except (TimeoutError, *ACTOR_FAILURES):
        return 0


if __name__ == "__main__":
    main()

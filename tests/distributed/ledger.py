"""What shards have acknowledged, in files that survive the processes that were killed, and its comparison with rings.

Each environment of each process has a record: a file to which the number of its acknowledged steps is appended.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

COUNT = struct.Struct("<Q")


class Record:
    """The record of one environment, which its process writes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def acknowledge(self, n_steps: int) -> None:
        """Record that the first steps were acknowledged; one write, so that a kill leaves all of it or nothing."""
        os.write(self._file, COUNT.pack(n_steps))


def new_record(folder: Path, source: int) -> Record:
    """Return a new record.

    :param source: the number of the environment
    """
    folder.mkdir(parents=True, exist_ok=True)
    return Record(folder / f"{time.time_ns():020d}-{source:016x}")


class Life(NamedTuple):
    """An environment of a process: what it has recorded.

    :param began_at: when it began, in nanoseconds
    :param n_acknowledged: how many of its steps were acknowledged
    """

    began_at: int
    n_acknowledged: int


def read_ledger(folder: Path) -> dict[int, Life]:
    """Return the lives of all environments by their sources."""
    lives: dict[int, Life] = {}
    for path in folder.iterdir():
        began_at, _, source = path.name.partition("-")
        content = path.read_bytes()
        (n,) = COUNT.unpack(content[-COUNT.size :]) if content else (0,)
        lives[int(source, 16)] = Life(int(began_at), n)
    return lives


class Run(NamedTuple):
    """Consecutive steps of an environment in a ring.

    :param first: the number of the first step
    :param last: that after the last one
    """

    source: int
    first: int
    last: int


class Audit(NamedTuple):
    """What a comparison has counted.

    :param n_present: number of transitions in the rings
    :param n_acknowledged: number of transitions that were acknowledged
    :param n_lost: number of acknowledged transitions that shards in memory have lost
    """

    n_present: int
    n_acknowledged: int
    n_lost: int


def runs_of(ring: Any, env: int) -> list[Run]:
    """Check all transitions of one environment in a ring, and return them as runs, the oldest first.

    :param ring: the replay buffer
    :param env: the number of the environment
    :raises AssertionError: if one differs from what the environment has emitted, or a gap is not marked as truncation
    """
    from distributed.checkable_env import check_transition, episode_end, serial

    rows = (np.arange(ring.size()) + (ring.pos if ring.full else 0)) % ring.buffer_size
    runs: list[Run] = []
    is_closed = True
    for row in rows.tolist():
        done, timeout = bool(ring.dones[row, env]), bool(ring.timeouts[row, env])
        identity = check_transition(
            np.asarray(ring.observations[row])[env], int(ring.actions[row, env, 0]), float(ring.rewards[row, env]),
            np.asarray(ring.next_observations[row])[env], done and not timeout,
        )  # fmt: skip
        number = serial(identity.source, identity.episode, identity.step)
        if runs and (runs[-1].source, runs[-1].last) == (identity.source, number):
            runs[-1] = runs[-1]._replace(last=number + 1)
            assert not (is_closed and identity.step), f"an episode was truncated before {identity}, which continues it"
        else:
            assert is_closed, f"the episode before {identity} is not marked as truncated"
            assert not any(run.source == identity.source and run.last > number for run in runs), f"{identity} is twice"
            runs.append(Run(identity.source, number, number + 1))
        is_end = identity.step + 1 == episode_end(identity.source, identity.episode).length
        assert done >= is_end, identity
        assert done or not timeout, identity
        is_closed = done
    return runs


def audit(rings: Iterable[Any], lives: Mapping[int, Life]) -> Audit:
    """Compare rings with a ledger: everything acknowledged must be there, unless it was overwritten.

    :param rings: all rings of a distributed buffer, each a replay buffer
    :param lives: those of all environments that have written to them, by their sources
    :raises AssertionError: if a transition is there twice, was not emitted so, or is missing
    """
    n_present = 0
    present: set[int] = set()
    newest_overwritten = 0  # lives that began before were overwritten
    for ring in rings:
        for env in range(ring.n_envs):
            runs = runs_of(ring, env)
            n_present += sum(run.last - run.first for run in runs)
            began = [lives[run.source].began_at for run in runs]
            assert began == sorted(began), f"the ring is out of order: {runs}"
            for number, run in enumerate(runs):
                assert run.source not in present, f"steps of {run.source:x} are there twice: {runs}"
                present.add(run.source)
                is_cut = number == 0 and ring.full
                assert run.first == 0 or is_cut, f"steps of {run.source:x} are missing: {runs}"
                n_missing = max(lives[run.source].n_acknowledged - run.last, 0)
                assert not n_missing, f"{n_missing} acknowledged steps are missing after {runs}"
            if ring.full and runs:
                newest_overwritten = max(newest_overwritten, began[0])
    for source, life in lives.items():
        is_missing = source not in present and life.n_acknowledged and life.began_at >= newest_overwritten
        assert not is_missing, f"all {life.n_acknowledged} acknowledged steps of {source:x} are missing"
    return Audit(n_present, sum(life.n_acknowledged for life in lives.values()), 0)

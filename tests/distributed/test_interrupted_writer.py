"""Ctrl-C at each bytecode of a writer: each row is stored once, or counted as lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from drawn_examples import FACTOR
from interrupts import bytecodes, evenly, interrupt

from distributed.dying_shard import DyingShard, forget_at
from distributed.emitted import transition
from distributed.segments import spec_of
from distributed.stopped import until
from sb3_compressed.distributed import writer as writer_module
from sb3_compressed.distributed.ray_session import new_actor
from sb3_compressed.distributed.writer import ReplayWriter
from sb3_compressed.errors import ShardTimeout

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]
#: At how many bytecodes each sequence of calls is interrupted; at all of them in ``make bounds``.
N_INTERRUPTS = 8 if FACTOR is None else 1 << 20
#: Rows of a segment, and those of each sequence of calls.
LENGTH, N_ROWS = 3, 8


@pytest.fixture(scope="module")
def shard(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a shard with a folder."""
    path = tmp_path_factory.mktemp("shard")
    shard = new_actor(DyingShard, {}, spec_of("vector"), 100, path, "run", "create", 0)
    yield shard
    ray.kill(shard)


class Calls:
    """Adds rows with a writer, whose numbers follow each other, and verifies what the shard has stored.

    :param name: of the ring
    :param timeout: of the writer
    """

    def __init__(self, shard: Any, name: str, timeout: float | None) -> None:
        self._shard, self._name, self._timeout = shard, name, timeout
        self._next = 0
        self.open()

    def open(self) -> None:
        """Use a new writer of the same name."""
        self.writer = ReplayWriter(self._shard, spec_of("vector"), self._name, 1, LENGTH, timeout=self._timeout)
        self.n_counted = self.n_lost = 0

    def run(self) -> None:
        """Add rows, and flush them."""
        self._first = self._next
        for _ in range(N_ROWS):
            self._next += 1
            transition("vector", self._next - 1).add_to(self.writer)
        self.writer.flush()

    def is_open(self) -> bool:
        """Open the ring; return whether the shard did so in time."""
        with contextlib.suppress(ShardTimeout):
            self.writer.open()
            return True
        return False

    def verify(self, *, is_interrupted: bool) -> None:
        """Add further rows, and verify that the shard has stored each row once, except those that were lost."""
        writer, is_added = self.writer, self._n_new() == self._next - self._first
        if is_interrupted and not is_added:
            self._next -= 1  # the row whose add() was interrupted
        assert self._n_new() == self._next - self._first
        for _ in range(2 * LENGTH - 1):
            transition("vector", self._next).add_to(writer)
            self._next += 1
        while writer.n_staged:
            writer.flush()
        expected = [*range(self._first, self._next)]
        assert self._n_new() == len(expected)
        content = ray.get(self._shard.content.remote(self._name))
        stored = content[len(content) - (writer.n_acknowledged + writer.n_lost - self.n_counted) + self.n_new_lost :]
        assert content == sorted({*content}), "nothing twice"
        assert {*stored} <= {*expected}
        if self._timeout is None:
            assert stored == expected
        self.n_counted, self.n_lost = writer.n_acknowledged + writer.n_lost, writer.n_lost

    @property
    def n_new_lost(self) -> int:
        """Number of rows that were lost since the last verification."""
        return self.writer.n_lost - self.n_lost

    def _n_new(self) -> int:
        writer = self.writer
        return writer.n_acknowledged + writer.n_lost + writer.n_staged - self.n_counted


#: At which points the shard forgets its writers.
CRASHES = {
    "nothing": (), "new writers": (), "a busy shard": (), "a crash before a segment": ("insert",),
    "a crash after a segment": ("inserted",), "two crashes": ("inserted", "insert"),
}  # fmt: skip


@pytest.mark.parametrize("event", CRASHES)
def test_ctrl_c_loses_nothing_silently(shard: Any, event: str) -> None:
    calls = Calls(shard, event, 0.02 if event == "a busy shard" else None)
    until(calls.is_open)
    calls.run()
    calls.verify(is_interrupted=False)

    def prepare() -> None:
        if event == "new writers":
            calls.open()
        elif event == "a busy shard":
            shard.work.remote(0.05)
        for point in CRASHES[event]:
            forget_at(point)

    prepare()
    every = bytecodes(calls.run)
    calls.verify(is_interrupted=False)
    found = [each for each in every if each[0].co_filename == writer_module.__file__]
    assert len(found) > 200
    for at in evenly(found, N_INTERRUPTS):
        prepare()
        error = interrupt(calls.run, at, must_reach=event != "a busy shard")  # whose replies may be in time
        calls.verify(is_interrupted=error is not None)

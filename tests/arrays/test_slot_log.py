"""Writing slots to a log: what Ctrl-C interrupts, even twice, can be written again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from drawn_examples import FACTOR
from interrupts import bytecodes, evenly, interrupt, interrupt_twice
from numpy.typing import NDArray
from slot_objects import Slot, batch_of, load_slots, write_slots

from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_log import SlotLog
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.storage.log import Log

CODECS = [Delta(1), Delta(2)]


def stacks(first: int, n: int) -> list[Slot]:
    """Return slots of consecutive stacks of 4 frames, those after the fifth one by another codec."""
    payloads = [np.random.default_rng(number).bytes(200) for number in range(first + n + 3)]
    return [(CODECS[index > 5], *payloads[index : index + 4]) for index in range(first, first + n)]


SLOTS = stacks(3, 6)


class Stores(NamedTuple):
    """A store with some slots, and another one and a batch with those that are written to it."""

    target: SlotLog
    source: SlotLog
    before: NDArray[np.int64]
    written: NDArray[np.int64]
    batch: PayloadBatch

    def copy(self) -> NDArray[np.int64]:
        return self.target.copier_from(self.source).copy(self.written)

    def append_items(self) -> NDArray[np.int64]:
        return self.target.append_items(self.batch, np.arange(len(SLOTS)))

    def assert_can_be_written(self, write: Write) -> None:
        """Assert that slots can be written, and that what was there before is unchanged."""
        again, other = write(self), write_slots(self.target, stacks(100, 3))
        assert [*load_slots(self.target, np.concatenate([self.before, again, other]))] == [
            *stacks(0, 8),
            *SLOTS,
            *stacks(100, 3),
        ]


Write = Callable[[Stores], NDArray[np.int64]]


@pytest.fixture(params=["memory", "folder"])
def new_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Stores]:
    """Return what creates stores, in memory, or a folder to which slots are copied from memory."""
    logs: list[Log] = []

    def new() -> Stores:
        target: SlotLog = MemoryLog()
        if request.param == "folder":
            for log in logs:
                log.close()
            logs[:] = [Log.create(tmp_path / "log", overwrite=True)]
            target = logs[0]
        source = MemoryLog()
        tables = [store.new_table((n,)) for store, n in ((target, 8), (source, len(SLOTS)))]
        tables[0][:], tables[1][:] = write_slots(target, stacks(0, 8)), write_slots(source, SLOTS)
        return Stores(target, source, tables[0], tables[1], batch_of(SLOTS, 4))

    return new


WRITES = pytest.mark.parametrize("write", [Stores.copy, Stores.append_items])


@WRITES
def test_an_interrupted_write_can_be_repeated(write: Write, new_stores: Callable[[], Stores]) -> None:
    stores = new_stores()
    found = bytecodes(lambda: write(stores))
    for at in evenly(found, 60 if FACTOR is None else len(found)):
        stores = new_stores()
        interrupt(lambda: write(stores), at)  # noqa: B023  # it is called at once
        stores.assert_can_be_written(write)


@WRITES
def test_a_write_that_is_interrupted_twice_can_be_repeated(write: Write, new_stores: Callable[[], Stores]) -> None:
    stores = new_stores()
    found = bytecodes(lambda: write(stores))
    for at in evenly(found, 60 if FACTOR is None else len(found)):
        n_calls, is_reached = 0, True
        while is_reached:
            n_calls += 1
            stores = new_stores()
            is_reached = interrupt_twice(lambda: write(stores), at, n_calls)  # noqa: B023
            stores.assert_can_be_written(write)

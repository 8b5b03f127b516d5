"""Writing slots to a log, also within the handler of a signal: what Ctrl-C interrupts, even twice, can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from drawn_examples import FACTOR
from interrupts import bytecodes, call_within, evenly, interrupt, interrupt_twice
from numpy.typing import NDArray
from slot_objects import Slot, batch_of, load_slots, payloads_of, write_slots

from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import explicit_layout
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_log import SlotLog
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import StorageError
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

    def append(self) -> NDArray[np.int64]:
        """Append three rows by each codec, of which the second and the third one continue the one before."""
        references = []
        for codec, rows in zip(CODECS, (SLOTS[:3], SLOTS[3:]), strict=True):
            encoder = FrameEncoder((4, 200), np.dtype(np.uint8), codec, explicit_layout((4, 200), 4))
            payloads = Payloads.of(payloads_of(rows[0]) + [payloads_of(row)[-1] for row in rows[1:]])
            references.append(self.target.append(None, np.array([[4], [1], [1]]), payloads, encoder))
        return np.concatenate(references).reshape(-1)

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


WRITES = pytest.mark.parametrize("write", [Stores.copy, Stores.append_items, Stores.append])


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


@pytest.mark.parametrize("nbytes", [10, 3_000_000])
@WRITES
def test_a_handler_of_a_signal_may_write_within_a_write(
    write: Write, nbytes: int, new_stores: Callable[[], Stores]
) -> None:
    """Both are right, also if the segment grows meanwhile; in a folder, the first one may be refused."""
    stores = new_stores()
    found = bytecodes(lambda: write(stores))
    # Python calls no handler within the lines that change where a segment ends.
    in_arrays = [at for at in found if Path(at[0].co_filename).parent.name == "arrays"]
    # Python calls no handler within the lines that change where a segment ends.
    found = [at for at in in_arrays if at[0].co_name not in {"claim", "append_claimed"}]
    noise = np.random.default_rng(0).bytes(nbytes)
    for at in evenly(found, 60 if FACTOR is None else len(found)):
        stores = new_stores()
        written, others = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
        kept = stores.target.keep_slots()
        try:
            call_within(
                lambda: written.append(write(stores)), at,  # noqa: B023
                lambda: others.append(write_slots(stores.target, [noise])),  # noqa: B023
            )  # fmt: skip
        except StorageError:
            assert isinstance(stores.target, Log)
        else:
            assert [*load_slots(stores.target, written[0])] == SLOTS
        assert [*load_slots(stores.target, others[0])] == [noise]
        stores.assert_can_be_written(write)
        del kept

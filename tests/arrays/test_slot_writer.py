"""Writing slots to a log: what Ctrl-C interrupts, even twice, can be written again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from drawn_examples import FACTOR
from interrupts import bytecodes, evenly, interrupt, interrupt_twice

from sb3_compressed.arrays.memory_slot_store import MemorySlotStore
from sb3_compressed.arrays.slot_store import SlotStore
from sb3_compressed.arrays.slots import Slot
from sb3_compressed.codecs import get_codec
from sb3_compressed.storage.folder_slot_store import FolderSlotStore
from sb3_compressed.storage.log import Log

CODEC = get_codec("zstd3")


def stacks(first: int, n: int) -> list[Slot]:
    """Return the slots of consecutive stacks of 4 frames of 84 by 84 pixels."""
    frames = np.random.default_rng(0).integers(0, 2, (first + n + 3, 84, 84), np.uint8)
    payloads = CODEC.encode(frames)
    return [tuple(payloads[index : index + 4]) for index in range(first, first + n)]


@pytest.fixture(params=["memory", "folder"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SlotStore]:
    logs: list[Log] = []

    def new() -> SlotStore:
        if request.param == "memory":
            return MemorySlotStore(CODEC)
        for log in logs:
            log.close()
        logs[:] = [Log.create(tmp_path / "log", overwrite=True)]
        return FolderSlotStore(logs[0])

    return new


def with_some_slots(new_store: Callable[[], SlotStore]) -> SlotStore:
    store = new_store()
    store.write(stacks(0, 8))
    return store


def assert_can_be_written(store: SlotStore, slots: list[Slot]) -> None:
    other = stacks(100, 3)
    written = [*slots, *other, *slots]
    references = [*store.write(slots), *store.write(other), *store.write(slots)]
    assert [*store.load(np.array(references))] == written


def test_an_interrupted_write_can_be_repeated(new_store: Callable[[], SlotStore]) -> None:
    slots = stacks(7, 6)  # of some frames that were written before
    store = with_some_slots(new_store)
    found = bytecodes(lambda: store.write(slots))
    for at in evenly(found, 60 if FACTOR is None else len(found)):
        store = with_some_slots(new_store)
        interrupt(lambda: store.write(slots), at)  # noqa: B023  # it is called at once
        assert_can_be_written(store, slots)


def test_a_write_that_is_interrupted_twice_can_be_repeated(new_store: Callable[[], SlotStore]) -> None:
    slots = stacks(7, 6)
    store = with_some_slots(new_store)
    found = bytecodes(lambda: store.write(slots))
    for at in evenly(found, 60 if FACTOR is None else len(found)):
        n_calls, is_reached = 0, True
        while is_reached:
            n_calls += 1
            store = with_some_slots(new_store)
            is_reached = interrupt_twice(lambda: store.write(slots), at, n_calls)  # noqa: B023
            assert_can_be_written(store, slots)


@pytest.mark.parametrize("n_frames", [4, 20, 64])
def test_frames_of_the_stacks_before_are_not_written_again(n_frames: int, new_store: Callable[[], SlotStore]) -> None:
    """Whether one object or two has them, as two that were read by different calls have."""
    payloads = CODEC.encode(np.random.default_rng(0).integers(0, 256, (300, 8, 8), np.uint8))
    store = new_store()
    store.write([tuple(payloads[:n_frames])])
    begin = store.log.last.next_offset
    n_slots = 300 - n_frames
    for index in range(1, n_slots + 1):
        store.write([tuple(bytes(bytearray(payload)) for payload in payloads[index : index + n_frames])])
    nbytes = store.log.last.next_offset - begin
    headers = n_slots * (40 + 8 + 8 + 4 * n_frames)  # at most: of a record, a payload and a slot
    assert nbytes <= sum(map(len, payloads[n_frames:])) + headers

"""Arrays are handed over once, to the batch in whose making they were decoded."""

from __future__ import annotations

import threading

import numpy as np

from sb3_compressed.arrays.batch_memory import BatchMemory
from sb3_compressed.arrays.handover import Batch, new_output, note_decoded, recall, remember, take_decoded

BYTE = np.dtype(np.uint8)


def test_an_array_is_taken_once_and_only_where_it_was_decoded() -> None:
    array, other = np.zeros(3), np.zeros(3)
    note_decoded(array)
    assert not take_decoded(array)
    with Batch(BatchMemory()):
        note_decoded(array)
        assert not take_decoded(other)
        elsewhere: list[bool] = []
        thread = threading.Thread(target=lambda: elsewhere.append(take_decoded(array)))
        thread.start()
        thread.join()
        assert elsewhere == [False]
        assert take_decoded(array)
        assert not take_decoded(array)
        note_decoded(array)
    assert not take_decoded(array)


def test_a_batch_made_within_another_leaves_it_alone() -> None:
    array = np.zeros(3)
    with Batch(BatchMemory()):
        note_decoded(array)
        remember(array, "outer")
        with Batch(BatchMemory()):
            assert not take_decoded(array)
            assert recall(array) is None
            remember(array, "inner")
        assert recall(array) == "outer"
        assert take_decoded(array)
    assert recall(array) is None


def test_memory_is_that_of_the_batch() -> None:
    memory = BatchMemory()
    with Batch(memory):
        place = new_output((500, 500), BYTE).ctypes.data
        assert new_output((500, 500), BYTE).ctypes.data == place
    assert new_output((500, 500), BYTE).flags.owndata

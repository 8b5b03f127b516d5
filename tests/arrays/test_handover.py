"""Arrays are handed over once, to the batch in whose making they were decoded."""

from __future__ import annotations

import threading

import numpy as np

from sb3_compressed.arrays.batch_pool import BatchPool
from sb3_compressed.arrays.handover import Batch, claim_owned, mark_owned, new_output, recall, remember

BYTE = np.dtype(np.uint8)


def test_an_array_is_taken_once_and_only_where_it_was_decoded() -> None:
    array, other = np.zeros(3), np.zeros(3)
    mark_owned(array)
    assert not claim_owned(array)
    with Batch(BatchPool()):
        mark_owned(array)
        assert not claim_owned(other)
        elsewhere: list[bool] = []
        thread = threading.Thread(target=lambda: elsewhere.append(claim_owned(array)))
        thread.start()
        thread.join()
        assert elsewhere == [False]
        assert claim_owned(array)
        assert not claim_owned(array)
        mark_owned(array)
    assert not claim_owned(array)


def test_a_batch_made_within_another_leaves_it_alone() -> None:
    array = np.zeros(3)
    with Batch(BatchPool()):
        mark_owned(array)
        remember(array, "outer")
        with Batch(BatchPool()):
            assert not claim_owned(array)
            assert recall(array) is None
            remember(array, "inner")
        assert recall(array) == "outer"
        assert claim_owned(array)
    assert recall(array) is None


def test_memory_is_that_of_the_batch() -> None:
    memory = BatchPool()
    with Batch(memory):
        place = new_output((500, 500), BYTE).ctypes.data
        assert new_output((500, 500), BYTE).ctypes.data == place
    assert new_output((500, 500), BYTE).flags.owndata

"""Memory of batches is used again when nobody refers to it any more, and never before."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch as th
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_memory import BatchMemory

SHAPE = (64, 84, 84)
BYTE = np.dtype(np.uint8)


def test_memory_comes_back_with_the_last_tensor_on_it() -> None:
    memory = BatchMemory()
    tensor = th.as_tensor(memory.empty(SHAPE, BYTE))
    place = tensor.data_ptr()
    part = tensor[3:].numpy()[1]
    del tensor
    gc.collect()
    other = memory.empty(SHAPE, BYTE)
    assert other.ctypes.data != place
    part[:] = 7
    other[:] = 1
    assert (part == 7).all()
    del part, other
    assert memory.empty(SHAPE, BYTE).ctypes.data == place or memory.empty(SHAPE, BYTE).ctypes.data == place


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.bool_])
@pytest.mark.parametrize("shape", [(0,), (3,), (40, 84, 84), (2, 300, 301)])
def test_arrays_are_as_those_of_numpy(shape: tuple[int, ...], dtype: type) -> None:
    array = BatchMemory().empty(shape, np.dtype(dtype))
    usual: NDArray[Any] = np.empty(shape, dtype)
    assert (array.shape, array.dtype, array.strides) == (usual.shape, usual.dtype, usual.strides)
    assert array.flags.writeable
    assert array.flags.c_contiguous
    array[...] = 1
    assert array.sum() == array.size


def kept_nbytes(memory: BatchMemory) -> int:
    return sum(block.nbytes for _, block in memory._blocks.values())


def test_what_two_batches_did_not_use_is_not_kept() -> None:
    memory = BatchMemory()
    for n_arrays in (2, 5, 2, 2, 2):
        memory.begin_batch()
        arrays = [memory.empty(SHAPE, BYTE) for _ in range(n_arrays)]
        del arrays
    assert kept_nbytes(memory) == 2 * np.prod(SHAPE)
    small = memory.empty((2, 300, 300), BYTE)
    assert kept_nbytes(memory) == 2 * np.prod(SHAPE) + small.nbytes, "it does not hold the memory of a large one"


def test_two_batches_take_turns_where_the_one_before_still_has_a_name() -> None:
    memory = BatchMemory()
    places = set()
    batch = None
    for _ in range(10):
        memory.begin_batch()
        batch = [th.from_numpy(memory.empty(SHAPE, BYTE)) for _ in range(2)]
        places |= {tensor.data_ptr() for tensor in batch}
    assert len(places) == 4
    assert batch is not None


def test_copies_and_pickles_have_memory_of_their_own() -> None:
    memory = BatchMemory()
    place = memory.empty(SHAPE, BYTE).ctypes.data
    for other in (pickle.loads(pickle.dumps(memory)), copy.deepcopy(memory)):
        assert other.empty(SHAPE, BYTE).ctypes.data != place


def test_threads_never_get_the_same_memory() -> None:
    memory = BatchMemory()
    wrong: list[int] = []

    def use(number: int) -> None:
        for _ in range(300):
            array = memory.empty((2, 300, 300), BYTE)
            array[...] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

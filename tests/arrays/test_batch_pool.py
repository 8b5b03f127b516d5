"""The memory of batches is reused when nothing refers to it any more, and never before; only its owner may be moved."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch as th
from numpy.typing import NDArray
from programs import environment_with, run, run_python

from sb3_compressed.arrays.batch_pool import ALIGNMENT, REFERENCES_ARE_COUNTED, BatchPool

SHAPE = (64, 84, 84)
BYTE = np.dtype(np.uint8)

needs_counts = pytest.mark.skipif(not REFERENCES_ARE_COUNTED, reason="no memory is reused: the probe failed")


@needs_counts
def test_memory_is_reused_after_the_last_tensor_on_it() -> None:
    memory = BatchPool()
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
def test_arrays_equal_those_of_numpy(shape: tuple[int, ...], dtype: type) -> None:
    array = BatchPool().empty(shape, np.dtype(dtype))
    usual: NDArray[Any] = np.empty(shape, dtype)
    assert (array.shape, array.dtype, array.strides) == (usual.shape, usual.dtype, usual.strides)
    assert array.flags.writeable
    assert array.flags.c_contiguous
    array[...] = 1
    assert array.sum() == array.size


@needs_counts
def test_memory_that_two_batches_did_not_use_is_freed() -> None:
    memory = BatchPool()
    for n_arrays in (2, 5, 2, 2, 2):
        memory.begin_batch()
        arrays = [memory.empty(SHAPE, BYTE) for _ in range(n_arrays)]
        del arrays
    assert memory.nbytes == 2 * (np.prod(SHAPE) + ALIGNMENT)
    small = memory.empty((2, 300, 300), BYTE)
    expected = 2 * (np.prod(SHAPE) + ALIGNMENT) + small.nbytes + ALIGNMENT
    assert memory.nbytes == expected, "small arrays do not take large blocks"


@needs_counts
def test_two_batches_alternate_while_the_previous_one_has_a_name() -> None:
    memory = BatchPool()
    places = set()
    batch = None
    for _ in range(10):
        memory.begin_batch()
        batch = [th.from_numpy(memory.empty(SHAPE, BYTE)) for _ in range(2)]
        places |= {tensor.data_ptr() for tensor in batch}
    assert len(places) == 4
    assert batch is not None


@needs_counts
def test_copies_and_pickles_have_their_own_memory() -> None:
    memory = BatchPool()
    place = memory.empty(SHAPE, BYTE).ctypes.data
    for other in (pickle.loads(pickle.dumps(memory)), copy.deepcopy(memory)):
        assert other.empty(SHAPE, BYTE).ctypes.data != place


def test_threads_never_get_the_same_memory() -> None:
    memory = BatchPool()

    def use(number: int) -> None:
        for _ in range(300):
            array = memory.empty((2, 300, 300), BYTE)
            array[...] = number
            assert (array == number).all()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(use, range(6)))  # raises what they raise


@needs_counts
def test_kept_memory_is_bounded() -> None:
    memory = BatchPool()
    memory.MAX_NBYTES = 10 * int(np.prod(SHAPE))
    arrays: list[NDArray[Any]] = []
    for n_arrays in (1, 8, 30, 3, 30, 1):
        memory.begin_batch()
        arrays = [memory.empty(SHAPE, BYTE) for _ in range(n_arrays)]
        assert 0 < memory.nbytes <= memory.MAX_NBYTES
    memory.begin_batch()
    large = memory.empty((11, *SHAPE), BYTE)
    assert memory.nbytes <= memory.MAX_NBYTES
    before = memory.nbytes
    del arrays, large
    place = memory.empty(SHAPE, BYTE).ctypes.data
    assert memory.nbytes == before, "kept memory is still reused"
    assert memory.empty(SHAPE, BYTE).ctypes.data == place


def test_the_memory_of_a_large_batch_is_freed_with_it() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux reports the memory of a process in /proc")
    code = """
from memory import memory_of_process, with_one_episode
from sb3_compressed import buffer_statistics
from sb3_compressed.arrays.batch_pool import REFERENCES_ARE_COUNTED, BatchPool
buffer = with_one_episode(1000, num_threads=1)
for _ in range(3):
    buffer.sample(32)
assert (0 < buffer_statistics(buffer).batch_memory_nbytes < 10e6) == REFERENCES_ARE_COUNTED
before = memory_of_process("VmRSS")
batch = buffer.sample(6000)
taken = memory_of_process("VmRSS") - before
assert taken > 300e6, taken
del batch
left = memory_of_process("VmRSS") - before
assert left < 30e6, left
for _ in range(5):
    batch = buffer.sample(1024)
assert (50e6 < buffer_statistics(buffer).batch_memory_nbytes <= BatchPool.MAX_NBYTES) == REFERENCES_ARE_COUNTED
before = memory_of_process("VmRSS")
batch = buffer.sample(6000)
del batch
assert memory_of_process("VmRSS") - before < 30e6
"""
    run(code)


def test_a_training_reuses_the_memory_that_it_frees() -> None:
    # Each tensor is larger than all before it, which the C library returns to the system unless it was told to keep it.
    program = """
import resource
import numpy as np
import torch as th
from gymnasium import spaces
from sb3_compressed import CompressedReplayBuffer

CompressedReplayBuffer(10, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4), "cpu")
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for megabytes in range(16, 32):
    th.full((megabytes << 20,), 1, dtype=th.uint8)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() >> 20)
"""
    done = run_python(["-c", program], environment_with(), fresh=True)
    assert done.returncode == 0, done.stderr
    # Megabytes of new pages: those of all tensors if their memory was returned, or fewer where they find no room.
    assert int(done.stdout) < sum(range(16, 32)) / 2

"""The memory of batches is reused when nothing refers to it any more, and never before; only its owner may be moved."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
import torch as th
from numpy.typing import NDArray
from programs import environment_with, run, run_python

from sb3_compressed.arrays.batch_pool import ALIGNMENT, REFERENCES_ARE_COUNTED, BatchPool, references_are_counted

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


@pytest.mark.slow
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
"""
    run(code)


@pytest.mark.slow
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
    # Megabytes of new pages: 376, those of all tensors, if their memory was returned; else up to 200, where they find
    # no room, which depends on the addresses that the process got.
    assert int(done.stdout) < 0.75 * sum(range(16, 32))


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="other interpreters may always use new memory")
def test_references_are_counted_in_cpython() -> None:
    assert references_are_counted(), "batches would always get new memory"


def test_environment_variable_turns_the_reuse_of_memory_off() -> None:
    code = "from sb3_compressed.arrays import batch_pool; print(batch_pool.REFERENCES_ARE_COUNTED)"
    assert run(code, SB3_COMPRESSED_FORCE_FALLBACKS="1") == "False\n"

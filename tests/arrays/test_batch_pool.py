"""The memory of batches is reused when nothing refers to it any more, and never before; only its owner may be moved."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch as th
from interrupts import bytecodes, call_within
from numpy.typing import NDArray
from programs import environment_with, run, run_python

from sb3_compressed.arrays.batch_pool import ALIGNMENT, REFERENCES_ARE_COUNTED, BatchPool, references_are_counted

SHAPE = (64, 84, 84)
BYTE = np.dtype(np.uint8)

NewArray = Callable[[], NDArray[Any]]

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


def first_of_two(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    assert not np.shares_memory(first, second)
    return first


def of_a_name(new: NewArray) -> NDArray[Any]:
    first = new()
    return first_of_two(first, new())


def of_a_name_that_is_assigned_again(new: NewArray) -> NDArray[Any]:
    first = new()
    return first_of_two(first, (first := new()))


def of_no_name(new: NewArray) -> NDArray[Any]:
    return first_of_two(new(), new())


def of_parameters(new: NewArray) -> NDArray[Any]:
    def call(array: NDArray[Any], depth: int) -> NDArray[Any]:
        return call(array, depth - 1) if depth else first_of_two(array, new())

    return call(new(), 5)


def of_deleted_parameters(new: NewArray) -> NDArray[Any]:
    def call(array: NDArray[Any]) -> NDArray[Any]:
        del array
        return new()

    first = new()
    return first_of_two(first, call(first))


def of_a_closure(new: NewArray) -> NDArray[Any]:
    first = new()
    return first_of_two((lambda: first)(), new())


def of_a_generator(new: NewArray) -> NDArray[Any]:
    def generate() -> Iterator[NDArray[Any]]:
        array = new()
        yield new()
        yield array

    second, first = generate()
    return first_of_two(first, second)


def of_an_iterator(new: NewArray) -> NDArray[Any]:
    for first in iter([new()]):
        return first_of_two(first, new())
    raise AssertionError


def of_a_traceback(new: NewArray) -> NDArray[Any]:
    def fail() -> None:
        first = new()
        raise LookupError(first.shape)

    with pytest.raises(LookupError) as raised:
        fail()
    return first_of_two(raised.traceback[-1].frame.f_locals["first"], new())


@pytest.mark.parametrize(
    "hold",
    [
        of_a_name, of_a_name_that_is_assigned_again, of_no_name, of_parameters, of_deleted_parameters, of_a_closure,
        of_a_generator, of_an_iterator, of_a_traceback,
    ],
)  # fmt: skip
def test_memory_is_in_use_however_it_is_referred_to(hold: Callable[[NewArray], NDArray[Any]]) -> None:
    """Since Python 3.14, functions may borrow references to their arguments, which are not counted."""
    memory = BatchPool()
    for _ in range(200):  # until the interpreter has optimized the functions
        held = hold(lambda: memory.empty(SHAPE, BYTE))
        held[:] = 7
        memory.empty(SHAPE, BYTE)[:] = 1
        assert (held[::9, ::21] == 7).all()


def test_a_debugger_during_the_import_changes_nothing() -> None:
    code = """
import sys
from types import CodeType
import numpy as np
import sb3_compressed.arrays.batch_pool as module

functions = [each for each in compile(open(module.__file__).read(), "", "exec").co_consts if type(each) is CodeType]
for name in [each.co_name for each in functions]:
    kept = {}

    def trace(frame, event, _):
        if frame.f_globals.get("__name__") != module.__name__ or frame.f_code.co_name != name:
            return None
        kept.update(frame.f_locals)  # as a debugger that shows variables
        return trace

    del sys.modules[module.__name__]
    sys.settrace(trace)
    import sb3_compressed.arrays.batch_pool as module
    sys.settrace(None)
    pool = module.BatchPool()
    first, second = (pool.empty((64, 84, 84), np.dtype(np.uint8)) for _ in range(2))
    assert not np.shares_memory(first, second), name
"""
    run(code)


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


@needs_counts
@pytest.mark.parametrize("name", ["empty", "begin_batch"])
def test_a_call_may_interrupt_another_one(name: str) -> None:
    """As in the handler of a signal, which samples, too."""

    def with_blocks() -> BatchPool:
        memory = BatchPool()
        kept = [memory.empty(SHAPE, BYTE) for _ in range(3)]
        del kept
        memory.begin_batch()
        return memory

    memory, arrays = with_blocks(), [np.empty(0)]

    def allocate() -> None:
        memory.begin_batch()
        arrays.append(memory.empty(SHAPE, BYTE))

    for at in [each for each in bytecodes(allocate) if each[0].co_name == name]:
        arrays.clear()
        memory = with_blocks()
        call_within(allocate, at, allocate)
        assert len({array.ctypes.data for array in arrays}) == len(arrays) == 2
        allocate()
        assert len({array.ctypes.data for array in arrays}) == 3


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

"""Memory maps of their own, and the few that are reused."""

from __future__ import annotations

import os

import numpy as np
import pytest
from programs import run

from sb3_compressed.arrays.segment_memory import MAX_KEPT_NBYTES, keep_block, new_block
from sb3_compressed.common.memory import mapped_memory


def test_too_much_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="MB"):
        mapped_memory(1 << 60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_does_not_change_memory_of_its_parent() -> None:
    program = """
import os
from sb3_compressed.common.memory import mapped_memory
memory = mapped_memory(1 << 16)
if (child := os.fork()) == 0:
    memory[:] = 1
    os._exit(0)
os.waitpid(child, 0)
print(int(memory.max()))
"""
    assert run(program) == "0\n"


def test_a_block_is_reused_only_when_nothing_refers_to_it() -> None:
    block = new_block(3_000_000)
    view, address = block[10:20], block.ctypes.data
    view[:] = 7
    keep_block(block)
    del block
    others = [new_block(3_000_000) for _ in range(3)]
    assert address not in [other.ctypes.data for other in others]
    np.testing.assert_array_equal(view, 7)
    del view
    assert new_block(3_000_000).ctypes.data == address


def test_large_blocks_are_not_kept() -> None:
    block = new_block(MAX_KEPT_NBYTES + 1)
    block[0] = 7
    keep_block(block)
    del block
    assert new_block(MAX_KEPT_NBYTES + 1)[0] == 0

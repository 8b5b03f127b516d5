"""Forks wait for the locks of all buffers; neither the parent nor the child process waits for ever."""

from __future__ import annotations

import os
import threading

import pytest
from drawn_examples import FACTOR
from gymnasium import spaces
from interrupts import bytecodes, evenly, interrupt
from programs import outcome

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.buffers import buffer_lock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

#: Programs, so that one that waits for ever is ended. Their children are, too.
BEGINNING = """
import os, signal, sys, threading
import numpy as np
from gymnasium import spaces
from sb3_compressed import CompressedReplayBuffer

sys.setswitchinterval(1e-6)
space, buttons = spaces.Box(0, 255, (2, 36, 36), np.uint8), spaces.Discrete(2)

def filled(cls=CompressedReplayBuffer, **options):
    buffer = cls(20, space, buttons, "cpu", compression_method="zstd1", **options)
    for step in range(10):
        frames = np.full((1, 2, 36, 36), step, np.uint8)
        buffer.add(frames, frames, np.array([0]), np.array([float(step)]), np.array([False]), [{}])
    return buffer

def fork(in_child):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            in_child()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0

def keep(call):
    def run():
        while True:
            call()
    threading.Thread(target=run, daemon=True).start()
"""

BUFFERS_WITHIN_OTHERS = """
class Sampling(CompressedReplayBuffer):
    def _get_samples(self, batch_inds, env=None):
        other.sample(4)
        return super()._get_samples(batch_inds, env)

buffer = filled(Sampling)
buffers = [filled() for _ in range(4)]
other = buffers[-1]
keep(lambda: buffer.sample(4))
for _ in range(8):
    fork(lambda: None)
print("complete", flush=True)
"""


NEW_BUFFERS = """
from sb3_compressed.buffers.buffer_lock import new_lock

locks = [new_lock() for _ in range(500)]
keep(lambda: [new_lock() for _ in range(50)])
for _ in range(8):
    fork(lambda: None)
print("complete", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [BUFFERS_WITHIN_OTHERS, NEW_BUFFERS])
def test_forks_beside_other_threads_wait_for_locks_until_these_are_free(program: str) -> None:
    done = outcome(BEGINNING + program + "os._exit(0)")
    assert (done.returncode, done.stdout) == (0, "complete\n"), done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python ignores errors before a fork
def test_interrupted_forks_leave_no_buffer_locked() -> None:
    buffers = [CompressedReplayBuffer(2, spaces.Box(0, 1, (1,)), spaces.Discrete(2), "cpu") for _ in range(2)]

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    found = [at for at in bytecodes(fork) if at[0].co_filename == buffer_lock.__file__]
    assert len(found) > 50
    for at in found if FACTOR else evenly(found, 15):
        interrupt(fork, at)
        threads = [threading.Thread(target=buffer.reset, daemon=True) for buffer in buffers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), at

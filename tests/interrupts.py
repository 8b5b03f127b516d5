"""Ctrl-C at a chosen bytecode of the package: a test finds the bytecodes that a call runs, and interrupts one a run."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import sb3_compressed

#: A code object and the offset of a bytecode in it.
Bytecode = tuple[CodeType, int]

PACKAGE = str(Path(sb3_compressed.__file__).parent)


def bytecodes(call: Callable[[], object]) -> list[Bytecode]:
    """Return the bytecodes of the package that a call runs in this thread, each once, in order."""
    seen: dict[Bytecode, None] = {}
    _trace(call, lambda frame: seen.setdefault((frame.f_code, frame.f_lasti)))
    return [*seen]


def evenly(found: Sequence[Bytecode], n: int) -> list[Bytecode]:
    """Return at most ``n`` bytecodes at equal distances, including the first and the last one."""
    return [found[each] for each in np.unique(np.linspace(0, len(found) - 1, n).astype(int))]


def interrupt(call: Callable[[], object], at: Bytecode, *, must_reach: bool = True) -> KeyboardInterrupt | None:
    """Run a call that Ctrl-C interrupts when it first reaches a bytecode; return the interrupt, if it is not caught.

    As in a notebook, its traceback keeps alive what the interrupted frames refer to.

    :param must_reach: whether to raise if the call does not reach the bytecode, so that nothing is tested: a first call
        runs some that no later one does, such as those of imports. What is reached may depend on other processes
    :raises AssertionError: then
    """
    error = KeyboardInterrupt()
    is_pending = True

    def raise_error(*args: object) -> None:
        raise error

    def raise_there(frame: FrameType) -> None:
        nonlocal is_pending
        if is_pending and (frame.f_code, frame.f_lasti) == at:
            is_pending = False
            handler: Any = signal.getsignal(signal.SIGINT)  # that of deferred_interrupts within its block
            handler(signal.SIGINT, frame)

    before = signal.signal(signal.SIGINT, raise_error)
    try:
        _trace(call, raise_there)
    except KeyboardInterrupt as caught:
        if caught is not error:
            raise
        return caught
    finally:
        signal.signal(signal.SIGINT, before)
    assert not (is_pending and must_reach), f"the call does not reach bytecode {at[1]} of {at[0]}"
    return None


def _trace(call: Callable[[], object], visit: Callable[[FrameType], object]) -> None:
    """Run a call; visit each frame of the package before each of its bytecodes."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            frame.f_trace = trace  # Python 3.13 and newer request no bytecodes for a frame without a trace function
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            visit(frame)
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces no bytecodes if none were requested before settrace
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)


def interrupt_twice(call: Callable[[], object], at: Bytecode, n_calls: int) -> bool:
    """Run a call that Ctrl-C interrupts as in :func:`interrupt`, and again where it is left then.

    :param n_calls: calls of the package from the first interrupt to the second one, which is in the last of them
    :return: whether it ran so many, so that there was a second one
    """
    n_left = n_calls

    def interrupt_again(frame: FrameType, event: str, _: Any) -> None:
        nonlocal n_left
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR  # of which Python ignores what ends it
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(PACKAGE) and not is_generator:
            n_left -= 1
            if n_left == 0:
                raise KeyboardInterrupt

    def begin(frame: FrameType) -> None:
        if (frame.f_code, frame.f_lasti) == at:
            sys.setprofile(interrupt_again)
            raise KeyboardInterrupt

    gc.disable()  # Python ignores interrupts of what it calls for garbage
    try:
        _trace(call, begin)
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return n_left <= 0


def call_within(call: Callable[[], object], at: Bytecode, other: Callable[[], object]) -> None:
    """Run a call, and another one within it when it first reaches a bytecode, as the handler of a signal would.

    :raises AssertionError: if it does not reach it
    """
    is_pending = True

    def call_there(frame: FrameType) -> None:
        nonlocal is_pending
        if is_pending and (frame.f_code, frame.f_lasti) == at:
            is_pending = False
            other()

    _trace(call, call_there)
    assert not is_pending, f"the call does not reach bytecode {at[1]} of {at[0]}"

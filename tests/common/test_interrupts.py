"""Ctrl-C in code that must not be left halfway."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from sb3_compressed.common.interrupts import deferred_interrupts


def interrupt_twice(finished: list[str]) -> None:
    with deferred_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        finished.append("first")
        os.kill(os.getpid(), signal.SIGINT)
        finished.append("second")


def test_an_interrupt_is_raised_after_the_block() -> None:
    finished: list[str] = []
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupt_twice(finished)
    assert finished == ["first", "second"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_ignored_interrupt_stays_ignored() -> None:
    finished: list[str] = []
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupt_twice(finished)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)
    assert finished == ["first", "second"]


def test_another_thread_changes_no_handler() -> None:
    found = []

    def look() -> None:
        with deferred_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]

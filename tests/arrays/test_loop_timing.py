"""Tests of ``LoopTiming``: what happens in a second of a training, by a clock that the test sets."""

from __future__ import annotations

import copy
import pickle

import pytest

from sb3_compressed.arrays.loop_timing import LoopTiming, Rates


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("sb3_compressed.arrays.loop_timing.time.perf_counter", clock)
    return clock


def train(
    timing: LoopTiming,
    clock: Clock,
    n_cycles: int,
    *,
    n_adds: int = 4,
    n_batches: int = 1,
    step: float = 0.001,
    update: float = 0.006,
    is_ready: bool = False,
) -> None:
    """Train for some cycles of ``n_adds`` steps of two environments and ``n_batches`` updates of 32 transitions."""
    for _ in range(n_cycles):
        for _ in range(n_adds):
            timing.add(2)
            clock.now += step
        for _ in range(n_batches):
            timing.sample(32, is_ready=is_ready)
            clock.now += update


def rates(timing: LoopTiming) -> Rates:
    assert timing.rates is not None
    return timing.rates


def test_rates_are_those_of_the_loop(clock: Clock) -> None:
    timing = LoopTiming()
    assert timing.rates is None
    train(timing, clock, 200)
    found = rates(timing)  # a cycle takes 10 ms
    assert found.added == pytest.approx(800, rel=0.02)
    assert found.waited == pytest.approx(3_200, rel=0.02)
    assert found.ahead == 0


def test_batches_that_were_ready_are_counted_apart(clock: Clock) -> None:
    timing = LoopTiming()
    train(timing, clock, 100)
    train(timing, clock, 300, is_ready=True)
    found = rates(timing)
    assert found.ahead == pytest.approx(3 * found.waited, rel=0.02)


def test_adding_before_the_first_batch_does_not_count(clock: Clock) -> None:
    timing = LoopTiming()
    for _ in range(10_000):
        timing.add(2)
        clock.now += 0.1
    assert timing.rates is None, "a loop that only adds is not known"
    train(timing, clock, 100)
    assert rates(timing).added == pytest.approx(800, rel=0.02)


def test_whole_cycles_count_whatever_their_length(clock: Clock) -> None:
    timing = LoopTiming()
    train(timing, clock, 5, n_adds=1_000, n_batches=100)
    expected = rates(timing)
    for _ in range(700):  # a part of a further cycle
        timing.add(2)
        clock.now += 0.001
    assert rates(timing) == expected
    assert expected.added == pytest.approx(2_000 / 1.6, rel=0.02)
    assert expected.waited == pytest.approx(3_200 / 1.6, rel=0.02)


def test_pauses_do_not_count(clock: Clock) -> None:
    timing = LoopTiming()
    train(timing, clock, 200)
    before = rates(timing)
    clock.now += 3_600  # an evaluation, or a process that was stopped
    train(timing, clock, 200)
    assert rates(timing).added == pytest.approx(before.added, rel=0.1)


def test_a_clock_that_jumps_back_is_harmless(clock: Clock) -> None:
    timing = LoopTiming()
    train(timing, clock, 200)
    clock.now -= 10_000
    train(timing, clock, 200)
    assert rates(timing).added == pytest.approx(800, rel=0.02)


def test_recent_cycles_count_more(clock: Clock) -> None:
    timing = LoopTiming()
    train(timing, clock, 200)
    train(timing, clock, 2_000, update=0.096)  # ten times slower, for 200 seconds
    assert rates(timing).added == pytest.approx(80, rel=0.05)


def test_copies_begin_anew(clock: Clock) -> None:
    timing = LoopTiming()
    train(timing, clock, 200)
    for copied in (copy.deepcopy(timing), pickle.loads(pickle.dumps(timing))):
        assert copied.rates is None

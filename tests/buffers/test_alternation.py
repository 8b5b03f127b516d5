"""``Alternation`` finds whether something slows a loop down, although rounds vary and the loop changes."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from sb3_compressed.buffers import alternation
from sb3_compressed.buffers.alternation import Alternation


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Alternation, int, float], list[bool]]:
    """Return a function that runs rounds on a clock of its own, and returns in which of them it was on."""
    now, rng = 0.0, np.random.default_rng(0)
    monkeypatch.setattr(alternation, "perf_counter", lambda: now)

    def rounds(tried: Alternation, n: int, ratio: float) -> list[bool]:
        nonlocal now
        were_on = []
        for number in range(n):
            tried.begin_round()
            were_on.append(tried.is_on)
            seconds = 0.01 * (1 + number / n) * rng.lognormal(0, 0.1) * (ratio if tried.is_on else 1)
            now += seconds + (0.2 if number % 97 == 0 else 0)  # an environment is reset, or an evaluation
        return were_on

    return rounds


Run = Callable[[Alternation, int, float], list[bool]]


@pytest.mark.parametrize("ratio", [0.7, 0.96, 1.0, 1.05, 1.5])
def test_it_is_left_out_where_it_costs_time(ratio: float, run: Run) -> None:
    tried = Alternation()
    were_on = run(tried, 20_000, ratio)
    assert all(were_on[: Alternation.WARM_UP - 1]), "it is on at first"
    assert were_on[3000:].count(ratio <= 1) > 0.8 * len(were_on[3000:])


def test_a_large_difference_is_found_soon(run: Run) -> None:
    soon = Alternation.WARM_UP + 3 * Alternation.MIN_RATIOS * Alternation.N_ROUNDS
    assert set(run(Alternation(), soon + 500, 1.5)[soon:]) == {False}


def test_it_is_compared_again(run: Run) -> None:
    tried = Alternation()
    run(tried, 20_000, 1.5)
    assert run(tried, 40_000, 0.6)[-10_000:].count(True) > 9_000


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_begin_anew(copied: Callable[[Alternation], Alternation], run: Run) -> None:
    tried = Alternation()
    run(tried, Alternation.WARM_UP + 3 * Alternation.MIN_RATIOS * Alternation.N_ROUNDS + 100, 1.5)
    assert not tried.is_on
    assert copied(tried).is_on


def test_it_is_left_out_a_third_of_the_time_while_it_is_compared(run: Run) -> None:
    were_on = run(Alternation(), Alternation.WARM_UP + 12 * Alternation.N_ROUNDS, 1.0)[Alternation.WARM_UP - 1 : -1]
    assert were_on.count(True) == 2 * were_on.count(False) == 8 * Alternation.N_ROUNDS


def test_leaving_it_out_to_compare_is_no_decision(run: Run) -> None:
    tried = Alternation()
    run(tried, Alternation.WARM_UP + Alternation.N_ROUNDS, 1.5)
    assert not tried.is_on
    assert tried.is_left_out_to_compare
    run(tried, 3 * Alternation.MIN_RATIOS * Alternation.N_ROUNDS, 1.5)
    assert not tried.is_on
    assert not tried.is_left_out_to_compare


def test_a_clock_that_stands_still_decides_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternation, "perf_counter", lambda: 1.0)
    tried = Alternation()
    for _ in range(10_000):
        tried.begin_round()


def test_threads_may_share_it() -> None:
    tried, errors = Alternation(), []

    def loop() -> None:
        try:
            for _ in range(30_000):
                tried.begin_round()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=loop) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []

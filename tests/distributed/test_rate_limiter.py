"""The rate limiter follows Reverb's definition, counts exactly, and never blocks both sides."""

from __future__ import annotations

import json
import math
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sb3_compressed.distributed.rate_limiter import RateLimiter, WaitTime

RATIOS = st.one_of(
    st.none(),
    st.just(math.inf),
    st.sampled_from([0.1, 0.25, 1 / 3, 1, 7, 8.0, 100]),
    st.floats(1e-3, 1e3),
)
SIZES = st.integers(1, 300)


def smallest_error_buffer(ratio: float | None, insert_size: int, sample_size: int) -> float:
    limited = ratio is not None and ratio != math.inf
    return max(float(sample_size), insert_size * float(ratio or 0)) if limited else 1.0


class Interleavings(RuleBasedStateMachine):
    """Inserts and samples in any order: allowed ones, ones under way, and losses of shards."""

    @initialize(ratio=RATIOS, min_size=st.integers(1, 1000), insert=SIZES, sample=SIZES, extra=st.floats(1, 3))
    def construct(self, ratio: float | None, min_size: int, insert: int, sample: int, extra: float) -> None:
        error_buffer = smallest_error_buffer(ratio, insert, sample) * extra
        self.limiter = RateLimiter(ratio, min_size, error_buffer, insert_size=insert, sample_size=sample)
        self.has_lost = self.has_exceeded = False

    @rule(part=st.floats(0, 1))
    def insert_if_allowed(self, part: float) -> None:
        n = max(1, math.ceil(part * self.limiter.insert_size))
        if self.limiter.can_insert(n):
            self.limiter.record_insert(n)

    @rule(part=st.floats(0, 1))
    def sample_if_allowed(self, part: float) -> None:
        n = max(1, math.ceil(part * self.limiter.sample_size))
        if self.limiter.can_sample(n):
            self.limiter.record_sample(n)

    @rule()
    def insert_everything(self) -> None:
        if self.limiter.n_insertable < sys.maxsize:
            self.limiter.record_insert(self.limiter.n_insertable)
            assert not self.limiter.can_insert(1)

    @rule()
    def sample_everything(self) -> None:
        if self.limiter.n_sampleable < sys.maxsize:
            self.limiter.record_sample(self.limiter.n_sampleable)
            assert not self.limiter.can_sample(1)

    @rule(n=st.integers(0, 5000))
    def insert_what_was_under_way(self, n: int) -> None:
        self.limiter.record_insert(n)
        self.has_exceeded = True

    @rule(n=st.integers(0, 5000))
    def sample_without_permission(self, n: int) -> None:
        self.limiter.record_sample(n)
        self.has_exceeded = True

    @rule(size=st.integers(0, 1000))
    def lose_a_shard(self, size: int) -> None:
        self.limiter.record_size(size)
        self.has_lost = True

    @rule()
    def resume(self) -> None:
        state = json.loads(json.dumps(self.limiter.state_dict()))
        old = self.limiter
        new = RateLimiter(
            old.samples_per_insert,
            old.min_size_to_sample,
            old.error_buffer,
            insert_size=old.insert_size,
            sample_size=old.sample_size,
        )
        new.load_state_dict(state)
        assert (new.n_insertable, new.n_sampleable) == (old.n_insertable, old.n_sampleable)
        assert new.state_dict() == old.state_dict()
        self.limiter = new

    @invariant()
    def one_side_may_proceed(self) -> None:
        limiter = self.limiter
        assert limiter.can_insert(limiter.insert_size) or limiter.can_sample(limiter.sample_size)

    @invariant()
    def error_stays_in_range(self) -> None:
        limiter = self.limiter
        if self.has_lost or self.has_exceeded or limiter.samples_per_insert is None:
            return
        assert limiter.error_buffer is not None
        error = limiter.n_inserted * limiter.samples_per_insert - limiter.n_sampled
        target = limiter.min_size_to_sample * limiter.samples_per_insert
        rounding = 1e-9 * (limiter.n_inserted + 1) * (limiter.samples_per_insert + 1)
        assert error <= target + limiter.error_buffer + rounding
        if limiter.n_sampled:
            assert error >= target - limiter.error_buffer - rounding


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(examples(150), stateful_step_count=40, suppress_health_check=list(HealthCheck))


def reverb_can_insert(state: tuple[int, int], ratio: float, min_size: int, error_buffer: float) -> bool:
    n_inserted, n_sampled = state
    if n_inserted + 1 <= min_size:
        return True
    return (n_inserted + 1) * ratio - n_sampled <= ratio * min_size + error_buffer


def reverb_can_sample(state: tuple[int, int], ratio: float, min_size: int, error_buffer: float) -> bool:
    n_inserted, n_sampled = state
    if n_inserted < min_size:
        return False
    return n_inserted * ratio - n_sampled - 1 >= ratio * min_size - error_buffer


@given(
    ratio=st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0, 32.5]),  # exact as floats, as Reverb's comparisons are of floats
    min_size=st.integers(1, 30),
    extra=st.integers(0, 20),
    inserts_first=st.lists(st.booleans(), max_size=300),
)
@examples(100)
def test_single_items_are_limited_as_in_reverb(
    ratio: float, min_size: int, extra: int, inserts_first: list[bool]
) -> None:
    error_buffer = max(1.0, ratio) + extra
    limiter = RateLimiter(ratio, min_size, error_buffer)
    for is_insert in inserts_first:
        state = limiter.n_inserted, limiter.n_sampled
        assert limiter.can_insert(1) == reverb_can_insert(state, ratio, min_size, error_buffer)
        assert limiter.can_sample(1) == reverb_can_sample(state, ratio, min_size, error_buffer)
        if is_insert and limiter.can_insert(1):
            limiter.record_insert(1)
        elif limiter.can_sample(1):
            limiter.record_sample(1)


def test_a_lock_step_schedule_is_met_exactly() -> None:
    # DQN: a batch of 32 every 4 steps.
    limiter = RateLimiter(8, 100, 32, insert_size=4, sample_size=32)
    limiter.record_insert(100)
    for _ in range(1000):
        assert limiter.can_insert(4)
        limiter.record_insert(4)
        assert not limiter.can_insert(1)
        assert limiter.can_sample(32)
        limiter.record_sample(32)
        assert limiter.n_insertable == 4
    assert limiter.achieved_samples_per_insert == 8


def test_ratios_are_decimal() -> None:
    """A float of 0.1 is more than 1/10, and the differences would add up."""
    limiter = RateLimiter(0.1, 7, 1.0, insert_size=10)
    limiter.record_insert(7)
    for _ in range(1000):
        assert limiter.can_insert(10)
        limiter.record_insert(10)
        limiter.record_sample(1)


@pytest.mark.parametrize("ratio", [0.1, 0.3, 1 / 3, 0.7, 1e-3])
def test_rounding_errors_block_nobody(ratio: float) -> None:
    n = round(1 / ratio)
    limiter = RateLimiter(ratio, 7, insert_size=n)
    smallest = max(1.0, n * ratio)
    limiter = RateLimiter(ratio, 7, smallest, insert_size=n)
    for _ in range(2000):
        if limiter.can_insert(n):
            limiter.record_insert(n)
        else:
            assert limiter.can_sample(1)
            limiter.record_sample(1)
    assert limiter.achieved_samples_per_insert == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("no_limit", [None, math.inf, np.float32("inf")])
def test_without_a_limit_only_the_minimum_size_counts(no_limit: float | None) -> None:
    limiter = RateLimiter(no_limit, 10)
    assert limiter.samples_per_insert is None
    assert limiter.error_buffer is None
    limiter.record_insert(9)
    assert not limiter.can_sample(1)
    assert limiter.can_insert(10**9)
    limiter.record_insert(1)
    assert limiter.can_sample(10**9)
    limiter.record_sample(10**12)
    assert limiter.can_sample(1)
    assert limiter.n_insertable == limiter.n_sampleable == sys.maxsize


def test_a_lost_shard_may_be_refilled() -> None:
    limiter = RateLimiter(8, 100, 512, insert_size=64, sample_size=32)
    limiter.record_insert(164)  # the error is at its upper end
    assert not limiter.can_insert(1)
    limiter.record_size(90)
    assert not limiter.can_sample(1)
    assert limiter.n_insertable == 100 + 63 - 90
    limiter.record_insert(64)
    assert not limiter.can_insert(1), "the error has exceeded the upper end"
    assert limiter.can_sample(32)


def test_inserts_under_way_are_counted_by_the_caller() -> None:
    limiter = RateLimiter(1, 100, 64, insert_size=64)
    n_under_way = 0
    while limiter.can_insert(n_under_way + 64):
        n_under_way += 64
    assert n_under_way == 128


@pytest.mark.parametrize("size", [(1, 1), (3, 1), (5, 1), (64, 1), (1, 256), (256, 32)])
@pytest.mark.parametrize("ratio", [0.1, 1 / 3, 1.0, 8.0, 0.7, 1.9, 512.9004958537136])
def test_a_small_error_buffer_is_an_error_that_states_the_smallest(ratio: float, size: tuple[int, int]) -> None:
    insert_size, sample_size = size
    smallest = max(float(sample_size), insert_size * ratio)
    with pytest.raises(ValueError, match=r"error_buffer must be at least [\d.]+, got") as error:
        RateLimiter(ratio, 10, 0.99 * smallest, insert_size=insert_size, sample_size=sample_size)
    assert RateLimiter(ratio, 10, smallest, insert_size=insert_size, sample_size=sample_size)
    stated = float(str(error.value).split()[5].rstrip(","))
    assert stated == pytest.approx(smallest)
    limiter = RateLimiter(ratio, 10, stated, insert_size=insert_size, sample_size=sample_size)
    assert limiter.error_buffer == pytest.approx(smallest)


def test_the_default_error_buffer_is_a_tenth_or_the_smallest() -> None:
    assert RateLimiter(8, 10_000).error_buffer == 8000
    assert RateLimiter(8, 10, insert_size=64).error_buffer == 512


WRONG: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"samples_per_insert": 0}, ValueError),
    ({"samples_per_insert": -1.0}, ValueError),
    ({"samples_per_insert": math.nan}, ValueError),
    ({"samples_per_insert": "8"}, TypeError),
    ({"samples_per_insert": True}, TypeError),
    ({"min_size_to_sample": 0}, ValueError),
    ({"min_size_to_sample": 1.5}, TypeError),
    ({"min_size_to_sample": True}, TypeError),
    ({"error_buffer": 0}, ValueError),
    ({"error_buffer": -3.0}, ValueError),
    ({"error_buffer": math.nan}, ValueError),
    ({"error_buffer": math.inf}, ValueError),
    ({"error_buffer": (1.0, 2.0)}, TypeError),
    ({"insert_size": 0}, ValueError),
    ({"sample_size": -2}, ValueError),
    ({"sample_size": None}, TypeError),
]


@pytest.mark.parametrize(("wrong", "error"), WRONG)
def test_wrong_arguments_are_named(wrong: dict[str, Any], error: type[Exception]) -> None:
    arguments: dict[str, Any] = {"samples_per_insert": 8.0, "min_size_to_sample": 100, "error_buffer": 100.0}
    with pytest.raises(error, match=next(iter(wrong))):
        RateLimiter(**{**arguments, **wrong})


def test_wrong_counts_are_errors() -> None:
    limiter = RateLimiter(8, 100)
    for method in (limiter.can_insert, limiter.can_sample):
        for n in (0, -1):
            with pytest.raises(ValueError, match=f"n must be at least 1, got {n}"):
                method(n)
    for record in (limiter.record_insert, limiter.record_sample):
        with pytest.raises(ValueError, match="n must be at least 0, got -1"):
            record(-1)
        with pytest.raises(TypeError, match=r"n must be an int, got 1\.0"):
            record(1.0)  # type: ignore[arg-type]
        record(np.int64(0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size must be at least 0"):
        limiter.record_size(-1)
    assert (limiter.n_inserted, limiter.n_sampled) == (0, 0)


def test_statistics_state_who_waited() -> None:
    now = 0.0
    limiter = RateLimiter(2, 10, 20, insert_size=2, sample_size=4, clock=lambda: now)
    assert limiter.statistics().waiting == "sample"
    with limiter.sample_wait:
        now = 3.0
        assert limiter.statistics().sample_wait_seconds == 3
        limiter.record_insert(20)
    limiter.insert_wait.start()
    limiter.insert_wait.start()  # it is the same wait
    now = 4.0
    assert limiter.statistics().waiting == "insert"
    assert limiter.insert_wait.is_waiting
    limiter.insert_wait.stop()
    limiter.insert_wait.stop()
    now = 9.0
    limiter.record_sample(20)
    found = limiter.statistics()
    assert found == (20, 20, 2.0, 1, 1.0, 1, 3.0, None)


def test_a_wait_ends_with_an_exception() -> None:
    wait = WaitTime()
    with pytest.raises(KeyboardInterrupt), wait:
        raise KeyboardInterrupt
    assert not wait.is_waiting


def test_achieved_ratio_is_unknown_before_sampling() -> None:
    limiter = RateLimiter(8, 100)
    assert limiter.achieved_samples_per_insert is None
    limiter.record_insert(100)
    assert limiter.achieved_samples_per_insert is None


@pytest.mark.parametrize("changes", [{"samples_per_insert": 2}, {"min_size_to_sample": 5000}])
def test_resuming_with_other_settings_does_not_block_for_long(changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"samples_per_insert": 8, "min_size_to_sample": 1000, "insert_size": 64}
    limiter = RateLimiter(**arguments, sample_size=32)
    limiter.record_insert(1_000_000)
    limiter.record_sample(8_000_000)
    resumed = RateLimiter(**{**arguments, **changes}, sample_size=32)
    resumed.load_state_dict(limiter.state_dict())
    assert (resumed.n_inserted, resumed.n_sampled) == (1_000_000, 8_000_000)
    assert resumed.can_insert(64)
    assert resumed.can_sample(32)


@pytest.mark.parametrize("other", [None, 8])
def test_resuming_with_or_without_a_limit(other: float | None) -> None:
    limiter = RateLimiter(None if other else 8, 1000)
    limiter.record_insert(500)
    resumed = RateLimiter(other, 1000)
    resumed.load_state_dict(limiter.state_dict())
    assert not resumed.can_sample(1)
    resumed.record_insert(500)
    assert resumed.can_sample(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_inserted": -1},
        {"error": [1, 0]},
        {"error": None},
        {"error": "x"},
        {"error": [0.5, 1]},
        {"size": 1.5},
        {"samples_per_insert": [1, 2, 3]},
    ],
)
def test_damaged_states_are_errors_and_change_nothing(changes: dict[str, Any]) -> None:
    limiter = RateLimiter(8, 1000)
    limiter.record_insert(3)
    before = limiter.state_dict()
    with pytest.raises(ValueError, match="what state_dict"):
        limiter.load_state_dict({**before, "n_inserted": 99, **changes})
    with pytest.raises(ValueError, match="size"):
        limiter.load_state_dict({name: value for name, value in before.items() if name != "size"})
    assert limiter.state_dict() == before


def test_it_can_be_pickled() -> None:
    limiter = RateLimiter(8, 1000)
    limiter.record_insert(1001)
    assert pickle.loads(pickle.dumps(limiter)).state_dict() == limiter.state_dict()

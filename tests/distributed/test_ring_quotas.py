"""All rings together contain about the same transitions as a single ring of the whole buffer."""

from __future__ import annotations

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from sb3_compressed.distributed.ring_quotas import LEAST, RingQuotas

CAPACITY = 10_000


class Training:
    """Writers that insert segments in turn, and rings that lose their oldest transitions.

    :param speeds: how many transitions each writer inserts at once; a writer has one environment
    :param capacity: as for the quotas
    """

    def __init__(self, speeds: dict[str, int], capacity: int = CAPACITY) -> None:
        self.speeds, self.capacity = speeds, capacity
        self.n_inserted = dict.fromkeys(speeds, 0)
        self.sizes = dict.fromkeys(speeds, 0)
        self.quotas = RingQuotas(capacity, dict.fromkeys(speeds, 1))
        self.n_changes = 0
        self._n_before = 0

    def include(self, **speeds: int) -> None:
        """Include writers."""
        self.speeds |= speeds
        for name in speeds:
            self.n_inserted.setdefault(name, 0)
            self.sizes.setdefault(name, 0)
        self.quotas.include(dict.fromkeys(speeds, 1), self.n_inserted)

    def run(self, n: int) -> Training:
        """Insert at least a number of transitions."""
        end = sum(self.n_inserted.values()) + n
        while sum(self.n_inserted.values()) < end:
            for name, speed in self.speeds.items():
                self.n_inserted[name] += speed
                self.sizes[name] = min(self.sizes[name] + speed, self.quotas.rows[name])
                if sum(self.n_inserted.values()) - self._n_before >= self.quotas.interval:
                    self._n_before = sum(self.n_inserted.values())
                    if self.quotas.record(self.n_inserted):
                        self.n_changes += 1
                        self._resize()
        return self

    def _resize(self) -> None:
        for name, n_rows in self.quotas.rows.items():
            self.sizes[name] = min(self.sizes[name], n_rows)

    @property
    def n_stored(self) -> int:
        return sum(self.sizes.values())


@examples(100)
@given(st.integers(100, 20_000), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9_000)))
def test_what_rings_contain_stays_if_it_fits(capacity: int, sizes: dict[str, int]) -> None:
    """After a load, the larger rings of a full buffer became smaller."""
    writers = dict.fromkeys(sizes, 2)
    quotas = RingQuotas(capacity, writers, sizes)
    if sum(max(size + 1, 2 * LEAST) for size in sizes.values()) <= capacity:
        assert all(2 * quotas.rows[name] >= size for name, size in sizes.items())
        quotas.include(writers, {})
        assert all(2 * quotas.rows[name] >= size for name, size in sizes.items())
    assert quotas.n_transitions <= max(capacity, 4 * len(sizes))


counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5_000), min_size=1)


@examples(100)
@given(
    st.integers(1, 20_000), st.dictionaries(st.sampled_from("abc"), st.integers(1, 8)), counts,
    st.lists(st.tuples(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8)), counts), min_size=1),
)  # fmt: skip
def test_quotas_fit_the_buffer(
    capacity: int,
    writers: dict[str, int],
    sizes: dict[str, int],
    steps: list[tuple[dict[str, int], dict[str, int]]],
) -> None:
    """Whatever writers insert, and whenever others are included."""
    quotas = RingQuotas(capacity, writers, sizes)
    n_inserted: dict[str, int] = {}
    for included, new in steps:
        n_envs = {**writers, **included}
        if n_envs != writers:
            quotas.include(included, n_inserted)
            writers = n_envs
        n_inserted = {name: n_inserted.get(name, 0) + new.get(name, 0) for name in {*n_inserted, *new}}
        before = dict(quotas.rows)
        is_changed = quotas.record(n_inserted)
        assert is_changed or quotas.rows == before
        n_all = sum(writers.values())
        assert quotas.rows.keys() == writers.keys()
        assert quotas.n_transitions == sum(quotas.rows[name] * each for name, each in writers.items())
        assert quotas.n_transitions <= max(capacity, 2 * n_all)
        assert all(n_rows >= max(2, min(LEAST, capacity // max(n_all, 1) // 16)) for n_rows in quotas.rows.values())


@pytest.mark.parametrize("speeds", [(65, 10), (64, 64, 1), (10, 20, 30, 40), (1, 100)])
def test_the_buffer_becomes_full_whatever_the_speeds(speeds: tuple[int, ...]) -> None:
    training = Training({str(number): speed for number, speed in enumerate(speeds)}).run(CAPACITY)
    assert training.n_stored > 0.85 * CAPACITY
    training.run(4 * CAPACITY)
    n_changes = training.n_changes
    assert n_changes <= 8
    training.run(20 * CAPACITY)
    assert training.n_changes == n_changes
    assert training.n_stored > 0.99 * CAPACITY
    for number, speed in enumerate(speeds):
        share = speed / sum(speeds)
        assert training.quotas.rows[str(number)] >= 0.5 * share * CAPACITY


def test_the_rows_of_a_writer_that_is_gone_go_to_the_others() -> None:
    training = Training({"gone": 64, "a": 64, "b": 64}).run(2 * CAPACITY)
    training.speeds["gone"] = 0
    training.run(CAPACITY // 2)
    assert 0 < training.sizes["gone"] < CAPACITY // 3
    training.run(CAPACITY)
    assert training.sizes["gone"] == training.quotas.rows["gone"] == LEAST
    assert training.sizes["a"] == training.sizes["b"] == training.quotas.rows["a"] > 0.48 * CAPACITY
    n_changes = training.n_changes
    training.run(10 * CAPACITY)
    assert training.n_changes == n_changes
    training.speeds["gone"] = 64  # it returns
    training.run(3 * CAPACITY)
    assert training.quotas.rows["gone"] > 0.5 * CAPACITY / 3
    assert training.n_stored > 0.98 * CAPACITY


def test_writers_that_insert_one_after_the_other_lose_nothing() -> None:
    """As long as a single ring would contain all transitions, so do the rings."""
    training = Training({"a": 64, "b": 0, "c": 0}).run(CAPACITY * 3 // 10)
    for name in "bc":
        training.speeds = {**dict.fromkeys("abc", 0), name: 64}
        training.run(CAPACITY * 3 // 10)
    assert training.sizes == training.n_inserted
